//! Converts known sequences into events: a list of [`entry_code`](granule_kcore::trace::entry_code), with the
//! values that its instructions had.
//!
//! The code runs with the MMU off too: no function pointers, nothing that panics.

use super::early::Early;
use super::recorder::Recorder;
use crate::arch::sctlr::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF, SCTLR_MMU_ON};
use crate::handover::MmuConfig;
use granule_kcore::trace::entry_code::{Routine, Step, When};
use granule_trace::{Event, System};

/// A receiver of events.
pub(super) trait Teller {
    fn push(&self, event: Event);

    /// Records a routine: the instructions that always run, and those that ran under the condition `when`.
    fn ran(&self, routine: &Routine, when: When, event: impl Fn(System) -> Event) {
        for (part, steps) in routine.parts {
            if *part != When::Always && *part != when {
                continue;
            }
            for step in *steps {
                self.push(match step {
                    Step::Barrier(barrier) => Event::Barrier(*barrier),
                    Step::System(system) => event(*system),
                });
            }
        }
    }

    /// Records a routine of `head::cache`.
    fn lines(&self, routine: &Routine, start: u64, bytes: u64) {
        self.ran(routine, When::Always, |instruction| Event::Lines {
            instruction,
            start,
            bytes,
        });
    }

    /// Records that bytes were stored which a reader accesses past the caches.
    fn data(&self, start: u64, bytes: u64) {
        self.push(Event::Data { start, bytes });
    }
}

impl Teller for Early {
    // As of the method that it calls: the kind of the event is known where it is inlined.
    #[inline(always)]
    fn push(&self, event: Event) {
        Self::push(self, event);
    }
}

impl Teller for Recorder {
    fn push(&self, event: Event) {
        Self::push(self, event);
    }
}

/// The value that the entry code writes to a register before tables exist; 0 for a TLBI.
pub(super) fn before_tables(system: System) -> u64 {
    if system == System::SCTLR_EL1 {
        SCTLR_MMU_OFF
    } else if system == System::SCTLR_EL2 {
        SCTLR_EL2_MMU_OFF
    } else {
        0
    }
}

/// The condition of the entry code for a CPU that was entered at this exception level.
pub(super) const fn entered_at(el: u64) -> When {
    match el {
        2 => When::EnteredAtEl2,
        _ => When::EnteredAtEl1,
    }
}

/// The condition of `setup_el2` for a CPU that goes on at this exception level.
pub(super) const fn runs_at(el: u64) -> When {
    match el {
        2 => When::Vhe,
        _ => When::NoVhe,
    }
}

/// The value that the switch writes to a register.
pub(super) fn with_tables(mmu: &MmuConfig, system: System) -> u64 {
    if system == System::SCTLR_EL1 {
        SCTLR_MMU_ON
    } else if system == System::MAIR_EL1 {
        mmu.mair
    } else if system == System::TCR_EL1 {
        mmu.tcr
    } else if system == System::TTBR0_EL1 {
        mmu.ttbr0
    } else if system == System::TTBR1_EL1 {
        mmu.ttbr1
    } else {
        0
    }
}
