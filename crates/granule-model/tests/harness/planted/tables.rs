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
    fault(
        "the TLBI after a change of permissions is missing",
        scenes::protect,
        || drop_all(is_tlbi),
        StaleTranslation,
        STALE,
    ),
    fault(
        "the TLBI after permissions are widened is missing",
        scenes::widen,
        || drop_all(is_tlbi),
        StaleTranslation,
        "may still refuse",
    ),
    fault(
        "the TLBI after an unmap is missing",
        scenes::unmap,
        || drop_all(is_tlbi),
        StaleTranslation,
        GONE,
    ),
    fault(
        "no DSB ISHST between clearing entries and the TLBI",
        scenes::unmap,
        || drop_all(is_ishst),
        StaleTranslation,
        VISIBLE,
    ),
    fault(
        "no DSB ISH after the TLBI",
        scenes::protect,
        || drop_all(is_ish),
        StaleTranslation,
        INCOMPLETE,
    ),
    fault(
        "no DSB ISHST after a map",
        scenes::map,
        || drop_all(is_ishst),
        StoreNotVisible,
        "no DSB",
    ),
    fault(
        "no ISB after a map",
        scenes::map,
        || drop_all(is_isb),
        MissingIsb,
        "what it speculated",
    ),
    fault(
        "no ISB after a TLBI",
        scenes::unmap,
        || drop_all(is_isb),
        MissingIsb,
        "no ISB after the TLBI",
    ),
    fault(
        "the TLBI comes before the store",
        scenes::protect,
        || delay(is_update, is_tlbi),
        StaleTranslation,
        STALE,
    ),
    fault(
        "the TLBI comes before the DSB ISHST",
        scenes::protect,
        || delay(is_ishst, is_tlbi),
        StaleTranslation,
        VISIBLE,
    ),
    fault(
        "the TLBI comes after the DSB ISH",
        scenes::protect,
        || delay(is_tlbi, is_ish),
        StaleTranslation,
        INCOMPLETE,
    ),
    fault(
        "a DSB of the CPU itself (NSH) where the others must see it",
        scenes::protect,
        || replace(is_ish, |_| vec![Event::Barrier(Barrier::DSB_NSH)]),
        StaleTranslation,
        INCOMPLETE,
    ),
    // What the TLBI names.
    fault(
        "a last-level TLBI where a table was unlinked",
        scenes::unmap_table,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a range narrower by its last page",
        scenes::unmap,
        || nth(7, is_tlbi, |_| Vec::new()),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a range that begins a page late",
        scenes::unmap,
        || nth(0, is_tlbi, |_| Vec::new()),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a TLBI by range of too few pages",
        scenes::unmap_by_range,
        || tlbis(fewer),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a TLBI by range that names another granule",
        scenes::unmap_by_range,
        || tlbis(granule_64k),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a TLBI by range whose level hint its base is not aligned to",
        scenes::unmap_by_range,
        || tlbis(level_2),
        RangeOperand,
        "",
    ),
    fault(
        "a local TLBI in place of a broadcast one",
        scenes::protect,
        || tlbis(local),
        StaleTranslation,
        "its own CPU only",
    ),
    fault(
        "the TLBI names another ASID",
        scenes::unmap_process,
        || tlbis(|op| with_operand(op, op.1 ^ 1 << 48)),
        StaleTranslation,
        "this ASID",
    ),
    fault(
        "a TLBI by ASID for global entries",
        scenes::unmap,
        || tlbis(|_| (System::ASIDE1IS, 0)),
        StaleTranslation,
        GONE,
    ),
    fault(
        "the TLBI hints at another level",
        scenes::unmap_one,
        || tlbis(|op| with_operand(op, op.1 ^ 1 << 44)),
        StaleTranslation,
        "level hint",
    ),
    fault(
        "the TLBI hints at another granule",
        scenes::unmap_one,
        || tlbis(|op| with_operand(op, op.1 ^ 0b11 << 46)),
        StaleTranslation,
        "granule",
    ),
    fault(
        "the TLBI names another address",
        scenes::unmap,
        || tlbis(|op| with_operand(op, op.1 ^ 1 << 20)),
        StaleTranslation,
        GONE,
    ),
    // Contiguous groups.
    fault(
        "one member of a group has no contiguous hint",
        scenes::map_groups,
        || nth(0, is_group, one_without_hint),
        MixedContiguous,
        "contiguous",
    ),
    fault(
        "one member is forgotten where the hint is cleared",
        scenes::clear_hint,
        || nth(0, is_update, one_less),
        MixedContiguous,
        "contiguous",
    ),
    fault(
        "one member is forgotten where permissions change",
        scenes::protect_group,
        || nth(0, is_update, one_less),
        UnequalContiguous,
        "group",
    ),
    fault(
        "one member is forgotten by the TLBI",
        scenes::protect_group,
        || nth(15, is_tlbi, |_| Vec::new()),
        StaleTranslation,
        STALE,
    ),
    fault(
        "a group is invalidated as if it were one entry",
        scenes::replace_group,
        || {
            let mut first = true;
            replace_state(is_tlbi, move |kind| {
                if std::mem::take(&mut first) {
                    vec![kind]
                } else {
                    Vec::new()
                }
            })
        },
        BreakBeforeMake,
        "15 times",
    ),
    fault(
        "the output of a group is not aligned to it",
        scenes::map_groups,
        || nth(0, is_group, bits(0x1000)),
        UnequalContiguous,
        "group",
    ),
    fault(
        "a group that reaches beyond the top table",
        scenes::map_small_space,
        || replace(is_blocks, bits(1 << 52)),
        ContiguousOutside,
        "group",
    ),
    // Tables.
    fault(
        "a table is freed before the TLBI",
        scenes::unmap_table,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a table is freed before the DSB ISH",
        scenes::unmap_table,
        || delay(is_ish, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a table is freed that is still linked",
        scenes::unmap_table,
        || {
            nth(0, is_freed, |kind| match kind {
                Event::Freed {
                    start: address,
                    bytes,
                } => vec![Event::Freed {
                    start: address - bytes,
                    bytes,
                }],
                other => vec![other],
            })
        },
        FreedInUse,
        "still lead to it",
    ),
    fault(
        "a table is linked that was not obtained",
        scenes::map,
        || drop_all(is_obtained),
        NotTableMemory,
        "table",
    ),
    fault(
        "a table is filled after it is linked",
        scenes::map,
        || delay(is_fill, is_link),
        UninitialisedTable,
        "whatever was in the memory",
    ),
    fault(
        "part of a table is never written",
        scenes::map,
        || nth(0, is_fill, one_less),
        UninitialisedTable,
        "whatever was in the memory",
    ),
    fault(
        "a table is linked by a plain store",
        scenes::map,
        || replace(is_link, plain),
        UnorderedLink,
        "before these stores",
    ),
    fault(
        "an unlinked table is used before the TLBI",
        scenes::unmap_table,
        || nth(1, is_break, and_a_page),
        UnlinkedInUse,
        "unlinked",
    ),
    // Break-before-make.
    fault(
        "the output address of a live entry changes",
        scenes::protect,
        || nth(0, is_update, bits(1 << 40)),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the memory type of a live entry changes",
        scenes::protect,
        || nth(0, is_update, bits(1 << 2)),
        BreakBeforeMake,
        "",
    ),
    fault(
        "something else is mapped before the TLBI of what was there",
        scenes::replace_group,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a block becomes a table without a break at level 0",
        scenes::split_by_break,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a table in a block's place does not say the same at level 2",
        scenes::split_in_place,
        || nth(0, is_fill, bits(1 << 40)),
        SizeWithOtherChange,
        "",
    ),
    fault(
        "size and memory type change in one store at level 2",
        scenes::clear_hint,
        || nth(0, is_update, bits(1 << 2)),
        SizeWithOtherChange,
        "",
    ),
    fault(
        "entries are made valid again without a TLBI (strict)",
        scenes::map_again,
        || drop_all(is_tlbi),
        Revalidated,
        "",
    ),
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
    let Event::Store {
        address,
        count: 1,
        visibility: order,
        ..
    } = kind
    else {
        return vec![kind];
    };
    let page = Event::Store {
        address: address + 8,
        count: 1,
        descriptor: 0x10_0000_0403,
        step: 0,
        visibility: order,
    };
    vec![kind, page]
}

/// A fill of a group in two parts, the first without the hint.
fn one_without_hint(kind: Event) -> Vec<Event> {
    let Event::Store {
        address,
        count,
        descriptor: first,
        step,
        visibility: order,
    } = kind
    else {
        return vec![kind];
    };
    let fill = |address, count, first| Event::Store {
        address,
        count,
        descriptor: first,
        step,
        visibility: order,
    };
    vec![
        fill(address, 1, first & !(1 << 52)),
        fill(address + 8, count - 1, first.wrapping_add(step)),
    ]
}

pub(super) const fn is_tlbi_or_dsb(kind: &Event) -> bool {
    is_tlbi(kind) || is_ish(kind)
}
