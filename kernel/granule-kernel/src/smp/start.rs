//! Starts the secondary CPUs, one after the other, from the boot CPU.
//!
//! No failure here is fatal: a machine on which no other CPU can be started runs with one CPU, and
//! the boot record has the reason.

#![allow(unsafe_code, reason = "the entry's address, which the linker defines")]

use super::hook::CPUS;
use super::inputs::{BringUp, Obstacle};
use super::place::{self, CpuPlace};
use super::{identity as identity_map, interrupts, release, secondary, state};
use crate::arch::{cpu, image};
use crate::cpu::identity;
use crate::dev::console::println;
use crate::dev::psci;
use crate::handover::mailbox::{self, Command, Disguise, Doorbell, FITS, Mailbox, Report};
use crate::handover::parking;
use crate::percpu::stacks::{self, STACK_BYTES};
use crate::percpu::{self, PerCpu, per_cpu};
use crate::trace::{bring_up, recorder};
use arrayvec::ArrayVec;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::CpuFeatures;
use granule::hw::cache;
use granule_boot::tree::{Range, Tree};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::cpus::common::Common;
use granule_kcore::cpus::compare::Needs;
use granule_kcore::devicetree::cpus::{self as tree, EnableMethod, Found, NotStarted, Other};
use granule_kcore::devicetree::memory::is_taken;
use granule_kcore::line::Line;
use granule_kcore::timeout::Patience;
use thiserror::Error;

/// The most lines about CPUs that are not up; further ones are counted.
const MOST_LINES: usize = 32;

/// The facts about a CPU that is up.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) number: usize,
    pub(crate) affinity: u64,
    pub(crate) features: CpuFeatures,
    pub(crate) entry_el: u64,
    pub(crate) run_el: u64,
    /// Number of addresses that the CPU translated for the self-check.
    pub(crate) translations: AtomicU64,
}

per_cpu! {
    static FACTS: spin::Once<Facts> = spin::Once::new();
}

/// The facts about CPU `number`, if it is up.
pub(super) fn facts_of(number: usize) -> Option<&'static Facts> {
    FACTS.of(number)?.get()
}

/// The facts about the CPUs that are up, ascending.
pub(crate) fn facts() -> impl Iterator<Item = &'static Facts> + Clone {
    (0..percpu::ready()).filter_map(facts_of)
}

/// The result of starting the CPUs.
#[derive(Debug)]
pub(crate) struct Started {
    /// Number of CPUs in the device tree, the boot CPU included.
    pub(crate) expected: usize,
    /// Why CPUs are not up, one line each.
    pub(crate) mismatches: ArrayVec<Line<224>, MOST_LINES>,
    /// Number of lines that `mismatches` has no room for.
    more: usize,
    /// The features that all running CPUs share.
    pub(crate) common: Common,
    /// Whether the identity map and its pages stay in use.
    pub(crate) needs_identity: bool,
}

impl Started {
    fn complain(&mut self, text: fmt::Arguments<'_>) {
        // One line is left for the sum.
        if self.mismatches.len() < MOST_LINES - 1 {
            self.say(text);
        } else {
            self.more += 1;
        }
    }

    fn say(&mut self, text: fmt::Arguments<'_>) {
        println!("granule: {text}");
        let mut line = Line::new();
        // Text that does not fit is cut off.
        let _ = line.write_fmt(text);
        let _ = self.mismatches.try_push(line);
    }

    fn sum_up(&mut self) {
        if self.more > 0 {
            let more = self.more;
            self.say(format_args!(
                "{more} more CPUs are not up, for such reasons"
            ));
        }
    }
}

/// The CPUs that can be started, before any is.
#[derive(Default)]
struct Counted {
    psci: usize,
    released: usize,
}

impl Found<'_> for Counted {
    fn is_known(&self, _: u64) -> bool {
        false
    }

    fn found(&mut self, other: Other) {
        match other.by {
            EnableMethod::Psci => self.psci += 1,
            EnableMethod::SpinTable { .. } => self.released += 1,
        }
    }

    fn left_out(&mut self, _: NotStarted<'_>) {}
}

/// Tells of the CPUs that cannot be started, and starts none.
struct TellsOnly<'s>(&'s mut Started);

impl Found<'_> for TellsOnly<'_> {
    fn is_known(&self, affinity: u64) -> bool {
        percpu::is_known(affinity)
    }

    fn found(&mut self, _: Other) {}

