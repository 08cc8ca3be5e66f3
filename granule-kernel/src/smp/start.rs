//! Starts the secondary CPUs, one after the other, from the boot CPU.
//!
//! No failure here is fatal: a machine on which no other CPU can be started runs with one CPU, and the boot
//! record says why.

use super::hook::CPUS;
use super::{identity as identity_map, secondary, state};
use crate::arch::cpu;
use crate::cpu::identity;
use crate::dev::console::println;
use crate::dev::registry;
use crate::dev::timer;
use crate::dev::{gic, psci};
use crate::handover::mailbox::{self, Command, Disguise, FITS};
use crate::handover::parking;
use crate::handover::{BootRoots, Handover};
use crate::mm::early_tables::EarlyTables;
use crate::mm::map::Request;
use crate::mm::table_allocator::KernelTableAllocator;
use crate::percpu::stacks::{self, STACK_BYTES};
use crate::percpu::{self, PerCpu};
use crate::trace::bring_up;
use crate::trace::recorder;
use arrayvec::ArrayVec;
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::Ordering;
use granule::arch::errata::Errata;
use granule::arch::{Attributes, CpuFeatures, Permissions, PhysicalAddress, VirtualAddress};
use granule::hw::cache;
use granule::table::{Counters, Leaves, Piece, TableError};
use granule_boot::memblock::Direction;
use granule_boot::tree::Tree;
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::common::Common;
use granule_kcore::cpus::compare::Needs;
use granule_kcore::devicetree::cpus::{self as tree, Cpus};
use granule_kcore::devicetree::gic as gic_tree;
use granule_kcore::devicetree::gic::Gic;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::layout;
use granule_kcore::line::Line;
use granule_kcore::parameters::Parameters;

/// Seconds from CPU_ON until a CPU must be up.
const PATIENCE_S: u64 = 5;

/// Most bytes of a redistributor region that are mapped: 64 CPUs with redistributors of the larger kind.
const MOST_REDISTRIBUTORS: u64 = 16 << 20;

/// The facts about a CPU that is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) number: usize,
    pub(crate) affinity: u64,
    pub(crate) features: CpuFeatures,
    pub(crate) entry_el: u64,
    pub(crate) run_el: u64,
    /// Number of addresses that the CPU translated for the self-check.
    pub(crate) translations: u64,
}

/// The result of starting the CPUs.
#[derive(Debug)]
pub(crate) struct Started {
    /// Number of CPUs in the device tree, the boot CPU included.
    pub(crate) expected: usize,
    /// The CPUs that are up, ascending.
    pub(crate) facts: ArrayVec<Facts, MOST_CPUS>,
    /// One line for each CPU that is not up.
    pub(crate) mismatches: ArrayVec<Line<224>, MOST_CPUS>,
    /// The features that all running CPUs share.
    pub(crate) common: Common,
    /// Whether the identity map and its page stay in use.
    pub(crate) needs_identity: bool,
}

impl Started {
    fn complain(&mut self, text: fmt::Arguments<'_>) {
        println!("granule: {text}");
        let mut line = Line::new();
        // Text that does not fit is cut off.
        let _ = line.write_fmt(text);
        // There is room for one line for each CPU. The console has any further line.
        let _ = self.mismatches.try_push(line);
    }
}

/// Why only this CPU can be used.
#[derive(Debug)]
pub(super) enum Obstacle {
    NoPsci,
    Gic(gic_tree::GicTreeError),
    GicDriver(gic::Error),
    GicPageSize,
    Tables(TableError),
    Memory(granule_boot::memblock::Error),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPsci => f.write_str(
                "the device tree has no psci node of version 0.2 or later with a method",
            ),
            Self::Gic(error) => write!(f, "{error}"),
            Self::GicDriver(error) => write!(f, "{error}"),
            Self::GicPageSize => {
                f.write_str("the interrupt controller's driver does not work with the page size")
            }
            Self::Tables(error) => write!(f, "something it needs cannot be mapped: {error}"),
            Self::Memory(error) => write!(f, "there is no memory for its stacks: {error}"),
        }
    }
}

