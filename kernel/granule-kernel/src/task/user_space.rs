//! The start and end of user space. User space begins if the initramfs has an `/init` and ends with that
//! process; every frame is counted before and after.

#![allow(unsafe_code, reason = "the initramfs as bytes")]

use super::hook::TASKS;
use super::owned::PageFrames;
use super::platform::{self, Platform, Shape};
use super::random;
use super::task_table::builder::TaskBuilder;
use super::task_table::{self, Own, Task};
use super::{address_space, entry, exec, process, process_table};
use super::{file_cache, frames};
use super::{modules, next_kernel};
use crate::arch::cpu;
use crate::cpu::ipi;
use crate::dev::console::println;
use crate::dev::timer;
use crate::fatal::refuse;
use crate::mm::pages::{self, Counted};
use crate::mm::{kernel_tables, merge, sized};
use crate::percpu;
use crate::sched::switch::FpState;
use crate::sched::{self, registers};
use crate::trace::bring_up;
use core::fmt;
use core::ops::Range;
use granule::arch::errata::Workaround;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{CpuFeatures, Geometry, PageSize, PhysicalAddress, VaRange};
use granule::space::Settings;
use granule_kcore::cpus::common::Common;
use granule_kcore::frames::Frame;
use granule_kcore::parameters::Parameters;
use granule_kcore::user_sizes::{self, Unusable};
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::abi::{Errno, signal};
use granule_linux_abi::execve::TextList;
use granule_linux_abi::files::file_tree::NodeId;
use granule_linux_abi::script::{self, Script};
use thiserror::Error;

/// The most address bits of programs. Few programs need more, but many keep tags above bit 47.
const MOST_BITS: u32 = 48;

/// TCR.E0PD1: EL0 has no access to the upper half, and its attempts fault at level 0.
const E0PD1: u64 = 1 << 56;

/// The inputs for user space.
#[derive(Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) boot_cpu: CpuFeatures,
    /// The properties common to all CPUs.
    pub(crate) common: Common,
    /// Of the kernel's half.
    pub(crate) geometry: Geometry,
    /// The TLB capabilities of the kernel's half, for all CPUs.
    pub(crate) capabilities: TlbCapabilities,
    /// The end of RAM.
    pub(crate) ram_end: u64,
    /// The physical addresses of the initramfs.
    pub(crate) initrd: Option<Range<u64>>,
    pub(crate) parameters: &'a Parameters<'a>,
}

/// Why user space failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The first process ended with this status instead of 0.
    Init(u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Init(word) = *self;
        match (word & 0x7f, word >> 8 & 0xff) {
            (0, code) => write!(f, "the first process ended with {code}"),
            (signal, _) => write!(
                f,
                "the first process was ended by {} ({signal})",
                signal::name(signal as u8)
            ),
        }
    }
}