    fn left_out(&mut self, cpu: NotStarted<'_>) {
        self.0.complain(format_args!("{cpu}"));
    }
}

/// Starts each CPU that is found.
struct Starter<'s, 'm, 'a, 'r> {
    machine: &'m mut BringUp<'a, 'r>,
    started: &'s mut Started,
    needs: Needs,
    psci: bool,
    /// Why no further CPU gets a place: there is no memory for it.
    full: Option<Obstacle>,
    /// Number of CPUs that get no place, of those beyond the most that may run, and of those that nobody waits
    /// for any more.
    without_place: usize,
    beyond: usize,
    too_late: usize,
    patience: Patience,
}

impl Starter<'_, '_, '_, '_> {
    fn most(&self) -> usize {
        self.machine.parameters.most_cpus.min(MOST_CPUS)
    }

    fn sum_up(&mut self) {
        let (without_place, beyond, most) = (self.without_place, self.beyond, self.most());
        if let Some(obstacle) = &self.full {
            self.started.complain(format_args!(
                "from CPU {} on none is started, {without_place} in all: {obstacle}",
                percpu::ready()
            ));
        }
        if self.too_late > 0 {
            let (count, seconds) = (self.too_late, Patience::MOST);
            self.started.complain(format_args!(
                "{count} more CPUs are not started: {seconds} s were spent on CPUs that did not come up"
            ));
        }
        if beyond > 0 {
            let limit = if most < MOST_CPUS {
                "maxcpus="
            } else {
                "this kernel"
            };
            self.started.complain(format_args!(
                "from CPU {most} on none is started, {beyond} in all: {limit} allows {most}"
            ));
        }
    }
}

impl Found<'_> for Starter<'_, '_, '_, '_> {
    fn is_known(&self, affinity: u64) -> bool {
        percpu::is_known(affinity)
    }

    fn found(&mut self, other: Other) {
        // A CPU that does not come up keeps its number.
        let number = percpu::ready();
        if number >= self.most() {
            self.beyond += 1;
            return;
        }
        let Some(patience) = self.patience.next() else {
            self.too_late += 1;
            return;
        };
        let place = match &self.full {
            None => place::prepare(self.machine, other.affinity),
            Some(_) => {
                self.without_place += 1;
                return;
            }
        };
        let place = match place {
            Ok(place) => place,
            Err(obstacle) => {
                self.full = Some(obstacle);
                self.without_place = 1;
                return;
            }
        };
        let by_psci = self.psci;
        match start_one(self.machine, &place, other, &self.needs, by_psci, patience) {
            Ok(facts) => {
                percpu::now_online(number);
                self.started.common = self.started.common.and(&facts.features);
                if let Some(slot) = FACTS.of(number) {
                    slot.call_once(|| facts);
                }
            }
            Err(failure) => {
                if let Failure::Late { .. } = failure {
                    self.patience.in_vain(patience);
                }
                let affinity = other.affinity;
                self.started
                    .complain(format_args!("CPU {number} (MPIDR {affinity:#x}) {failure}"));
            }
        }
    }

    fn left_out(&mut self, cpu: NotStarted<'_>) {
        self.started.complain(format_args!("{cpu}"));
    }
}