/// The inputs of starting CPUs.
pub(crate) struct BringUp<'a, 'r> {
    pub(crate) request: &'a Request<'r>,
    pub(crate) handover: &'a Handover,
    pub(crate) roots: &'a BootRoots,
    pub(crate) memory: &'a mut Memory,
    pub(crate) tree: &'a [u8],
    pub(crate) parameters: &'a Parameters<'a>,
    /// Errata of the boot CPU, and those forced on the command line.
    pub(crate) errata: Errata,
    /// Number of addresses that the boot CPU translated for its self-check.
    pub(crate) translations: u64,
    /// Whether there may be user programs. Interrupts preempt them, so they need interrupts even with one
    /// CPU.
    pub(crate) has_programs: bool,
    /// The idle loop that each of the other CPUs enters.
    pub(crate) idle: fn(&'static PerCpu) -> !,
}

/// Starts every CPU that the device tree names.
// Not inlined: the boot's stack frame is large and stays under every later call.
#[inline(never)]
pub(crate) fn start(machine: &mut BringUp<'_, '_>) -> Started {
    let boot_cpu = machine.handover.entry.features();
    let affinity = percpu::this().affinity.load(Ordering::Relaxed);
    let mut started = Started {
        expected: 1,
        facts: ArrayVec::new(),
        mismatches: ArrayVec::new(),
        common: Common::of_boot_cpu(&boot_cpu, machine.errata),
        needs_identity: false,
    };
    // The list has room for `MOST_CPUS`.
    let _ = started.facts.try_push(Facts {
        number: 0,
        affinity,
        features: boot_cpu,
        entry_el: machine.handover.entry.entry_el,
        run_el: machine.handover.entry.run_el,
        translations: machine.translations,
    });
    // The memory map came from this tree, so it is readable.
    let Ok(fdt) = Tree::new(machine.tree) else {
        return started;
    };
    let cpus = tree::cpus(&fdt, affinity, |cpu| {
        started.complain(format_args!("{cpu}"));
    });
    started.expected = cpus.expected;
    if cpus.others.is_empty() {
        if machine.has_programs {
            match prepare_interrupts(machine, &fdt) {
                Ok(()) => cpu::unmask_interrupts(),
                Err(obstacle) => println!("granule: there are no interrupts: {obstacle}"),
            }
        }
        return started;
    }
    secondary::go_on_with(machine.idle);
    match prepare(machine, &fdt, &mut started) {
        Ok(needs) => {
            // Includes CPUs that will not come up, because those are not known yet.
            let numbers = cpus.others.len() + 1;
            let page_bytes = machine.request.geometry.page_size().bytes();
            let level = started.common.bbm_level;
            recorder::machine(numbers, page_bytes, level);
            start_all(machine, &cpus, &needs, &mut started);
            let level = started.common.bbm_level;
            recorder::machine(numbers, page_bytes, level);
        }
        Err(obstacle) => {
            started.complain(format_args!("no other CPU is started: {obstacle}"));
        }
    }
    started
}

/// Prepares once: a way to start CPUs, a way to call them, and a place to park them.
fn prepare(
    machine: &mut BringUp<'_, '_>,
    fdt: &Tree<'_>,
    started: &mut Started,
) -> Result<Needs, Obstacle> {
    if !psci::is_there() || !tree::has_psci(fdt) {
        return Err(Obstacle::NoPsci);
    }
    let (request, handover) = (machine.request, machine.handover);
    prepare_interrupts(machine, fdt)?;
    let lower = machine.roots.lower;
    started.needs_identity = true;
    identity_map::prepare(
        request,
        handover,
        machine.roots,
        machine.memory,
        parking::page(),
    )
    .map_err(Obstacle::Tables)?;
    let entry = &handover.entry;
    Ok(Needs::new(
        &request.geometry,
        &lower,
        &entry.features(),
        entry.run_el as u32,
    ))
}

/// Sets up interrupts on this CPU, and what the others need for theirs.
fn prepare_interrupts(machine: &mut BringUp<'_, '_>, fdt: &Tree<'_>) -> Result<(), Obstacle> {
    let gic = gic_tree::gic(fdt).map_err(Obstacle::Gic)?;
    let page_size = machine.request.geometry.page_size();
    let driver = match gic {
        Gic::V2 { .. } => &gic::V2_DRIVER,
        Gic::V3 { .. } => &gic::V3_DRIVER,
    };
    if !registry::probe(driver, page_size) {
        return Err(Obstacle::GicPageSize);
    }
    let mapped = map_gic(machine, &gic).map_err(Obstacle::Tables)?;
    let at_el2 = machine.handover.entry.run_el == 2;
    if let Some(number) = gic_tree::timer(fdt, at_el2).filter(|_| machine.has_programs)
        && registry::probe(&timer::DRIVER, page_size)
    {
        timer::use_interrupt(number);
    }
    // SAFETY: the registers were just mapped, for good, and this is the only call.
    unsafe { gic::init(&mapped, percpu::this()) }.map_err(Obstacle::GicDriver)
}

fn start_all(machine: &mut BringUp<'_, '_>, cpus: &Cpus, needs: &Needs, started: &mut Started) {
    // This CPU must answer calls as soon as another CPU is up.
    cpu::unmask_interrupts();
    for (index, affinity) in cpus.others.iter().enumerate() {
        // A CPU that does not come up keeps its number.
        let number = index + 1;
        let Some(cpu) = percpu::of(number) else {
            break;
        };
        match start_one(machine, cpu, *affinity, needs) {
            Ok(facts) => {
                percpu::now_online(number);
                started.common = started.common.and(&facts.features);
                let _ = started.facts.try_push(facts);
            }
            Err(failure) => {
                started.complain(format_args!("CPU {number} (MPIDR {affinity:#x}) {failure}"));
            }
        }
    }
    identity::leave();
}

/// Restarts a CPU that was up before and is off now. Its stacks, command and tables still exist.
pub(super) fn again(number: usize) -> Result<(), Failure> {
    let (Some(cpu), Some(command)) = (percpu::of(number), mailbox::command_address(number)) else {
        return Err(Failure::Late(mailbox::NOT_ENTERED));
    };
    for which in 0..stacks::STACKS {
        let bottom = stacks::bottom(number, which);
        // The stack was written through the caches, and the CPU's first writes bypass them.
        cache::clean_and_invalidate(bottom..bottom + STACK_BYTES);
    }
    let state = state::of(number).ok_or(Failure::Late(mailbox::NOT_ENTERED))?;
    state.store(state::STARTING, Ordering::Release);
    let affinity = cpu.affinity.load(Ordering::Relaxed);
    let entry = identity::physical(entry_address());
    psci::cpu_on(affinity, entry, identity::physical(command)).map_err(Failure::Psci)?;
    wait(cpu)?;
    percpu::now_online(number);
    Ok(())
}

/// Why one CPU is not up.
#[derive(Debug)]
pub(super) enum Failure {
    Obstacle(Obstacle),
    Psci(smccc::psci::Error),
    Parked(granule_kcore::cpus::compare::Mismatch),
    Gic,
    Late(u64),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Obstacle(obstacle) => write!(f, "is not started: {obstacle}"),
            Self::Psci(error) => write!(f, "is not started: the firmware refuses: {error}"),
            Self::Parked(mismatch) => write!(f, "is parked: {mismatch}"),
            Self::Gic => f.write_str("is off again: it cannot take interrupts"),
            Self::Late(mailbox::NOT_ENTERED) => write!(
                f,
                "did not come up: started {PATIENCE_S} s ago, it has not reached the image"
            ),
            Self::Late(state) => write!(
                f,
                "did not come up: started {PATIENCE_S} s ago, it {}",
                if *state == FITS {
                    "was about to turn its MMU on"
                } else {
                    "has reached the image, but not compared itself with the boot CPU"
                }
            ),
        }
    }
}

