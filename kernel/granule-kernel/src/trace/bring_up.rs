//! Records a CPU's own actions other than changes of tables: coming up, leaving the identity map, and
//! parking.
//!
//! A CPU with its MMU off, or off the kernel's tables, cannot access the records. A starting CPU records its
//! earlier actions itself, as soon as it is up, while the boot CPU waits for it. For a parked CPU, the CPU
//! that parks it records the departure once it is complete, and the return before it begins. So the trace
//! shows a CPU on the tables for longer than it was. That can make a checker stricter, never more lenient:
//! the trace never shows a CPU as away while it walks tables that are being changed.

#![allow(unsafe_code, reason = "registers of the CPU that comes up, recorded")]

use super::recorder::{self, Recorder};
use super::routine::{Teller, before_tables, entered_at, runs_at, with_tables};
use crate::arch::cpu::{self, Bare};
use crate::handover::mailbox::{Command, Report};
use granule::arch::registers::{Tcr, Ttbr};
use granule::hw;
use granule::space::switch::{self, Registers};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::trace::entry_code::{
    CLEAN, CLEAN_AND_INVALIDATE, ENABLE_MMU, INVALIDATE, PARK, PARK_CODE, SECONDARY_ENTRY,
    SETUP_EL2, SETUP_RUN_LEVEL, When,
};
use granule_trace::{Barrier, Event, System, Visibility};

/// The register values of a CPU that leaves the tables and returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roots {
    /// TTBR0 of the identity map.
    pub(crate) identity: u64,
    /// A TTBR value with nothing mapped, for either VA range.
    pub(crate) empty: u64,
}

/// As [`cpu::set_ttbr0_el1`], recorded.
///
/// # Safety
///
/// As for that function.
pub(crate) unsafe fn set_ttbr0_el1(value: u64) {
    recorder::in_order(|trace| {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { cpu::set_ttbr0_el1(value) };
        trace.push(Event::System(System::TTBR0_EL1, value));
        trace.push(Event::Barrier(Barrier::ISB));
    });
}

/// A switch from TCR `from` to `to` and the tables of `ttbr0`, recorded: [`switch::enter_anew`].
///
/// # Safety
///
/// As for that function.
// `inline(never)`: switches between programs of one page size do not come here.
#[cold]
#[inline(never)]
pub(crate) unsafe fn switch(from: Tcr, to: Tcr, ttbr0: Ttbr, repeat: bool) {
    recorder::in_order(|trace| {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { switch::enter_anew(&mut Switch(trace), from, to, ttbr0, repeat) };
    });
}

/// The instructions of a switch, each with its record.
struct Switch<'r>(&'r Recorder);

impl Registers for Switch<'_> {
    unsafe fn write_tcr(&mut self, value: Tcr) {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { Bare.write_tcr(value) };
        self.0.push(Event::System(System::TCR_EL1, value.0));
    }

    unsafe fn write_ttbr0(&mut self, value: Ttbr) {
        // SAFETY: as above.
        unsafe { Bare.write_ttbr0(value) };
        self.0.push(Event::System(System::TTBR0_EL1, value.bits()));
    }

    fn isb(&mut self) {
        Bare.isb();
        self.0.push(Event::Barrier(Barrier::ISB));
    }

    fn tlbi_all_local(&mut self) {
        Bare.tlbi_all_local();
        self.0.push(Event::System(System::VMALLE1, 0));
    }

    fn dsb_nsh(&mut self) {
        Bare.dsb_nsh();
        self.0.push(Event::Barrier(Barrier::DSB_NSH));
    }
}

/// Writes SCTLR, then ISB, recorded.
///
/// # Safety
///
/// As for [`cpu::set_sctlr_el1`].
pub(crate) unsafe fn set_sctlr_el1(value: u64) {
    recorder::in_order(|trace| {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { cpu::set_sctlr_el1(value) };
        trace.push(Event::System(System::SCTLR_EL1, value));
        trace.push(Event::Barrier(Barrier::ISB));
    });
}

/// Records that a page was obtained for tables and zeroed.
pub(crate) fn zeroed_table(start: u64, bytes: u64) {
    recorder::in_order(|trace| {
        trace.push(Event::Obtained { start, bytes });
        trace.push(Event::Store {
            address: start,
            count: (bytes / 8) as u32,
            descriptor: 0,
            step: 0,
            visibility: Visibility::Private,
        });
    });
}

/// Records that a page is not a table any more.
pub(crate) fn table_freed(start: u64, bytes: u64) {
    recorder::in_order(|trace| trace.push(Event::Freed { start, bytes }));
}

/// As [`cpu::tlbi_vmalle1_local`], recorded.
pub(crate) fn tlbi_vmalle1_local() {
    recorder::in_order(|trace| {
        cpu::tlbi_vmalle1_local();
        trace.push(Event::Barrier(Barrier::DSB_NSHST));
        trace.push(Event::System(System::VMALLE1, 0));
        trace.push(Event::Barrier(Barrier::DSB_NSH));
        trace.push(Event::Barrier(Barrier::ISB));
    });
}

/// DSB ISHST, recorded.
pub(crate) fn dsb_ishst() {
    recorder::in_order(|trace| {
        hw::dsb_ishst();
        trace.push(Event::Barrier(Barrier::DSB_ISHST));
    });
}

/// Records that a command of `bytes` bytes was written at a physical address and cleaned.
pub(crate) fn command_left(start: u64, bytes: u64) {
    recorder::in_order(|trace| {
        trace.data(start, bytes);
        trace.lines(&CLEAN, start, bytes);
    });
}

/// Records that the lines of memory were cleaned and dropped: a CPU writes there past the caches next, or has
/// done so.
pub(crate) fn lines_dropped(start: u64, bytes: u64) {
    recorder::in_order(|trace| trace.lines(&CLEAN_AND_INVALIDATE, start, bytes));
}

/// Records this CPU's actions since it was switched on: `head::secondary`, `mmu_off::secondary` and
/// `head::mmu_on`.
pub(crate) fn came_up(command: &Command, report: &Report) {
    let early = |system| Event::System(system, before_tables(system));
    recorder::in_order(|trace| {
        trace.ran(&SECONDARY_ENTRY, entered_at(report.entry_el), early);
        if report.entry_el == 2 {
            trace.ran(&SETUP_EL2, runs_at(report.run_el), early);
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

/// Records that these CPUs are parked.
pub(crate) fn parked(cpus: CpuSet, roots: Roots) {
    for number in cpus.iter() {
        recorder::in_order(|trace| {
            let other = trace.on(number);
            let event = |system| Event::System(system, of(system, roots.identity, roots.empty));
            other.ran(&PARK, When::Leaving, event);
            other.ran(&PARK_CODE, When::Leaving, event);
        });
    }
}

/// Records that these CPUs are about to return.
pub(crate) fn returning(cpus: CpuSet, roots: Roots) {
    let kernel = cpu::ttbr1_el1();
    for number in cpus.iter() {
        recorder::in_order(|trace| {
            let other = trace.on(number);
            let event = |system| Event::System(system, of(system, roots.empty, kernel));
            other.ran(&PARK_CODE, When::Returning, event);
            other.ran(&PARK, When::Returning, event);
        });
    }
}

/// The value that is written to a register; 0 for a TLBI.
fn of(system: System, ttbr0: u64, ttbr1: u64) -> u64 {
    if system == System::TTBR0_EL1 {
        ttbr0
    } else if system == System::TTBR1_EL1 {
        ttbr1
    } else {
        0
    }
}
