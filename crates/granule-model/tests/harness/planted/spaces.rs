//! Faults in what is done to address spaces of user programs.

use super::scenes::PAGE;
use super::space_scenes::*;
use super::tables::{GONE, POINTER, STALE, is_tlbi_or_dsb, last_level};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::Tap;
use granule::arch::Descriptor;
use granule_model::Rule::*;
use granule_model::{BitChange, Event, System, Visibility};

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "the TLBI after a fork made pages read-only is missing",
        fork,
        || drop_all(is_tlbi),
        StaleTranslation,
        STALE,
    ),
    fault(
        "a page is copied at a write, and its entry not broken first",
        copy,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a page and its copy is missing",
        copy,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a page of a shared group is copied, and one member not invalidated",
        copy_in_group,
        || nth(5, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a whole group is copied at a write, and one member not broken first",
        copy_next_group,
        || nth(5, is_break, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a whole group is copied at a write, and one member not invalidated",
        copy_next_group,
        || nth(5, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the frames of a group that was copied are given back before the TLBI",
        copy_next_group,
        || delay(is_tlbi_or_dsb, is_given_back),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a block of which a group is copied is not broken first",
        copy_group_of_block,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "frames are given back before the TLBI",
        unmap,
        || delay(is_tlbi_or_dsb, is_given_back),
        StaleTranslation,
        GONE,
    ),
    fault(
        "frames are given back before the DSB ISH",
        unmap,
        || delay(is_ish, is_given_back),
        StaleTranslation,
        "no DSB completed it",
    ),
    fault(
        "a table with released pages is freed before the TLBI",
        exit,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a last-level TLBI where a table with released pages goes",
        exit,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "pages become a group at level 0, and are not broken first",
        fold,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between pages and their group is missing",
        fold,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "one member is not invalidated before it is made part of a group",
        fold,
        || nth(7, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
    fault(
        "members that hardware may update are emptied by plain stores",
        fold,
        || replace(is_exchange, by_plain_store),
        LostUpdate,
        "access flag or the dirty state",
    ),
    fault(
        "permissions that hardware may update are changed by a plain store",
        restrict,
        by_load_and_store,
        LostUpdate,
        "access flag or the dirty state",
    ),
    fault(
        "a CPU does not flush before it uses a new generation of ASIDs",
        generations,
        || drop_all(is_flush),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a CPU does not flush because another one began the new generation",
        generation_of_another,
        flushes_of_the_other,
        BreakBeforeMake,
        "",
    ),
    fault(
        "a new generation gives away the number that a CPU still runs under",
        generation_while_running,
        reserved_number_given_away,
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI of an unmap names the number that the process had a generation ago",
        unmap_renewed,
        || tlbis(|op| with_operand(op, op.1 & !ASID | OLD_NUMBER << ASID_SHIFT)),
        StaleTranslation,
        "it does not reach entries of this ASID",
    ),
    fault(
        "a group is made at once over a page that is mapped",
        touch_beside,
        || nth(0, is_user_page, |kind| over_the_group(kind, 16)),
        BreakBeforeMake,
        "",
    ),
    fault(
        "a group is made at once over a hole",
        touch_beside_nothing,
        || nth(0, is_user_page, |kind| over_the_group(kind, 15)),
        UnequalContiguous,
        "",
    ),
    fault(
        "a block is made over a table with a page",
        touch_beside,
        block_over_the_table,
        BreakBeforeMake,
        "",
    ),
    fault(
        "a block of which a page is copied is not broken first",
        copy_in_block,
        || drop_all(is_break),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a block and its pages is missing",
        copy_in_block,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the table of a program's block is linked by a plain store",
        copy_in_block,
        || replace(is_link, plain),
        UnorderedLink,
        "",
    ),
    fault(
        "a table becomes a program's block, and its entry is not broken first",
        merge_block,
        || drop_all(is_break_of_link),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI between a table and a program's block is missing",
        merge_block,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the table in whose place a program's block comes is freed before the TLBI",
        merge_block,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a last-level TLBI where a table becomes a program's block",
        merge_block,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "frames of a block are given back before the TLBI",
        unmap_block,
        || delay(is_tlbi_or_dsb, is_given_back),
        StaleTranslation,
        GONE,
    ),
    fault(
        "a page goes out of a group, and one of the others keeps the hint",
        unmap_in_group,
        || nth(0, is_leaf_fill, one_grouped),
        MixedContiguous,
        "",
    ),
    fault(
        "a page goes out of a group, and one of the others is not invalidated",
        unmap_in_group,
        || nth(7, is_tlbi, |_| Vec::new()),
        BreakBeforeMake,
        "",
    ),
];

/// Where a TTBR and a TLBI by address have the number.
const ASID_SHIFT: u32 = 48;
pub(super) const ASID: u64 = 0xffff << ASID_SHIFT;

/// Of the flushes in [`generation_of_another`] every second one is CPU 1's: that at the roll-over
/// and that before it uses the new generation.
fn flushes_of_the_other() -> Tap {
    let mut flushes = 0;
    replace_state(is_flush, move |kind| {
        flushes += 1;
        if flushes % 2 == 1 {
            Vec::new()
        } else {
            vec![kind]
        }
    })
}

/// From the first generation's end on, the number that is given out first is everywhere
/// [`OLD_NUMBER`] instead, which CPU 1 runs under.
fn reserved_number_given_away() -> Tap {
    let (mut rolled, mut given) = (false, None);
    Box::new(move |_, mut kind| {
        rolled |= is_flush(&kind);
        if let Event::System(System::TTBR0_EL1, value) = &mut kind
            && rolled
            && *value & ASID != 0
            && *given.get_or_insert(*value & ASID) == *value & ASID
        {
            *value = *value & !ASID | OLD_NUMBER << ASID_SHIFT;
        }
        vec![kind]
    })
}

/// The first of the members that are made anew has the hint still.
fn one_grouped(kind: Event) -> Vec<Event> {
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
        fill(address, 1, first | Descriptor::CONTIGUOUS),
        fill(address + 8, count - 1, first + step),
    ]
}

/// The entry that leads to the table becomes empty.
fn is_break_of_link(kind: &Event) -> bool {
    matches!(kind, Event::Store { address, .. } if *address == entry_of_block()) && is_break(kind)
}

/// In place of the page a block comes into the entry that leads to its table.
fn block_over_the_table() -> Tap {
    Box::new(|_, kind| match kind {
        Event::Store {
            descriptor,
            visibility,
            ..
        } if is_user_page(&kind) => vec![Event::Store {
            address: entry_of_block(),
            count: 1,
            descriptor: descriptor & !Descriptor::TABLE_OR_PAGE & !(BLOCK_BYTES - PAGE),
            step: 0,
            visibility,
        }],
        other => vec![other],
    })
}

/// A page that EL0 may access comes.
const fn is_user_page(kind: &Event) -> bool {
    const USER_PAGE: u64 = Descriptor::AP_USER | Descriptor::TABLE_OR_PAGE | Descriptor::VALID;
    matches!(kind, Event::Store { count: 1, descriptor, .. } if *descriptor & USER_PAGE == USER_PAGE)
}

/// The page that comes is the first one of a group, of which so many members are stored.
fn over_the_group(kind: Event, members: u32) -> Vec<Event> {
    match kind {
        Event::Store {
            address,
            descriptor,
            visibility,
            ..
        } => vec![Event::Store {
            address,
            count: members,
            descriptor: descriptor | Descriptor::CONTIGUOUS,
            step: PAGE,
            visibility,
        }],
        other => vec![other],
    }
}

/// Frames are somebody else's from here on.
const fn is_given_back(kind: &Event) -> bool {
    matches!(kind, Event::AssumeVisible { .. })
}

const fn is_exchange(kind: &Event) -> bool {
    matches!(
        kind,
        Event::Store {
            count: 1,
            visibility: Visibility::Exchange,
            ..
        }
    )
}

/// All of a CPU's own TLB.
pub(super) const fn is_flush(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VMALLE1, _))
}

fn by_plain_store(mut kind: Event) -> Vec<Event> {
    if let Event::Store {
        count: 1,
        visibility: order,
        ..
    } = &mut kind
    {
        *order = Visibility::Live;
    }
    vec![kind]
}

/// Each entry of an update is loaded and stored.
fn by_load_and_store() -> Tap {
    Box::new(|model, kind| match kind {
        Event::Update {
            address,
            count,
            change: BitChange { of, clear, set },
            visibility: order,
        } => (0..count)
            .map(|index| address + u64::from(index) * 8)
            .filter(|&address| model.descriptor(address) & of != 0)
            .map(|address| Event::Store {
                address,
                count: 1,
                descriptor: (model.descriptor(address) & !clear) | set,
                step: 0,
                visibility: order,
            })
            .collect(),
        other => vec![other],
    })
}
