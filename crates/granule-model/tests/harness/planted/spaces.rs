//! Faults in what is done to address spaces of user programs.

use super::leaves::by_load_and_store;
use super::scenes::PAGE;
use super::space_scenes::*;
use super::tables::{GONE, POINTER, STALE, first_alone, is_tlbi_or_dsb, last_level};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::Tap;
use granule::arch::Descriptor;
use granule_model::Rule::*;
use granule_model::{Event, System, Visibility};

pub(super) const FAULTS: &[Fault] = &[
    fault("the TLBI after a fork made pages read-only is missing")
        .planted(fork, || drop_all(is_tlbi))
        .breaks(StaleTranslation, STALE),
    fault("a page is copied at a write, and its entry not broken first")
        .planted(copy, || drop_all(is_break))
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI between a page and its copy is missing")
        .planted(copy, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("a page of a shared group is copied, and one member not invalidated")
        .planted(copy_in_group, || nth(5, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("a whole group is copied at a write, and one member not broken first")
        .planted(copy_next_group, || nth(5, is_break, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("a whole group is copied at a write, and one member not invalidated")
        .planted(copy_next_group, || nth(5, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("the frames of a group that was copied are given back before the TLBI")
        .planted(copy_next_group, || delay(is_tlbi_or_dsb, is_given_back))
        .breaks(BreakBeforeMake, ""),
    fault("a block of which a group is copied is not broken first")
        .planted(copy_group_of_block, || drop_all(is_break))
        .breaks(BreakBeforeMake, ""),
    fault("frames are given back before the TLBI")
        .planted(unmap, || delay(is_tlbi_or_dsb, is_given_back))
        .breaks(StaleTranslation, GONE),
    fault("frames are given back before the DSB ISH")
        .planted(unmap, || delay(is_ish, is_given_back))
        .breaks(StaleTranslation, "no DSB completed it"),
    fault("a table with released pages is freed before the TLBI")
        .planted(exit, || delay(is_tlbi_or_dsb, is_freed))
        .breaks(FreedInUse, POINTER),
    fault("a last-level TLBI where a table with released pages goes")
        .planted(exit, || tlbis(last_level))
        .breaks(FreedInUse, POINTER),
    fault("pages become a group at level 0, and are not broken first")
        .planted(fold, || drop_all(is_break))
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI between pages and their group is missing")
        .planted(fold, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("one member is not invalidated before it is made part of a group")
        .planted(fold, || nth(7, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
    fault("members that hardware may update are emptied by plain stores")
        .planted(fold, || replace(is_exchange, plain))
        .breaks(LostUpdate, "access flag or the dirty state"),
    fault("permissions that hardware may update are changed by a plain store")
        .planted(restrict, || by_load_and_store(is_update))
        .breaks(LostUpdate, "access flag or the dirty state"),
    fault("a CPU does not flush before it uses a new generation of ASIDs")
        .planted(generations, || drop_all(is_flush))
        .breaks(BreakBeforeMake, ""),
    fault("a CPU does not flush because another one began the new generation")
        .planted(generation_of_another, flushes_of_the_other)
        .breaks(BreakBeforeMake, ""),
    fault("a new generation gives away the number that a CPU still runs under")
        .planted(generation_while_running, reserved_number_given_away)
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI of an unmap names the number that the process had a generation ago")
        .planted(unmap_renewed, || {
            tlbis(|op| with_operand(op, op.1 & !ASID | OLD_NUMBER << ASID_SHIFT))
        })
        .breaks(StaleTranslation, "it does not reach entries of this ASID"),
    fault("a group is made at once over a page that is mapped")
        .planted(touch_beside, || {
            nth(0, is_user_page, |kind| over_the_group(kind, 16))
        })
        .breaks(BreakBeforeMake, ""),
    fault("a group is made at once over a hole")
        .planted(touch_beside_nothing, || {
            nth(0, is_user_page, |kind| over_the_group(kind, 15))
        })
        .breaks(UnequalContiguous, ""),
    fault("a block is made over a table with a page")
        .planted(touch_beside, block_over_the_table)
        .breaks(BreakBeforeMake, ""),
    fault("a block of which a page is copied is not broken first")
        .planted(copy_in_block, || drop_all(is_break))
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI between a block and its pages is missing")
        .planted(copy_in_block, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("the table of a program's block is linked by a plain store")
        .planted(copy_in_block, || replace(is_link, plain))
        .breaks(UnorderedLink, ""),
    fault("a table becomes a program's block, and its entry is not broken first")
        .planted(merge_block, || drop_all(is_break_of_link))
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI between a table and a program's block is missing")
        .planted(merge_block, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("the table in whose place a program's block comes is freed before the TLBI")
        .planted(merge_block, || delay(is_tlbi_or_dsb, is_freed))
        .breaks(FreedInUse, POINTER),
    fault("a last-level TLBI where a table becomes a program's block")
        .planted(merge_block, || tlbis(last_level))
        .breaks(FreedInUse, POINTER),
    fault("frames of a block are given back before the TLBI")
        .planted(unmap_block, || delay(is_tlbi_or_dsb, is_given_back))
        .breaks(StaleTranslation, GONE),
    fault("a page goes out of a group, and one of the others keeps the hint")
        .planted(unmap_in_group, || nth(0, is_leaf_fill, one_grouped))
        .breaks(MixedContiguous, ""),
    fault("a page goes out of a group, and one of the others is not invalidated")
        .planted(unmap_in_group, || nth(7, is_tlbi, |_| Vec::new()))
        .breaks(BreakBeforeMake, ""),
];

/// Where a TTBR and a TLBI by address have the number.
const ASID_SHIFT: u32 = 48;
pub(super) const ASID: u64 = 0xffff << ASID_SHIFT;

/// Of the flushes in [`generation_of_another`] every second one is CPU 1's: that at the roll-over
/// and that before it uses the new generation.
fn flushes_of_the_other() -> Tap {
    let mut flushes = 0;
    replace(is_flush, move |kind| {
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
    first_alone(kind, |descriptor| descriptor | Descriptor::CONTIGUOUS)
}

/// The entry that leads to the table becomes empty.
fn is_break_of_link(kind: &Event) -> bool {
    matches!(kind, Event::Store { address, .. } if *address == entry_of_block()) && is_break(kind)
}

/// In place of the page a block comes into the entry that leads to its table.
fn block_over_the_table() -> Tap {
    Box::new(|_, kind| match kind {
        Event::Store { descriptor, .. } if is_user_page(&kind) => {
            let block = descriptor & !Descriptor::TABLE_OR_PAGE & !(BLOCK_BYTES - PAGE);
            vec![Event::store(entry_of_block(), block)]
        }
        other => vec![other],
    })
}

/// A page that EL0 may access comes.
const fn is_user_page(kind: &Event) -> bool {
    const USER_PAGE: u64 = Descriptor::AP_USER | Descriptor::TABLE_OR_PAGE | Descriptor::VALID;
    matches!(kind, Event::Store { count: 1, descriptor, .. } if *descriptor & USER_PAGE == USER_PAGE)
}

/// The page that comes is the first one of a group, of which so many members are stored.
fn over_the_group(mut kind: Event, members: u32) -> Vec<Event> {
    if let Event::Store {
        count,
        descriptor,
        step,
        ..
    } = &mut kind
    {
        *descriptor |= Descriptor::CONTIGUOUS;
        (*count, *step) = (members, PAGE);
    }
    vec![kind]
}

/// Frames are somebody else's from here on.
const fn is_given_back(kind: &Event) -> bool {
    matches!(kind, Event::AssumeVisible { .. })
}

const fn is_exchange(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 1, visibility, .. } if matches!(visibility, Visibility::Exchange))
}

/// All of a CPU's own TLB.
pub(super) const fn is_flush(kind: &Event) -> bool {
    matches!(kind, Event::System(System::VMALLE1, _))
}
