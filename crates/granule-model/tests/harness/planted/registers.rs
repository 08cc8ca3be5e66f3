//! Faults in what a kernel does with caches and registers.

use super::taps::*;
use super::{Fault, fault, kernel_scenes as scenes};
use granule_model::Rule::*;
use granule_model::{Barrier, Event, System};

pub(super) const FAULTS: &[Fault] = &[
    // Caches and MMU-off code.
    fault("a line of a boot table is neither cleaned nor invalidated")
        .planted(scenes::boot, || nth(0, is_cache, one_line_less))
        .breaks(NotInvalidated, ""),
    fault("a line of a device tree is not cleaned")
        .planted(scenes::hand_over, || nth(0, is_cache, one_line_less))
        .breaks(NotCleaned, ""),
    fault("a clean is not waited for")
        .planted(scenes::hand_over, || drop_all(is_dsb_sy))
        .breaks(NotCleaned, ""),
    fault("a device tree is invalidated and not cleaned")
        .planted(scenes::hand_over, || {
            nth(0, is_cache, with_op(System::DC_IVAC))
        })
        .breaks(StoreLost, ""),
    fault("MMU-off code writes to lines that are not cleaned")
        .planted(scenes::hand_over, || drop_all(is_cache))
        .breaks(DirtyLineBehind, ""),
    fault("a line that was written with the MMU off is not invalidated")
        .planted(scenes::write_with_mmu_off, || {
            nth(0, is_cache, one_line_less)
        })
        .breaks(NotInvalidated, ""),
    fault("stored code is not invalidated in the instruction caches")
        .planted(scenes::store_code, || drop_all(is_ic))
        .breaks(InstructionCache, ""),
    fault("stored code is invalidated in one instruction cache only")
        .planted(scenes::store_code, || {
            replace(is_ic, |_| vec![Event::System(System::IC_IALLU, 0)])
        })
        .breaks(InstructionCache, ""),
    fault("an IC does not wait for the clean of the code")
        .planted(scenes::store_code, || nth(0, is_ish, |_| Vec::new()))
        .breaks(InstructionCache, ""),
    fault("no ISB between the invalidation of the instruction caches and the new code")
        .planted(scenes::store_code, || drop_all(is_isb))
        .breaks(MissingIsb, "fetched before the code changed"),
    fault("a CPU is switched on before what it reads is cleaned")
        .planted(scenes::start_cpu, || drop_all(is_cache))
        .breaks(NotCleaned, ""),
    // Registers.
    fault("the MMU goes on with a TLB that was never invalidated")
        .planted(scenes::boot, || drop_all(is_tlbi))
        .breaks(UnknownTlb, ""),
    fault("the MMU goes on before registers are in effect")
        .planted(scenes::boot, || nth(0, is_isb, |_| Vec::new()))
        .breaks(MissingIsb, "no ISB"),
    fault("a field of TCR changes without a TLBI")
        .planted(scenes::change_tcr, || drop_all(is_tlbi))
        .breaks(CachedField, "no TLBI"),
    fault("the granule in TCR changes while it is used")
        .planted(scenes::change_tcr, || nth(0, is_tcr, bits(1 << 30)))
        .breaks(FieldInUse, "granule"),
    fault("MAIR changes under a live mapping")
        .planted(scenes::change_mair, || nth(0, is_mair, bits(0x44)))
        .breaks(BreakBeforeMake, ""),
    fault("TTBR changes without an ISB")
        .planted(scenes::switch_process, || nth(0, is_isb, |_| Vec::new()))
        .breaks(MissingIsb, ""),
    fault("another process with the same ASID")
        .planted(scenes::switch_process, || {
            nth(0, is_ttbr, bits((7 ^ 8) << 48))
        })
        .breaks(BreakBeforeMake, ""),
];

fn with_op(op: System) -> impl Fn(Event) -> Vec<Event> {
    move |mut kind| {
        if let Event::Lines { instruction, .. } = &mut kind {
            *instruction = op;
        }
        vec![kind]
    }
}

pub(super) const fn is_dsb_sy(kind: &Event) -> bool {
    matches!(kind, Event::Barrier(Barrier::DSB_SY))
}

pub(super) const fn is_ic(kind: &Event) -> bool {
    matches!(kind, Event::System(op, _) if op.is_instruction_cache())
}

const fn writes(kind: &Event, which: System) -> bool {
    matches!(kind, Event::System(register, _) if register.0 == which.0)
}

pub(super) const fn is_tcr(kind: &Event) -> bool {
    writes(kind, System::TCR_EL1)
}

const fn is_mair(kind: &Event) -> bool {
    writes(kind, System::MAIR_EL1)
}

pub(super) const fn is_ttbr(kind: &Event) -> bool {
    writes(kind, System::TTBR0_EL1)
}
