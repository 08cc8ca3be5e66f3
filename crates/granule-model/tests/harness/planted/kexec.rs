//! Faults in what the relocation code does on its way from one kernel to the next.

use super::registers::{is_dsb_sy, is_ic, is_tcr};
use super::taps::*;
use super::{Fault, fault};
use crate::kexec::leaving::{Leaving, Plan};
use crate::machine::{Shared, Tap};
use granule::arch::Page4K;
use granule_model::Rule::*;
use granule_model::{Barrier, Event, System};

pub(super) const FAULTS: &[Fault] = &[
    fault("relocation: one line of the image is not cleaned")
        .planted(relocate, || nth(0, is_line, |_| Vec::new()))
        .breaks(NotCleaned, "reads memory with the MMU off"),
    fault("relocation: lines are cleaned before they are stored")
        .planted(relocate, || delay(is_line_stored, is_line))
        .breaks(NotCleaned, "reads memory with the MMU off"),
    fault("relocation: a line that is in place is not cleaned")
        .planted(relocate, || nth(LINES, is_line, |_| Vec::new()))
        .breaks(NotCleaned, "reads memory with the MMU off"),
    fault("relocation: a line behind the image is not cleaned")
        .planted(relocate, || nth(3 * LINES, is_line, |_| Vec::new()))
        .breaks(DirtyLineBehind, ""),
    fault("relocation: no DSB before the MMU goes off")
        .planted(relocate, || nth(1, is_dsb_sy, |_| Vec::new()))
        .breaks(NotCleaned, ""),
    fault("relocation: the DSB comes before the cleans")
        .planted(relocate, || delay(is_line, is_sctlr))
        .breaks(NotCleaned, ""),
    fault("relocation: instruction caches are not invalidated")
        .planted(relocate, || nth(1, is_ic, |_| Vec::new()))
        .breaks(InstructionCache, ""),
    fault("relocation: the copy of the code is not cleaned")
        .planted(relocate, || nth(0, is_cache, |_| Vec::new()))
        .breaks(InstructionCache, ""),
    fault("relocation: the copy of the code is not invalidated in instruction caches")
        .planted(relocate, || nth(0, is_ic, |_| Vec::new()))
        .breaks(InstructionCache, ""),
    fault("relocation: no TLBI between the old linear map and the new one")
        .planted(relocate, || nth(1, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("relocation: no DSB after that TLBI")
        .planted(relocate, || nth(1, is_nsh, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("relocation: the old linear map is walked until the new one is there")
        .planted(relocate, || nth(3, is_tcr, bits(1 << 23)))
        .breaks(BreakBeforeMake, ""),
    fault("relocation: no TLBI between a program's tables and the identity map")
        .planted(relocate, || nth(0, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("relocation: a program's tables are walked until the identity map is there")
        .planted(relocate, || nth(0, is_tcr, bits(1 << 7)))
        .breaks(FieldInUse, ""),
    fault("relocation: TTBR1 is walked before it is in effect")
        .planted(relocate, || nth(TTBR1_ISB, is_isb, |_| Vec::new()))
        .breaks(MissingIsb, ""),
    fault("relocation past the caches: a line of the list is not cleaned")
        .planted(relocate_uncached, || nth(1, is_cache, one_line_less))
        .breaks(NotCleaned, ""),
    fault("relocation past the caches: a source is not cleaned")
        .planted(relocate_uncached, || nth(0, is_flush, |_| Vec::new()))
        .breaks(NotCleaned, ""),
    fault("relocation past the caches: a destination is not cleaned")
        .planted(relocate_uncached, || nth(LINES, is_flush, |_| Vec::new()))
        .breaks(NotCleaned, ""),
    fault("relocation past the caches: a destination is not invalidated")
        .planted(relocate_uncached, || {
            nth(3 * LINES, is_dropped, |_| Vec::new())
        })
        .breaks(NotInvalidated, ""),
];

/// Lines of a page.
const LINES: u64 = 0x1000 / 64;
/// ISBs before that: one after the new tables are made, one behind the copy of the code, four
/// before the jump to it, two before the new tables.
const TTBR1_ISB: u64 = 8;

fn relocate(tap: Option<Tap>) -> Shared {
    play(Plan::default(), tap)
}

fn relocate_uncached(tap: Option<Tap>) -> Shared {
    let uncached = true;
    play(
        Plan {
            uncached,
            ..Plan::default()
        },
        tap,
    )
}

fn play(plan: Plan, tap: Option<Tap>) -> Shared {
    let left = Leaving::<Page4K>::new(48, plan, 1, tap).leave();
    left.world
}

/// A line that the relocation code cleans.
const fn is_line(kind: &Event) -> bool {
    is_lines(kind, System::DC_CVAC) && matches!(kind, Event::Lines { bytes: 64, .. })
}

const fn is_flush(kind: &Event) -> bool {
    is_lines(kind, System::DC_CIVAC)
}

const fn is_dropped(kind: &Event) -> bool {
    is_lines(kind, System::DC_IVAC)
}

const fn is_lines(kind: &Event, op: System) -> bool {
    matches!(kind, Event::Lines { instruction, .. } if instruction.0 == op.0)
}

const fn is_line_stored(kind: &Event) -> bool {
    matches!(kind, Event::Data { bytes, .. } | Event::Code { bytes, .. } if *bytes == 64)
}

const fn is_nsh(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_NSH))
}

const fn is_sctlr(kind: &Event) -> bool {
    matches!(kind, Event::System(register, _) if matches!(*register, System::SCTLR_EL1))
}