fn start_one(
    machine: &mut BringUp<'_, '_>,
    cpu: &'static PerCpu,
    affinity: u64,
    needs: &Needs,
) -> Result<Facts, Failure> {
    let number = cpu.number();
    let [stack, exceptions] = map_stacks(machine, number).map_err(Failure::Obstacle)?;
    cpu.prepare(affinity, exceptions.end);
    if let Some(state) = state::of(number) {
        state.store(state::STARTING, Ordering::Release);
    }
    let report_at = mailbox::report_address(number).map_or(0, identity::physical);
    let command = Command {
        report: report_at,
        stack_bottom: stack.physical,
        stack_top: stack.physical + STACK_BYTES,
        stack_top_virtual: stack.end,
        entry: secondary::entry(),
        argument: &raw const *cpu as u64,
        mmu: machine.handover.mmu,
        needs: Some(*needs),
        disguise: CPUS.get().map_or(Disguise::NONE, |hook| {
            hook.disguise(machine.parameters, number)
        }),
    };
    let Some(command) = mailbox::leave(number, &command) else {
        return Err(Failure::Late(mailbox::NOT_ENTERED));
    };
    // Besides its command, the CPU reads only the image's text with its caches bypassed. The text has not
    // been written since the loader did.
    let entry = identity::physical(entry_address());
    let command = identity::physical(command);
    bring_up::command_left(command, size_of::<Command>() as u64);
    psci::cpu_on(affinity, entry, command).map_err(Failure::Psci)?;
    wait(cpu)?;
    let report = mailbox::look(number).unwrap_or_default();
    bring_up::report_read(report_at);
    Ok(Facts {
        number,
        affinity,
        features: CpuFeatures::new(report.registers()),
        entry_el: report.entry_el,
        run_el: report.run_el,
        translations: 0,
    })
}

