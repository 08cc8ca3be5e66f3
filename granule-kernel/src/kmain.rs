//! The kernel from its first instruction at a virtual address.

use crate::console::println;
use crate::counter::InstructionCounter;
use crate::handover::Handover;
use crate::mmu_off::record;
use crate::pl011::Pl011;
use crate::{console, cpu, exception, hooks, layout, psci};

/// Where `head::mmu_on` jumps: on the boot stack, in the boot tables, with the
/// identity map still in TTBR0.
#[unsafe(no_mangle)]
extern "C" fn kmain_entry(handover: &'static Handover) -> ! {
    exception::init();
    psci::init(handover.tree.psci);
    if handover.tree.uart != 0 {
        // SAFETY: the boot tables map the UART there, as Device memory, for good.
        console::init(unsafe {
            Pl011::new(layout::in_slot(layout::UART_VADDR, handover.tree.uart))
        });
    }
    banner(handover);
    hooks::run(bootargs(handover));
    boot(handover);
    finish()
}

/// The kernel's command line.
fn bootargs(handover: &Handover) -> &'static [u8] {
    let start = layout::dtb_vaddr(handover.entry.dtb) + handover.tree.bootargs_offset;
    if handover.tree.bootargs_bytes == 0 {
        return b"";
    }
    // SAFETY: the tree is mapped read-only in its window for as long as the kernel
    // runs; offset and length were checked against its size with the MMU off.
    unsafe {
        core::slice::from_raw_parts(start as *const u8, handover.tree.bootargs_bytes as usize)
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
    println!("granule: bootargs: {}", bootargs(handover).escape_ascii());
}

/// Everything that depends on the page size.
fn boot(handover: &Handover) {
    let _counter = instruction_counter(handover);
    println!("@granule page_size={}", 1u64 << handover.tree.page_shift);
    println!("@granule entry_el={}", handover.entry.entry_el);
    println!("@granule run_el={}", handover.entry.run_el);
    println!("@granule vhe={}", handover.entry.vhe == 1);
}

/// The instruction counter, if the command line asks for one and it works.
fn instruction_counter(handover: &Handover) -> Option<InstructionCounter> {
    let wanted = bootargs(handover)
        .split(|byte| *byte == b' ')
        .any(|word| word == b"granule.count=instructions");
    if !wanted {
        return None;
    }
    match InstructionCounter::new(handover.entry.dfr0, handover.entry.run_el == 2) {
        Ok(counter) => {
            println!("granule: counting instructions by {counter}");
            Some(counter)
        }
        Err(error) => {
            println!("granule: {error}");
            None
        }
    }
}

/// The good end.
fn finish() -> ! {
    println!("@granule outcome=ok\n@granule end");
    record::finished(None);
    console::flush();
    psci::system_off();
    cpu::halt()
}
