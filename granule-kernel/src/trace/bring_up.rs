//! What CPUs do to themselves beside changing tables: coming up, leaving the identity map, and being
//! parked.
//!
//! A CPU whose MMU is off, or that is off the kernel's tables, cannot reach the records. What it did
//! until it came up it writes down itself, as its first words, while the boot CPU waits for it. What
//! it does when it is parked the CPU that parks it writes down: the leaving when it is over, the
//! coming back before it begins. So in the trace a CPU is on the tables for longer than it was,
//! which can make a checker stricter, never more lenient: nothing that is changed meanwhile is
//! changed while a CPU that walks it is told to be away.

use super::recorder;
use super::routine::{Teller, before_tables, with_tables};
use crate::arch::cpu;
use crate::handover::mailbox::{Command, Report};
use granule::hw;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::trace::entry_code::{
    CLEAN, CLEAN_AND_INVALIDATE, ENABLE_MMU, INVALIDATE, PARK, PARK_CODE, SECONDARY_ENTRY,
    SETUP_EL2, SETUP_RUN_LEVEL, When,
};
use granule_trace::{Barrier, Event, System};

/// The registers of a CPU that goes off the tables and comes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roots {
    /// TTBR0 of the identity map.
    pub(crate) identity: u64,
    /// Either half's with nothing mapped.
    pub(crate) empty: u64,
}

/// As [`cpu::set_ttbr0_el1`].
///
/// # Safety
///
/// As for that.
pub(crate) unsafe fn set_ttbr0_el1(value: u64) {
    recorder::tell(|trace| {
        // SAFETY: the caller's promise.
        unsafe { cpu::set_ttbr0_el1(value) };
        trace.push(Event::System(System::TTBR0_EL1, value));
        trace.push(Event::Barrier(Barrier::ISB));
    });
}

/// As [`cpu::tlbi_vmalle1_local`].
pub(crate) fn tlbi_vmalle1_local() {
    recorder::tell(|trace| {
        cpu::tlbi_vmalle1_local();
        trace.push(Event::Barrier(Barrier::DSB_NSHST));
        trace.push(Event::System(System::VMALLE1, 0));
        trace.push(Event::Barrier(Barrier::DSB_NSH));
        trace.push(Event::Barrier(Barrier::ISB));
    });
}

/// DSB ISHST.
pub(crate) fn dsb_ishst() {
    recorder::tell(|trace| {
        hw::dsb_ishst();
        trace.push(Event::Barrier(Barrier::DSB_ISHST));
    });
}

/// A command of so many bytes was left at a physical address and cleaned.
pub(crate) fn command_left(start: u64, bytes: u64) {
    recorder::tell(|trace| {
        trace.data(start, bytes);
        trace.lines(&CLEAN, start, bytes);
    });
}

/// A report at a physical address, written past the caches, was read after its lines were dropped.
pub(crate) fn report_read(start: u64) {
    recorder::tell(|trace| {
        trace.lines(&CLEAN_AND_INVALIDATE, start, size_of::<Report>() as u64);
    });
}

/// What this CPU did since it was switched on: `head::secondary`, `mmu_off::secondary` and
/// `head::mmu_on`.
pub(crate) fn came_up(command: &Command, report: &Report) {
    let early = |system| Event::System(system, before_tables(system));
    recorder::tell(|trace| {
        let at_el2 = report.entry_el == 2;
        let when = if at_el2 {
            When::EnteredAtEl2
        } else {
            When::EnteredAtEl1
        };
        trace.ran(&SECONDARY_ENTRY, when, early);
        if at_el2 {
            let when = if report.run_el == 2 {
                When::Vhe
            } else {
                When::NoVhe
            };
            trace.ran(&SETUP_EL2, when, early);
        }
        trace.ran(&SETUP_RUN_LEVEL, When::Always, early);
        trace.data(command.report, size_of::<Report>() as u64);
        let bytes = command.stack_top - command.stack_bottom;
        trace.lines(&INVALIDATE, command.stack_bottom, bytes);
        trace.ran(&ENABLE_MMU, When::Always, |system| {
            Event::System(system, with_tables(&command.mmu, system))
        });
    });
}

/// These CPUs are parked.
pub(crate) fn parked(cpus: CpuSet, roots: Roots) {
    for number in cpus.iter() {
        recorder::tell(|trace| {
            let other = trace.on(number);
            let event = |system| Event::System(system, of(system, roots.identity, roots.empty));
            other.ran(&PARK, When::Leaving, event);
            other.ran(&PARK_CODE, When::Leaving, event);
        });
    }
}

/// They are about to come back.
pub(crate) fn returning(cpus: CpuSet, roots: Roots) {
    let kernel = cpu::ttbr1_el1();
    for number in cpus.iter() {
        recorder::tell(|trace| {
            let other = trace.on(number);
            let event = |system| Event::System(system, of(system, roots.empty, kernel));
            other.ran(&PARK_CODE, When::Returning, event);
            other.ran(&PARK, When::Returning, event);
        });
    }
}

/// What is written to a register; nothing for a TLBI.
fn of(system: System, ttbr0: u64, ttbr1: u64) -> u64 {
    if system == System::TTBR0_EL1 {
        ttbr0
    } else if system == System::TTBR1_EL1 {
        ttbr1
    } else {
        0
    }
}