fn entry_address() -> u64 {
    unsafe extern "C" {
        static secondary_entry: u8;
    }
    &raw const secondary_entry as u64
}

fn wait(cpu: &PerCpu) -> Result<(), Failure> {
    let Some(state) = state::of(cpu.number()) else {
        return Err(Failure::Late(mailbox::NOT_ENTERED));
    };
    let mut timeout = cpu::timeout(PATIENCE_S);
    loop {
        match state.load(Ordering::Acquire) {
            state::UP => return Ok(()),
            state::FAILED => return Err(Failure::Gic),
            _ => {}
        }
        let report = mailbox::look(cpu.number()).unwrap_or_default();
        if let Some(mismatch) = report.mismatch() {
            return Err(Failure::Parked(mismatch));
        }
        if timeout.is_over(cpu::counter_now()) {
            let gone = state.compare_exchange(
                state::STARTING,
                state::GIVEN_UP,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            // Or the CPU came up at this moment.
            if gone.is_ok() {
                return Err(Failure::Late(report.state));
            }
        }
        cpu::relax();
    }
}

/// Maps a piece in the upper VA range, with tables from early memory.
fn map(machine: &mut BringUp<'_, '_>, piece: Piece) -> Result<(), TableError> {
    let request = machine.request;
    let page_bytes = request.geometry.page_size().bytes();
    let allocator = KernelTableAllocator::Early(EarlyTables::new(machine.memory, page_bytes));
    // Secondary CPUs walk the tables but change nothing.
    request
        .open(allocator, &Counters::new())?
        .map_pieces(&[piece])
}

struct Stack {
    physical: u64,
    /// Virtual address of the top of the stack.
    end: u64,
}

/// Allocates and maps the stacks of a CPU.
fn map_stacks(machine: &mut BringUp<'_, '_>, number: usize) -> Result<[Stack; 2], Obstacle> {
    let stacks = [0, 1].map(|which| map_stack(machine, stacks::bottom(number, which)));
    let [own, exceptions] = stacks;
    Ok([own?, exceptions?])
}

fn map_stack(machine: &mut BringUp<'_, '_>, bottom: u64) -> Result<Stack, Obstacle> {
    let physical = machine
        .memory
        .allocate(STACK_BYTES, STACK_BYTES, 0..u64::MAX, Direction::TopDown)
        .map_err(Obstacle::Memory)?;
    let piece = Piece {
        start: VirtualAddress(bottom),
        output: PhysicalAddress(physical),
        bytes: STACK_BYTES,
        attributes: Attributes::normal(Permissions::READ_WRITE),
        leaves: Leaves::PAGES,
    };
    map(machine, piece).map_err(Obstacle::Tables)?;
    // The CPU first uses the stack with its MMU off. Cached lines of it must not be written back over that.
    cache::clean_and_invalidate(bottom..bottom + STACK_BYTES);
    Ok(Stack {
        physical,
        end: bottom + STACK_BYTES,
    })
}

/// Maps the registers of the interrupt controller.
fn map_gic(machine: &mut BringUp<'_, '_>, gic: &Gic) -> Result<gic::Mapped, TableError> {
    let slot = layout::FIXMAP_SLOT_BYTES;
    // One slot of registers of a distributor or CPU interface covers all known registers.
    let frame = |range: &Range<u64>| range.start..range.end.min(range.start + slot);
    match gic {
        Gic::V2 {
            distributor,
            cpu_interface,
        } => Ok(gic::Mapped::V2 {
            distributor: map_device(machine, layout::GIC_VADDR, slot, &frame(distributor))?,
            cpu_interface: map_device(
                machine,
                layout::GIC_VADDR + 4 * slot,
                slot,
                &frame(cpu_interface),
            )?,
        }),
        Gic::V3 {
            distributor,
            redistributors,
        } => {
            let distributor = map_device(machine, layout::GIC_VADDR, slot, &frame(distributor))?;
            let mut mapped = ArrayVec::new();
            let align = layout::REDISTRIBUTORS_ALIGN;
            let mut window = layout::REDISTRIBUTORS_VADDR;
            for region in redistributors {
                let bytes = (region.end - region.start).min(MOST_REDISTRIBUTORS);
                // CPUs whose redistributors have no place here are told when they look for them.
                if window + bytes + 2 * align > layout::REDISTRIBUTORS_END {
                    break;
                }
                let region = region.start..region.start + bytes;
                let start = map_device(machine, window, align, &region)?;
                // A page that is larger than the rest of the registers is mapped to its end.
                window = (start + bytes).next_multiple_of(align);
                // The list has room for every region that the tree can name.
                let _ = mapped.try_push(start..start + bytes);
            }
            Ok(gic::Mapped::V3 {
                distributor,
                redistributors: mapped,
            })
        }
    }
}

/// Maps `registers` in the address range at `window`, keeping the offset in `align`. Returns their virtual
/// address.
fn map_device(
    machine: &mut BringUp<'_, '_>,
    window: u64,
    align: u64,
    registers: &Range<u64>,
) -> Result<u64, TableError> {
    let page = machine.request.geometry.page_size().bytes();
    let first = registers.start & !(page - 1);
    // Where a page is larger than the registers, the rest of it is never accessed.
    let bytes = (registers.end - first).next_multiple_of(page);
    let start = window + (first & (align - 1));
    let piece = Piece {
        start: VirtualAddress(start),
        output: PhysicalAddress(first),
        bytes,
        attributes: Attributes::device(),
        leaves: Leaves::LARGEST,
    };
    map(machine, piece)?;
    Ok(start + (registers.start - first))
}