/// Starts every CPU that the device tree names.
#[inline(never)]
pub(crate) fn start(machine: &mut BringUp<'_, '_>) -> Started {
    let boot_cpu = machine.handover.entry.features();
    let affinity = percpu::this().affinity.load(Ordering::Relaxed);
    let mut started = Started {
        expected: 1,
        mismatches: ArrayVec::new(),
        more: 0,
        common: Common::of_boot_cpu(&boot_cpu, machine.errata),
        needs_identity: false,
    };
    FACTS.this().call_once(|| Facts {
        number: 0,
        affinity,
        features: boot_cpu,
        entry_el: machine.handover.entry.entry_el,
        run_el: machine.handover.entry.run_el,
        translations: AtomicU64::new(machine.translations),
    });
    // The memory map came from this tree, so it is readable.
    let Ok(fdt) = Tree::new(machine.tree) else {
        return started;
    };
    let mut counted = Counted::default();
    started.expected = tree::cpus(&fdt, affinity, &mut counted);
    let others = counted.psci + counted.released;
    if others == 0 || machine.parameters.most_cpus == 1 {
        tree::cpus(&fdt, affinity, &mut TellsOnly(&mut started));
        if others > 0 {
            started.complain(format_args!(
                "no other CPU is started: maxcpus= allows 1, the device tree names {others} more"
            ));
        }
        if machine.has_programs {
            match interrupts::prepare(machine, &fdt) {
                Ok(()) => cpu::unmask_interrupts(),
                Err(obstacle) => println!("granule: there are no interrupts: {obstacle}"),
            }
        }
        started.sum_up();
        return started;
    }
    secondary::go_on_with(machine.idle);
    let psci = psci::is_there() && tree::has_psci(&fdt);
    let prepared = if counted.released == 0 && !psci {
        Err(Obstacle::NoPsci)
    } else {
        prepare(machine, &fdt, &mut started)
    };
    match prepared {
        Ok(needs) => {
            // Includes CPUs that will not come up, because those are not known yet.
            let most = machine.parameters.most_cpus.min(MOST_CPUS);
            let page_bytes = machine.request.geometry.page_size().bytes();
            let level = started.common.bbm_level;
            recorder::machine((others + 1).min(most), page_bytes, level);
            start_all(machine, &fdt, &mut started, needs, psci);
            let level = started.common.bbm_level;
            recorder::machine(percpu::ready(), page_bytes, level);
        }
        Err(obstacle) => {
            tree::cpus(&fdt, affinity, &mut TellsOnly(&mut started));
            started.complain(format_args!("no other CPU is started: {obstacle}"));
        }
    }
    started.sum_up();
    started
}

/// Prepares once: a way to call CPUs, and a place to park them.
fn prepare(
    machine: &mut BringUp<'_, '_>,
    fdt: &Tree<'_>,
    started: &mut Started,
) -> Result<Needs, Obstacle> {
    interrupts::prepare(machine, fdt)?;
    let (request, handover) = (machine.request, machine.handover);
    let lower = machine.roots.lower;
    started.needs_identity = true;
    identity_map::prepare(
        request,
        handover,
        machine.roots,
        machine.memory,
        parking::addresses(),
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

fn start_all(
    machine: &mut BringUp<'_, '_>,
    fdt: &Tree<'_>,
    started: &mut Started,
    needs: Needs,
    psci: bool,
) {
    // This CPU must answer calls as soon as another CPU is up.
    cpu::unmask_interrupts();
    let affinity = percpu::this().affinity.load(Ordering::Relaxed);
    let mut starter = Starter {
        machine,
        started,
        needs,
        psci,
        full: None,
        without_place: 0,
        beyond: 0,
        too_late: 0,
        patience: Patience::default(),
    };
    tree::cpus(fdt, affinity, &mut starter);
    starter.sum_up();
    identity::leave();
}

/// Restarts a CPU that was up before and is off now. Its stacks, command and tables still exist.
pub(super) fn again(number: usize) -> Result<(), Failure> {
    let (Some(cpu), Some(mailbox)) = (percpu::of(number), place::mailbox(number)) else {
        return Err(Failure::NEVER);
    };
    for which in 0..stacks::STACKS {
        let bottom = stacks::bottom(number, which);
        // The stack was written through the caches, and the CPU's first writes bypass them.
        cache::clean_and_invalidate(bottom..bottom + STACK_BYTES);
    }
    let state = state::of(number).ok_or(Failure::NEVER)?;
    state.store(state::STARTING, Ordering::Release);
    let affinity = cpu.affinity.load(Ordering::Relaxed);
    let command = place::physical(number, mailbox.command_address());
    mailbox::ring(affinity, command);
    psci::cpu_on(affinity, identity::physical(entry_address())).map_err(Failure::Psci)?;
    wait(cpu, mailbox, Patience::LONG)?;
    percpu::now_online(number);
    Ok(())
}

/// Why one CPU is not up.
#[derive(Debug, Error)]
pub(super) enum Failure {
    #[error("is not started: {0}")]
    Obstacle(Obstacle),
    #[error("is not started: the firmware refuses: {0}")]
    Psci(smccc::psci::Error),
    #[error("is parked: {0}")]
    Parked(granule_kcore::cpus::compare::Mismatch),
    #[error(
        "is off again: it cannot take interrupts (a GICv3 has no redistributor for it, or no list \
         names its Aff0 of 16 or more)"
    )]
    Interrupts,
    #[error("did not come up: started {seconds} s ago, it {}", progress(*.state))]
    Late { state: u64, seconds: u64 },
}

