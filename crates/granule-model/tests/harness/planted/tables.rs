//! Faults in what is done to tables: barriers, TLBIs, groups, table memory, break-before-make.

use super::taps::*;
use super::{Fault, fault, scenes};
use granule_model::Rule::*;
use granule_model::{Barrier, Event, System};

pub(super) const STALE: &str = "may still use the old translation";
pub(super) const GONE: &str = "may still translate addresses";
const VISIBLE: &str = "not yet visible to walkers (no DSB)";
pub(super) const INCOMPLETE: &str = "no DSB completed it";
pub(super) const POINTER: &str = "through a cached pointer to it";

pub(super) const FAULTS: &[Fault] = &[
    // Barriers and their order.
    fault("the TLBI after a change of permissions is missing")
        .planted(scenes::protect, || drop_all(is_tlbi))
        .breaks(StaleTranslation, STALE),
    fault("the TLBI after permissions are widened is missing")
        .planted(scenes::widen, || drop_all(is_tlbi))
        .breaks(StaleTranslation, "may still refuse"),
    fault("the TLBI after an unmap is missing")
        .planted(scenes::unmap, || drop_all(is_tlbi))
        .breaks(StaleTranslation, GONE),
    fault("no DSB ISHST between clearing entries and the TLBI")
        .planted(scenes::unmap, || drop_all(is_ishst))
        .breaks(StaleTranslation, VISIBLE),
    fault("no DSB ISH after the TLBI")
        .planted(scenes::protect, || drop_all(is_ish))
        .breaks(StaleTranslation, INCOMPLETE),
    fault("no DSB ISHST after a map")
        .planted(scenes::map, || drop_all(is_ishst))
        .breaks(StoreNotVisible, "no DSB"),
    fault("no ISB after a map")
        .planted(scenes::map, || drop_all(is_isb))
        .breaks(MissingIsb, "what it speculated"),
    fault("no ISB after a TLBI")
        .planted(scenes::unmap, || drop_all(is_isb))
        .breaks(MissingIsb, "no ISB after the TLBI"),
    fault("the TLBI comes before the store")
        .planted(scenes::protect, || delay(is_update, is_tlbi))
        .breaks(StaleTranslation, STALE),
    fault("the TLBI comes before the DSB ISHST")
        .planted(scenes::protect, || delay(is_ishst, is_tlbi))
        .breaks(StaleTranslation, VISIBLE),
    fault("the TLBI comes after the DSB ISH")
        .planted(scenes::protect, || delay(is_tlbi, is_ish))
        .breaks(StaleTranslation, INCOMPLETE),
    fault("a DSB of the CPU itself (NSH) where the others must see it")
        .planted(scenes::protect, || {
            replace(is_ish, |_| vec![Event::Barrier(Barrier::DSB_NSH)])
        })
        .breaks(StaleTranslation, INCOMPLETE),
    // What the TLBI names.
    fault("a last-level TLBI where a table was unlinked")
        .planted(scenes::unmap_table, || tlbis(last_level))
        .breaks(FreedInUse, POINTER),
    fault("a range narrower by its last page")
        .planted(scenes::unmap, || nth(7, is_tlbi, |_| Vec::new()))
        .breaks(StaleTranslation, GONE),
    fault("a range that begins a page late")
        .planted(scenes::unmap, || nth(0, is_tlbi, |_| Vec::new()))
        .breaks(StaleTranslation, GONE),
    fault("a TLBI by range of too few pages")
        .planted(scenes::unmap_by_range, || tlbis(fewer))
        .breaks(StaleTranslation, GONE),
    fault("a TLBI by range that names another granule")
        .planted(scenes::unmap_by_range, || tlbis(granule_64k))
        .breaks(StaleTranslation, GONE),
    fault("a TLBI by range whose level hint its base is not aligned to")
        .planted(scenes::unmap_by_range, || tlbis(level_2))
        .breaks(RangeOperand, ""),
    fault("a local TLBI in place of a broadcast one")
        .planted(scenes::protect, || tlbis(local))
        .breaks(StaleTranslation, "its own CPU only"),
    fault("the TLBI names another ASID")
        .planted(scenes::unmap_process, || {
            tlbis(|op| with_operand(op, op.1 ^ 1 << 48))
        })
        .breaks(StaleTranslation, "this ASID"),
    fault("a TLBI by ASID for global entries")
        .planted(scenes::unmap, || tlbis(|_| (System::ASIDE1IS, 0)))
        .breaks(StaleTranslation, GONE),
    fault("the TLBI hints at another level")
        .planted(scenes::unmap_one, || {
            tlbis(|op| with_operand(op, op.1 ^ 1 << 44))
        })
        .breaks(StaleTranslation, "level hint"),
    fault("the TLBI hints at another granule")
        .planted(scenes::unmap_one, || {
            tlbis(|op| with_operand(op, op.1 ^ 0b11 << 46))
        })
        .breaks(StaleTranslation, "granule"),
    fault("the TLBI names another address")
        .planted(scenes::unmap, || {
            tlbis(|op| with_operand(op, op.1 ^ 1 << 20))
        })
        .breaks(StaleTranslation, GONE),
    // Contiguous groups.
    fault("one member of a group has no contiguous hint")
        .planted(scenes::map_groups, || nth(0, is_group, one_without_hint))
        .breaks(MixedContiguous, "contiguous"),
    fault("one member is forgotten where the hint is cleared")
        .planted(scenes::clear_hint, || nth(0, is_update, one_less))
        .breaks(MixedContiguous, "contiguous"),
    fault("one member is forgotten where permissions change")
        .planted(scenes::protect_group, || nth(0, is_update, one_less))
        .breaks(UnequalContiguous, "group"),
    fault("one member is forgotten by the TLBI")
        .planted(scenes::protect_group, || nth(15, is_tlbi, |_| Vec::new()))
        .breaks(StaleTranslation, STALE),
    fault("a group is invalidated as if it were one entry")
        .planted(scenes::replace_group, || {
            let mut first = true;
            replace(is_tlbi, move |kind| {
                if std::mem::take(&mut first) {
                    vec![kind]
                } else {
                    Vec::new()
                }
            })
        })
        .breaks(BreakBeforeMake, "15 times"),
    fault("the output of a group is not aligned to it")
        .planted(scenes::map_groups, || nth(0, is_group, bits(0x1000)))
        .breaks(UnequalContiguous, "group"),
    fault("a group that reaches beyond the top table")
        .planted(scenes::map_small_space, || {
            replace(is_blocks, bits(1 << 52))
        })
        .breaks(ContiguousOutside, "group"),
    // Tables.
    fault("a table is freed before the TLBI")
        .planted(scenes::unmap_table, || delay(is_tlbi_or_dsb, is_freed))
        .breaks(FreedInUse, POINTER),
    fault("a table is freed before the DSB ISH")
        .planted(scenes::unmap_table, || delay(is_ish, is_freed))
        .breaks(FreedInUse, POINTER),
    fault("a table is freed that is still linked")
        .planted(scenes::unmap_table, || {
            nth(0, is_freed, |kind| match kind {
                Event::Freed {
                    start: address,
                    bytes,
                } => vec![Event::freed(address - bytes, bytes)],
                other => vec![other],
            })
        })
        .breaks(FreedInUse, "still lead to it"),
    fault("a table is linked that was not obtained")
        .planted(scenes::map, || drop_all(is_obtained))
        .breaks(NotTableMemory, "table"),
    fault("a table is filled after it is linked")
        .planted(scenes::map, || delay(is_fill, is_link))
        .breaks(UninitialisedTable, "whatever was in the memory"),
    fault("part of a table is never written")
        .planted(scenes::map, || nth(0, is_fill, one_less))
        .breaks(UninitialisedTable, "whatever was in the memory"),
    fault("a table is linked by a plain store")
        .planted(scenes::map, || replace(is_link, plain))
        .breaks(UnorderedLink, "before these stores"),
    fault("an unlinked table is used before the TLBI")
        .planted(scenes::unmap_table, || nth(1, is_break, and_a_page))
        .breaks(UnlinkedInUse, "unlinked"),
    // Break-before-make.
    fault("the output address of a live entry changes")
        .planted(scenes::protect, || nth(0, is_update, bits(1 << 40)))
        .breaks(BreakBeforeMake, ""),
    fault("the memory type of a live entry changes")
        .planted(scenes::protect, || nth(0, is_update, bits(1 << 2)))
        .breaks(BreakBeforeMake, ""),
    fault("something else is mapped before the TLBI of what was there")
        .planted(scenes::replace_group, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("a block becomes a table without a break at level 0")
        .planted(scenes::split_by_break, || drop_all(is_break))
        .breaks(BreakBeforeMake, ""),
    fault("a table in a block's place does not say the same at level 2")
        .planted(scenes::split_in_place, || nth(0, is_fill, bits(1 << 40)))
        .breaks(SizeWithOtherChange, ""),
    fault("size and memory type change in one store at level 2")
        .planted(scenes::clear_hint, || nth(0, is_update, bits(1 << 2)))
        .breaks(SizeWithOtherChange, ""),
    fault("entries are made valid again without a TLBI (strict)")
        .planted(scenes::map_again, || drop_all(is_tlbi))
        .breaks(Revalidated, ""),
];

/// The form for the last level only: bit 2 of op2.
pub(super) const fn last_level((op, operand): Tlbi) -> Tlbi {
    (System(op.0 | 4), operand)
}

/// CRm 2 of the broadcast forms is for ranges.
const fn is_range((op, _): Tlbi) -> bool {
    op.crm() == 2
}

/// NUM, bits 43:39, is one less.
const fn fewer(op: Tlbi) -> Tlbi {
    if is_range(op) {
        with_operand(op, op.1 - (1 << 39))
    } else {
        op
    }
}

/// Sets TG, bits 47:46, to 64K.
const fn granule_64k(op: Tlbi) -> Tlbi {
    if is_range(op) {
        with_operand(op, op.1 | 0b11 << 46)
    } else {
        op
    }
}

/// Sets TTL, bits 38:37, to level 2.
const fn level_2(op: Tlbi) -> Tlbi {
    if is_range(op) {
        with_operand(op, op.1 & !(0b11 << 37) | 0b10 << 37)
    } else {
        op
    }
}

/// A page is stored in the entry behind.
fn and_a_page(kind: Event) -> Vec<Event> {
    let mut page = kind;
    if let Event::Store {
        address,
        descriptor,
        ..
    } = &mut page
    {
        (*address, *descriptor) = (*address + 8, 0x10_0000_0403);
    }
    vec![kind, page]
}

fn one_without_hint(kind: Event) -> Vec<Event> {
    first_alone(kind, |descriptor| descriptor & !(1 << 52))
}

/// A fill in two parts, the first of one entry that is changed.
pub(super) fn first_alone(kind: Event, change: fn(u64) -> u64) -> Vec<Event> {
    let (mut first, mut rest) = (kind, kind);
    if let Event::Store {
        count, descriptor, ..
    } = &mut first
    {
        (*count, *descriptor) = (1, change(*descriptor));
    }
    if let Event::Store {
        address,
        count,
        descriptor,
        step,
        ..
    } = &mut rest
    {
        (*address, *count) = (*address + 8, *count - 1);
        *descriptor = descriptor.wrapping_add(*step);
    }
    vec![first, rest]
}

pub(super) const fn is_tlbi_or_dsb(kind: &Event) -> bool {
    is_tlbi(kind) || is_ish(kind)
}
