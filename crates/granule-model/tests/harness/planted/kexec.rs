//! Faults in what the relocation code does on its way from one kernel to the next.

use super::registers::{is_dsb_sy, is_ic, is_tcr};
use super::scenes::Result;
use super::taps::*;
use super::{Fault, fault};
use crate::kexec::leaving::{Leaving, Plan};
use crate::machine::Tap;
use granule::arch::Page4K;
use granule_model::Rule::*;
use granule_model::{Barrier, Event, System};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "relocation: one line of the image is not cleaned",
        relocate,
        || nth(0, is_line, |_| Vec::new()),
        NotCleaned,
        "reads memory with the MMU off",
    ),
    fault(
        "relocation: lines are cleaned before they are stored",
        relocate,
        || delay(is_line_stored, is_line),
        NotCleaned,
        "reads memory with the MMU off",
    ),
    fault(
        "relocation: a line that is in place is not cleaned",
        relocate,
        || nth(LINES, is_line, |_| Vec::new()),
        NotCleaned,
        "reads memory with the MMU off",
    ),
    fault(
        "relocation: a line behind the image is not cleaned",
        relocate,
        || nth(3 * LINES, is_line, |_| Vec::new()),
        DirtyLineBehind,
        "",
    ),
    fault(
        "relocation: no DSB before the MMU goes off",
        relocate,
        || nth(1, is_dsb_sy, |_| Vec::new()),
        NotCleaned,
        "",
    ),
    fault(
        "relocation: the DSB comes before the cleans",
        relocate,
        || delay(is_line, is_sctlr),
        NotCleaned,
        "",
    ),
    fault(
        "relocation: instruction caches are not invalidated",
        relocate,
        || nth(1, is_ic, |_| Vec::new()),
        InstructionCache,
        "",
    ),
    fault(
        "relocation: the copy of the code is not cleaned",
        relocate,
        || nth(0, is_cache, |_| Vec::new()),
        InstructionCache,
        "",
    ),
    fault(
        "relocation: the copy of the code is not invalidated in instruction caches",
        relocate,
        || nth(0, is_ic, |_| Vec::new()),
        InstructionCache,
        "",
    ),
    fault(
        "relocation: no TLBI between the old linear map and the new one",
        relocate,
        || nth(1, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "relocation: no DSB after that TLBI",
        relocate,
        || nth(1, is_nsh, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "relocation: the old linear map is walked until the new one is there",
        relocate,
        || nth(3, is_tcr, bits(1 << 23)),
        BreakBeforeMake,
        "",
    ),
    fault(
        "relocation: no TLBI between a program's tables and the identity map",
        relocate,
        || nth(0, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "relocation: a program's tables are walked until the identity map is there",
        relocate,
        || nth(0, is_tcr, bits(1 << 7)),
        FieldInUse,
        "",
    ),
    fault(
        "relocation: TTBR1 is walked before it is in effect",
        relocate,
        || nth(TTBR1_ISB, is_isb, |_| Vec::new()),
        MissingIsb,
        "",
    ),
    fault(
        "relocation past the caches: a line of the list is not cleaned",
        relocate_uncached,
        || nth(1, is_cache, one_line_less),
        NotCleaned,
        "",
    ),
    fault(
        "relocation past the caches: a source is not cleaned",
        relocate_uncached,
        || nth(0, is_flush, |_| Vec::new()),
        NotCleaned,
        "",
    ),
    fault(
        "relocation past the caches: a destination is not cleaned",
        relocate_uncached,
        || nth(LINES, is_flush, |_| Vec::new()),
        NotCleaned,
        "",
    ),
    fault(
        "relocation past the caches: a destination is not invalidated",
        relocate_uncached,
        || nth(3 * LINES, is_dropped, |_| Vec::new()),
        NotInvalidated,
        "",
    ),
];

/// Lines of a page.
const LINES: u64 = 0x1000 / 64;
/// ISBs before that: one after the new tables are made, one behind the copy of the code, four
/// before the jump to it, two before the new tables.
const TTBR1_ISB: u64 = 8;

fn relocate(tap: Option<Tap>) -> Result {
    play(Plan::default(), tap)
}

fn relocate_uncached(tap: Option<Tap>) -> Result {
    let uncached = true;
    play(
        Plan {
            uncached,
            ..Plan::default()
        },
        tap,
    )
}

fn play(plan: Plan, tap: Option<Tap>) -> Result {
    let left = Leaving::<Page4K>::new(48, plan, 1, tap).leave();
    Result { world: left.world }
}

/// A line that the relocation code cleans.
const fn is_line(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Lines {
            instruction: System::DC_CVAC,
            bytes: 64,
            ..
        }
    )
}

const fn is_flush(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Lines {
            instruction: System::DC_CIVAC,
            ..
        }
    )
}

const fn is_dropped(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Lines {
            instruction: System::DC_IVAC,
            ..
        }
    )
}

const fn is_line_stored(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Data { bytes: 64, .. } | Event::Code { bytes: 64, .. }
    )
}

const fn is_nsh(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_NSH))
}

const fn is_sctlr(kind: &Event) -> bool {
    matches!(kind, Event::System(register, _) if matches!(*register, System::SCTLR_EL1))
}