/// Runs `/init` of the initramfs, or the program named by `rdinit=`, and ends all processes when it
/// ends. Does nothing if there is no such program. Calls `up` before the program's first instruction.
// A call of its own: the boot's frame would have this one's in it.
#[inline(never)]
pub(crate) fn run(inputs: &Inputs<'_>, up: &mut dyn FnMut()) -> Result<(), Failure> {
    let path = inputs.parameters.init;
    if let Some(hook) = TASKS.get() {
        (hook.before_first)(inputs.parameters);
    }
    sched::TASK_CALLS.call_once(|| process::CALLS);
    let Some(archive) = archive(inputs) else {
        return Ok(());
    };
    if task_table::open().is_none() {
        println!("granule: there is no memory for a table of processes: no user space");
        return Ok(());
    }
    // Merge pending blocks now: a later merge frees tables and would distort the frame count.
    merge::merge_candidates();
    let before = sized::counted();
    if let Err(error) = process_table::open(archive) {
        println!("granule: {error}: no user space");
        return Ok(());
    }
    let Some(program) = process_table::program(path) else {
        println!(
            "granule: the initramfs has no {}: no user space",
            path.escape_ascii()
        );
        process_table::close();
        return Ok(());
    };
    let init = match interpreted(program).and_then(|first| begin(inputs, path, &first)) {
        Ok(init) => init,
        Err(why) => refuse::refuse(format_args!("{} cannot be run: {why}", path.escape_ascii())),
    };
    if !random::is_seeded() {
        println!(
            "granule: nothing seeds random numbers (no FEAT_RNG, and no rng-seed of 32 bytes in /chosen): getrandom \
             returns EAGAIN without GRND_INSECURE"
        );
    }
    if timer::interrupt().is_none() {
        println!("granule: no timer that interrupts: programs are not preempted");
    }
    up();
    while !process::none_left() {
        next_kernel::serve();
        if !sched::run_one() {
            wait();
        }
    }
    end();
    let word = task_table::status_of(init);
    report(word, before, sized::counted());
    if let Some(hook) = TASKS.get() {
        (hook.after_last)();
    }
    if word == (Status::Exited(0)).word() {
        Ok(())
    } else {
        Err(Failure::Init(word))
    }
}

/// The initramfs, through the linear map.
fn archive(inputs: &Inputs<'_>) -> Option<&'static [u8]> {
    let range = inputs.initrd.as_ref()?;
    let kernel = kernel_tables::kernel()?;
    let page = kernel.page();
    // A boot loader may name memory that is not mapped RAM.
    let mut pages = (range.start & !(page - 1)..range.end).step_by(page as usize);
    let mapped = pages.all(|address| {
        let address = kernel.placement.virtual_address(PhysicalAddress(address));
        address.is_some_and(|address| cpu::translate(address.0).is_ok())
    });
    if !mapped || range.is_empty() {
        println!(
            "granule: the initramfs, {:#x} to {:#x}, is not in RAM that is mapped: no user space",
            range.start, range.end
        );
        return None;
    }
    let start = kernel_tables::pointer(PhysicalAddress(range.start))?;
    let bytes = (range.end - range.start) as usize;
    // SAFETY: the range was just seen to be mapped. It stays reserved, and nothing writes it.
    Some(unsafe { core::slice::from_raw_parts(start.as_ptr(), bytes) })
}

/// Why the first process cannot start.
#[derive(Clone, Copy, Debug, Error)]
enum Refused {
    #[error("there is no memory for it")]
    Memory,
    /// The CPUs have too few ASIDs for so many CPUs.
    #[error(
        "the CPUs have {0}-bit ASIDs, too few for so many CPUs: boot with maxcpus={most}",
        most = (1u32 << .0) - 2
    )]
    Asids(u32),
    #[error("user space has no shape: {0}")]
    Geometry(granule::arch::GeometryError),
    #[error("{0:?}")]
    Program(Errno),
    /// The interpreter named by a script does not exist.
    #[error("its first line names {}, which is not a file in the initramfs", .0.escape_ascii())]
    Interpreter(&'static [u8]),
}

/// The program of the first process.
struct First {
    node: NodeId,
    program: &'static [u8],
    /// The script whose first line names the program, if `/init` is a script.
    script: Option<Script<'static>>,
}

