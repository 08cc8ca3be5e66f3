//! The kernel from its first instruction at a virtual address: console, hooks, command line, and
//! the end.

#![allow(unsafe_code, reason = "the console's UART, which the boot tables map")]

use super::boot::{self, Ended};
use super::hook::BOOT;
use super::{power, sources};
use crate::arch::phases::Phases;
use crate::arch::{boot_stack, left_on};
use crate::cpu::{ipi, irq, stop};
use crate::dev::console::println;
use crate::dev::{console, psci, registry, uart};
use crate::handover::{Handover, LeftOn, boot_record};
use crate::kexec::arrive;
use crate::mm::{fault, firmware, kernel_tables};
use crate::smp::off;
use crate::task::task_table::{self, Task};
use crate::trace::recorder;
use crate::{exception, fatal, kexec, lock, module, percpu, report, sched, task};
use granule_boot::expand::Expanded;
use granule_boot::peek::{ConsoleError, Consoles};
use granule_kcore::layout;
use granule_kcore::parameters::Parameters;

/// Runs the kernel on the boot stack and the boot tables. The identity map is still in TTBR0.
pub(crate) fn run(handover: &'static Handover) -> ! {
    let mut phases = Phases::new(handover.entry.counter, "mmu-off");
    boot_stack::paint();
    percpu::init_boot_cpu();
    exception::init();
    let on_cpu = left_on::stop();
    register();
    psci::init(handover.tree.psci);
    // Without a page size the boot cannot continue. The reason is printed here.
    let choice = handover.choice.as_ref();
    if let Some(described) = &handover.tree.uart {
        let driver = uart::driver(described.family);
        if choice.is_none_or(|choice| registry::probe(driver, choice.page.size)) {
            let base = layout::in_slot(layout::UART_VADDR, described.base);
            // SAFETY: the boot tables map the UART there, as Device memory, for good. `Consoles::check` has seen
            // that its registers are aligned and in one page.
            console::init(unsafe { uart::at(described, base) });
        }
    }
    arrive::console_comes();
    banner(handover);
    let mut line = [0; MOST_BOOTARGS];
    let line = bootargs(handover, &mut line);
    println!("granule: bootargs: {}", line.escape_ascii());
    if let Some(expanded) = &handover.expanded {
        of_firmware(expanded);
    }
    passed_over(&handover.consoles);
    by_last_owner(&handover.left_on, on_cpu);
    let parameters = Parameters::parse(line, |problem| println!("granule: {problem}"));
    power::print_no_way(handover);
    if let Some(hook) = BOOT.get() {
        (hook.console_is_up)(&parameters);
    }
    phases.end("console");
    finish(boot::run(handover, &parameters, phases))
}

/// Registers the upper layers' functions that lower layers call.
fn register() {
    lock::answer_calls_by(ipi::answer_or_stop);
    stop::PID.call_once(|| {
        || {
            sched::current()
                .and_then(task_table::at)
                .map_or(0, Task::pid)
        }
    });
    irq::on_tick(sched::tick);
    fatal::panic::EXPLAIN.call_once(|| fault::why);
    fatal::panic::TASK_STACKS.call_once(|| sched::stack::holds);
    off::CAME_BACK.call_once(|| sched::admit);
    task::next_kernel::NEXT_KERNEL.call_once(|| kexec::syscall::NEXT_KERNEL);
    fatal::panic::DETAIL.call_once(|| module::guard::explain);
    task::modules::MODULES.call_once(|| module::syscall::MODULES);
    task::sources::SOURCES.call_once(|| sources::SOURCES);
}

/// Most bytes of the command line that are kept, as in Linux.
const MOST_BOOTARGS: usize = 2048;

/// Copies the kernel's command line out of the device tree, whose mapping is dropped later.
fn bootargs<'a>(handover: &Handover, into: &'a mut [u8; MOST_BOOTARGS]) -> &'a [u8] {
    let tree = &handover.tree;
    let length = firmware::with_tree(handover, |bytes| {
        let start = tree.bootargs_offset as usize;
        let all = start..start.saturating_add(tree.bootargs_bytes as usize);
        // Offset and length were checked against the tree's size with the MMU off.
        let line = bytes.get(all).unwrap_or_default();
        if line.len() > into.len() {
            println!(
                "granule: the command line has {} bytes; only {MOST_BOOTARGS} are read",
                line.len()
            );
        }
        let mut length = 0;
        for (to, from) in into.iter_mut().zip(line) {
            *to = *from;
            length += 1;
        }
        length
    });
    into.get(..length).unwrap_or_default()
}

/// Prints the consoles that cannot be used. A value that is not understood is printed with the
/// other words.
fn passed_over(consoles: &Consoles) {
    for (source, error) in consoles.passed_over() {
        if error != ConsoleError::NotUnderstood {
            println!("granule: not the console: {} {error}", source.name());
        }
    }
}

/// Prints what the last owner of the machine left on.
fn by_last_owner(devices: &LeftOn, on_cpu: [Option<&str>; 2]) {
    for name in on_cpu.into_iter().flatten() {
        println!("granule: {name} was left on; turned off");
    }
    for (count, what) in [
        (
            devices.lpis,
            "redistributors had LPIs left on, which write memory; turned off",
        ),
        (
            devices.lpis_stay,
            "redistributors have LPIs on that cannot be turned off: they may write memory that this kernel uses",
        ),
        (
            devices.smmus,
            "SMMUs were left on, and stay so: devices behind them may write memory that this kernel uses",
        ),
    ] {
        if count > 0 {
            println!("granule: {count} {what}");
        }
    }
}

/// Prints what describes the machine, and what of it is not used.
fn of_firmware(expanded: &Expanded) {
    let what = if expanded.is_acpi {
        "ACPI's tables"
    } else {
        "the device tree"
    };
    println!("granule: memory by the EFI memory map, the rest by {what}");
    for note in expanded.notes.iter() {
        println!("granule: {note}");
    }
    match expanded.notes.more() {
        0 => {}
        more => println!("granule: {more} more of the same kind"),
    }
}

fn banner(handover: &Handover) {
    let entry = &handover.entry;
    println!("granule {}", env!("CARGO_PKG_VERSION"));
    println!(
        "granule: CPU {:#010x}, entered at EL{}, runs at EL{}{}",
        entry.midr,
        entry.entry_el,
        entry.run_el,
        if entry.vhe == 1 { " (VHE)" } else { "" }
    );
    println!(
        "granule: image at {:#x}, device tree at {:#x}",
        entry.load, entry.dtb
    );
}

/// Ends the kernel in order. User programs may have failed.
fn finish(ended: Ended) -> ! {
    report::boot_stack(boot_stack::most_used(), boot_stack::bytes());
    match ended {
        Ok(()) => println!("@granule outcome=ok\n@granule end"),
        Err(why) => {
            println!("granule: {why}");
            println!("@granule outcome=guest-exit\n@granule reason={why}\n@granule end");
        }
    }
    boot_record::finished(None);
    // Under the lock: other CPUs may be merging, and the trace must not end inside a change.
    kernel_tables::hold(|| recorder::finish(true));
    console::flush();
    power::off()
}