/// How far a CPU came by its report.
const fn progress(state: u64) -> &'static str {
    match state {
        mailbox::NOT_ENTERED => "has not reached the image",
        FITS => "was about to turn its MMU on",
        _ => "has reached the image, but not compared itself with the boot CPU",
    }
}

impl Failure {
    /// The CPU has no place to come up in.
    const NEVER: Self = Self::Late {
        state: mailbox::NOT_ENTERED,
        seconds: 0,
    };
}

fn start_one(
    machine: &mut BringUp<'_, '_>,
    place: &CpuPlace,
    other: Other,
    needs: &Needs,
    psci: bool,
    patience: u64,
) -> Result<Facts, Failure> {
    let CpuPlace { cpu, mailbox, .. } = *place;
    let number = cpu.number();
    if other.by == EnableMethod::Psci && !psci {
        return Err(Failure::Obstacle(Obstacle::NoPsci));
    }
    if let EnableMethod::SpinTable { release } = other.by
        && is_own(machine, release)
    {
        return Err(Failure::Obstacle(Obstacle::ReleaseTaken(release)));
    }
    if let Some(state) = state::of(number) {
        state.store(state::STARTING, Ordering::Release);
    }
    let report = place::physical(number, mailbox.report_address());
    let command = mailbox.leave(&Command {
        report,
        stack_bottom: place.stack,
        stack_top: place.stack + STACK_BYTES,
        stack_top_virtual: stacks::bottom(number, 0) + STACK_BYTES,
        entry: secondary::entry(),
        argument: &raw const *cpu as u64,
        mmu: machine.handover.mmu,
        needs: Some(*needs),
        disguise: CPUS.get().map_or(Disguise::NONE, |hook| {
            (hook.disguise)(machine.parameters, number)
        }),
    });
    // Besides its command, and the doorbell that names it, the CPU reads only the image's text with its caches
    // bypassed. The text has not been written since the loader did.
    let entry = identity::physical(entry_address());
    let command = place::physical(number, command);
    bring_up::command_left(command, size_of::<Command>() as u64);
    let doorbell = mailbox::ring(other.affinity, command);
    bring_up::command_left(identity::physical(doorbell), size_of::<Doorbell>() as u64);
    match other.by {
        EnableMethod::Psci => psci::cpu_on(other.affinity, entry).map_err(Failure::Psci)?,
        EnableMethod::SpinTable { release: address } => {
            if let Some(for_good) = state::is_for_good(number) {
                for_good.store(true, Ordering::Relaxed);
            }
            let released = release::release(machine, address, entry);
            released.map_err(|error| Failure::Obstacle(Obstacle::Tables(error)))?;
        }
    }
    wait(cpu, mailbox, patience)?;
    let seen = mailbox.look();
    bring_up::lines_dropped(report, size_of::<Report>() as u64);
    Ok(Facts {
        number,
        affinity: other.affinity,
        features: seen.features(),
        entry_el: seen.entry_el,
        run_el: seen.run_el,
        translations: AtomicU64::new(0),
    })
}

/// Whether the eight bytes at this physical address are the kernel's own.
fn is_own(machine: &BringUp<'_, '_>, release: u64) -> bool {
    let (entry, trace) = (&machine.handover.entry, &machine.handover.trace);
    let own = [
        (entry.load, image::bytes()),
        (entry.dtb, machine.handover.tree.bytes),
        (trace.start, trace.bytes),
    ];
    let own = own.map(|(start, bytes)| Range { start, bytes });
    is_taken(
        machine.tree,
        machine.memory,
        &own,
        Range {
            start: release,
            bytes: 8,
        },
    )
}

fn entry_address() -> u64 {
    unsafe extern "C" {
        static secondary_entry: u8;
    }
    &raw const secondary_entry as u64
}

fn wait(cpu: &PerCpu, mailbox: &Mailbox, seconds: u64) -> Result<(), Failure> {
    let Some(state) = state::of(cpu.number()) else {
        return Err(Failure::NEVER);
    };
    let mut timeout = cpu::timeout(seconds);
    loop {
        match state.load(Ordering::Acquire) {
            state::UP => return Ok(()),
            state::FAILED => return Err(Failure::Interrupts),
            _ => {}
        }
        let report = mailbox.look();
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
                let state = report.state;
                return Err(Failure::Late { state, seconds });
            }
        }
        cpu::relax();
    }
}