/// The program itself, or the interpreter of a script.
fn interpreted((node, content): (NodeId, &'static [u8])) -> Result<First, Refused> {
    let script = script::read(content);
    let (node, program) = match &script {
        Some(script) => process_table::program(script.interpreter)
            .ok_or(Refused::Interpreter(script.interpreter))?,
        None => (node, content),
    };
    Ok(First {
        node,
        program,
        script,
    })
}

/// The shapes of the lower half for programs, and what goes with them.
fn platform(inputs: &Inputs<'_>) -> Result<Platform, Refused> {
    let (upper, common, cpu) = (&inputs.geometry, &inputs.common, &inputs.boot_cpu);
    let bits = upper.va_bits().min(MOST_BITS);
    let own = upper
        .with_va_range(cpu, VaRange::Lower, bits, upper.page_size())
        .map_err(Refused::Geometry)?;
    let dirty = common.hardware_dirty >= 2 && !common.errata.needs(Workaround::NoHardwareDirty);
    let settings = Settings {
        hardware_access: common.hardware_dirty >= 1,
        hardware_dirty: dirty,
        bbm: kernel_tables::kernel().map_or(Settings::PLAIN.bbm, |kernel| kernel.bbm),
        break_execute: common.errata.needs(Workaround::BreakOnExecuteRemoval),
        large_leaves: inputs.parameters.large_leaves,
        most_vmas: inputs.parameters.most_areas,
    };
    let mut tcr = Tcr::new(cpu, Some(&own), Some(upper));
    if settings.hardware_access {
        tcr.0 |= Tcr::HA;
    }
    if settings.hardware_dirty {
        tcr.0 |= Tcr::HD;
    }
    if common.e0pd {
        tcr.0 |= E0PD1;
    }
    let shapes = PageSize::ALL.map(|size| {
        if size == own.page_size() {
            return Some(Shape { lower: own, tcr });
        }
        match user_sizes::shape(size, upper, bits, cpu, common, inputs.ram_end) {
            Ok(lower) => Some(Shape {
                lower,
                tcr: tcr.with_lower(&lower)?,
            }),
            Err(why @ (Unusable::Wide | Unusable::Reach { .. })) => {
                println!("granule: programs cannot have {size} pages: {why}");
                None
            }
            _ => None,
        }
    });
    Ok(Platform {
        shapes,
        capabilities: inputs.capabilities,
        settings,
        end: own.span(),
        command_line: inputs.parameters.user_page_size,
    })
}

/// The bytes of the empty root: at least a page of the kernel's.
fn empty_root_bytes() -> u64 {
    let kernel = kernel_tables::kernel().map_or(1, kernel_tables::Kernel::page);
    let shapes = platform::get().map(|platform| platform.shapes.into_iter().flatten());
    let roots = shapes.map(|shapes| user_sizes::largest_root(shapes.map(|shape| shape.lower)));
    roots.unwrap_or(kernel).max(kernel)
}

fn empty_root_order() -> u32 {
    let kernel = kernel_tables::kernel().map_or(1, kernel_tables::Kernel::page);
    (empty_root_bytes() / kernel).trailing_zeros()
}

/// Opens user space on all CPUs and makes the first process.
fn begin(inputs: &Inputs<'_>, path: &[u8], first: &First) -> Result<&'static Task, Refused> {
    let common = &inputs.common;
    let platform = platform(inputs)?;
    platform::prepare(platform);
    if !address_space::are_numbers_enough(common.asid_bits) {
        return Err(Refused::Asids(common.asid_bits));
    }
    if !address_space::open_numbers(common.asid_bits) {
        return Err(Refused::Memory);
    }
    let own = platform.shape(inputs.geometry.page_size());
    let own = own.ok_or(Refused::Memory)?;
    let (bytes, order) = (empty_root_bytes(), empty_root_order());
    let empty_root = pages::allocate(order).ok_or(Refused::Memory)?;
    let empty_root = empty_root.address(inputs.geometry.page_size());
    frames::zero(empty_root, bytes);
    bring_up::zeroed_table(empty_root.0, bytes);
    bring_up::dsb_ishst();
    // SAFETY: the memory is an empty root table of every shape, which never changes. Address bits above 47 stand
    // at the same place for each shape that can be had where there is such RAM.
    let ttbr0 = unsafe { Ttbr::from_root(&own.lower, empty_root, 0) };
    registers::prepare(
        own.tcr,
        ttbr0.bits(),
        empty_root,
        platform.capabilities.repeat,
    );
    ipi::call(percpu::online(), &|_| registers::open());
    let texts = texts(path, first.script.as_ref(), inputs.parameters).map_err(Refused::Program)?;
    let loaded = exec::load(first.program, path, texts.texts(), None).map_err(Refused::Program)?;
    drop(texts);
    let frame = exec::first_frame(loaded.entry, loaded.stack_pointer);
    let own = Own {
        memory: Some(loaded.memory),
        heap: loaded.heap,
        clear_child_tid: 0,
    };
    let builder = TaskBuilder::new(None).ok_or(Refused::Memory)?;
    let place = builder.task().place();
    process_table::with(|processes| processes.begin(place, first.node))
        .map_err(Refused::Program)?;
    let init = builder
        .begin(&frame, &FpState::ZERO, 0, own, None)
        .map_err(|_| Refused::Memory)?;
    sched::open(true);
    sched::enqueue(init.place());
    Ok(init)
}

/// The arguments and environment of the first process. The arguments are the interpreter (for a script),
/// the path, and the words after `--` on the command line.
fn texts(
    path: &[u8],
    script: Option<&Script<'_>>,
    parameters: &Parameters<'_>,
) -> Result<TextList<PageFrames>, Errno> {
    let mut texts = TextList::new()?;
    if let Some(script) = script {
        texts.push_interpreter(script)?;
    }
    texts.push(path)?;
    for word in parameters.init_arguments() {
        texts.push(word)?;
    }
    texts.end_arguments();
    for text in [&b"HOME=/"[..], b"TERM=linux"] {
        texts.push(text)?;
    }
    Ok(texts)
}

/// The boot CPU's wait while no task is ready.
fn wait() {
    let masked = cpu::mask_interrupts();
    // Check with interrupts masked: a request for the next kernel sends only one interrupt.
    if sched::may_sleep() && !process::none_left() && !next_kernel::is_asked() {
        cpu::wait_for_interrupt();
    }
    sched::woke();
    cpu::restore_interrupts(masked);
    cpu::relax();
}

/// Closes user space on all CPUs.
fn end() {
    // No program is left that could leave for the next kernel.
    next_kernel::forget();
    modules::forget();
    sched::open(false);
    ipi::call(percpu::online(), &|_| registers::close());
    process_table::close();
    file_cache::close();
    // The empty root belongs to no program, and by now it is in no TTBR.
    let empty_root = registers::take_empty_root();
    bring_up::table_freed(empty_root.0, empty_root_bytes());
    if let Some(kernel) = kernel_tables::kernel() {
        let frame = Frame::containing(empty_root, kernel.geometry.page_size());
        // The frame statistics count a refused free.
        let _ = pages::free(frame, empty_root_order());
    }
    address_space::close_numbers();
}

fn report(word: u32, before: Counted, after: Counted) {
    let say = |key: &str, value: u64| println!("@granule user.{key}={value}");
    say("exit_code", u64::from(word >> 8 & 0xff));
    say("signal", u64::from(word & 0x7f));
    say("processes", task_table::made());
    say("most_processes", task_table::places() as u64);
    say("switches", sched::switches());
    say("faults", entry::faults());
    let done = address_space::done();
    say("pages.mapped", done.mapped);
    say("pages.copied", done.copied);
    say("pages.reused", done.reused);
    say("blocks.mapped", done.blocks);
    say("blocks.split", done.split);
    say("blocks.merged", done.merged);
    say("groups.mapped", done.groups);
    say("groups.folded", done.folded);
    say("groups.unfolded", done.unfolded);
    say("va_bits", platform::end().ilog2().into());
    say("frames_before", before.allocated);
    say("frames_after", after.allocated);
    if before.allocated != after.allocated || before.refused != after.refused {
        refuse::self_check_failed(format_args!(
            "user space left {} frames allocated that it made, and {} that were given back were refused",
            after.allocated as i64 - before.allocated as i64,
            after.refused - before.refused
        ));
    }
}
