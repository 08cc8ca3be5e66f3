//! Table memory: obtained, filled, linked, unlinked, freed.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Rule, System};

fn obtained(address: u64) -> Event {
    Event::obtained(address, 0x1000)
}

fn freed(address: u64) -> Event {
    Event::freed(address, 0x1000)
}

#[test]
fn entries_point_to_table_memory() {
    let mut rig = Rig::new(0);
    rig.event(obtained(SPARE));
    rig.fill(SPARE, 512, 0, 0);
    rig.release(L2 + 8, SPARE | TABLE);
    rig.expect(&[]);
    rig.fill(SPARE + 0x1000, 512, 0, 0);
    rig.release(L2 + 16, SPARE + 0x1000 | TABLE);
    rig.expect(&[Rule::NotTableMemory]);
}

#[test]
fn every_entry_of_a_table_is_stored_before_it_is_linked() {
    let mut rig = Rig::new(0);
    rig.event(obtained(SPARE));
    rig.fill(SPARE, 511, 0, 0);
    rig.release(L2 + 8, SPARE | TABLE);
    assert_eq!(rig.model.violations()[0].location, Some(SPARE + 511 * 8));
    rig.expect(&[Rule::UninitialisedTable]);
}

#[test]
fn a_table_is_not_freed_while_linked_nor_linked_when_freed() {
    let mut rig = Rig::new(0);
    rig.event(freed(L3));
    rig.expect(&[Rule::FreedInUse]);
    let mut rig = Rig::new(0);
    rig.event(obtained(SPARE));
    rig.fill(SPARE, 512, 0, 0);
    rig.event(freed(SPARE));
    rig.expect(&[]);
    rig.release(L2 + 8, SPARE | TABLE);
    rig.expect(&[Rule::NotTableMemory]);
}

#[test]
fn tables_below_an_unlinked_one_may_be_walked_too() {
    let mut rig = Rig::new(0);
    rig.store(L1, 0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.event(freed(L3));
    rig.expect(&[Rule::FreedInUse]);
    let mut rig = Rig::new(0);
    rig.store(L1, 0);
    rig.invalidate("vaae1is", at(VA));
    rig.event(freed(L3));
    rig.event(freed(L2));
    rig.expect(&[]);
}

#[test]
fn an_unlinked_table_is_not_filled_while_it_may_be_walked() {
    let mut rig = Rig::new(0);
    rig.store(L2, 0);
    // Links of a free list are not valid entries.
    rig.store(L3, 0x4000_5000);
    rig.expect(&[]);
    rig.store(L3, RAM | PAGE | RW);
    rig.expect(&[Rule::UnlinkedInUse]);
    let mut rig = Rig::new(0);
    rig.store(L2, 0);
    rig.invalidate("vaae1is", at(VA));
    rig.store(L3, RAM | PAGE | RW);
    rig.expect(&[]);
}

#[test]
fn a_tree_that_is_still_cached_is_not_freed() {
    // The upper half is switched to an empty tree.
    let switch = |invalidate: bool, isb: bool| {
        let mut rig = Rig::with(granule_model::Config::default());
        rig.make(L3, RAM | PAGE | RW);
        rig.fill(SPARE, 512, 0, 0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.register(System::TTBR1_EL1, SPARE);
        if isb {
            rig.isb();
        }
        if invalidate {
            rig.tlbi("vmalle1", 0);
            rig.barrier(Barrier::DSB_NSH);
        }
        rig.event(freed(L3));
        rig.model.violation_count()
    };
    assert_eq!(switch(true, true), 0);
    assert_eq!(switch(false, true), 1);
    assert_eq!(
        switch(true, false),
        1,
        "the old tree may be walked until the ISB"
    );
}

#[test]
fn a_table_linked_twice_is_reachable_until_both_are_gone() {
    let mut rig = Rig::new(0);
    rig.make(L2 + 8, L3 | TABLE);
    rig.make(L3, RAM | PAGE | RW);
    rig.reads(0, VA, &[Some(RAM)]);
    rig.reads(0, VA + 0x20_0000, &[Some(RAM)]);
    rig.store(L2, 0);
    rig.invalidate("vaae1is", at(VA));
    rig.event(freed(L3));
    rig.expect(&[Rule::FreedInUse]);
    rig.store(L3, 0);
    rig.invalidate("vaae1is", at(VA + 0x20_0000));
    rig.settle(&[]);
}

#[test]
fn a_tree_that_was_left_and_emptied_by_address_is_freed() {
    for empty in [true, false] {
        let mut rig = Rig::with_page(RAM | PAGE | RW | NG);
        rig.turn_on(TCR | 1 << 23, L0 | 1 << 48, 0);
        rig.write(System::TTBR0_EL1, SPARE | 2 << 48);
        if empty {
            rig.store(L0, 0);
            rig.barrier(Barrier::DSB_ISHST);
            rig.tlbi("vae1is", 1 << 48);
            rig.barrier(Barrier::DSB_ISH);
            rig.isb();
        }
        rig.expect(&[]);
        rig.event(Event::freed(L0, 0x1000));
        rig.expect_unless(empty, Rule::FreedInUse);
    }
}

#[test]
fn a_table_that_is_used_as_a_stack_is_one_finding() {
    let page = RAM | PAGE | RW;
    // What is pushed: an address of a string, a small number. Then whatever there is.
    for first in [0xffff_8000_0912_3457, 0b01] {
        let mut rig = Rig::new(0);
        rig.fill(L3, 512, page, 0x1000);
        rig.publish();
        rig.settle(&[]);
        // Return addresses, even addresses and zeros.
        for (index, word) in (500..).zip([0xffff_8000_0800_1234, 0, RAM]) {
            rig.store(L3 + index * 8, word);
        }
        rig.expect(&[]);
        rig.store(L3 + 8, first);
        rig.expect(&[Rule::NotTableMemory]);
        let words = [
            3,
            0x8000_7f23,
            first,
            RAM + 0x5000 | PAGE | RW,
            L0 | 3 | 1 << 48,
        ];
        for (index, word) in (0..500).zip(words.into_iter().cycle()) {
            rig.store(L3 + index * 8, word);
        }
        rig.event(Event::User);
        rig.settle(&[]);
        // It is a table again.
        rig.store(L2, 0);
        rig.invalidate("vmalle1is", 0);
        rig.fill(L3, 512, page, 0x1000);
        rig.barrier(Barrier::DSB_ISHST);
        rig.make(L2 + 8, L3 | TABLE);
        rig.settle(&[]);
        rig.store(L3 + 8, page);
        rig.expect(&[Rule::BreakBeforeMake]);
        rig.store(L3 + 16, first);
        rig.expect(&[Rule::NotTableMemory]);
    }
}

#[test]
fn a_table_that_leads_to_itself_may_have_blocks() {
    let mut rig = Rig::new(0);
    rig.make(L2 + 511 * 8, L2 | TABLE | XN);
    // Of level 2; at level 3 the encoding is reserved.
    rig.make(L2 + 8, RAM | BLOCK | RW);
    rig.settle(&[]);
    rig.make(L2 + 16, RAM | BLOCK | RW | 1 << 48);
    rig.expect(&[Rule::NotTableMemory]);
}

#[test]
fn a_top_table_may_lie_in_memory_that_was_never_obtained() {
    let mut rig = Rig::off(Config {
        track_tables: Some(true),
        ..Config::default()
    });
    rig.fill(L0, 512, 0, 0);
    rig.clean(L0, 0x1000);
    rig.turn_on(TCR | EPD0, 0, L0);
    rig.expect(&[]);
    rig.make(L0, L1 | TABLE);
    rig.expect(&[Rule::NotTableMemory]);
}

#[test]
fn a_table_leads_back_by_one_entry_and_not_by_many() {
    for (target, count, legal) in [
        (SPARE, 1, true),
        (L0, 1, true),
        (SPARE, 9, false),
        (L0, 9, false),
    ] {
        let mut rig = Rig::new(0);
        rig.fill(SPARE, 512, 0, 0);
        rig.fill(SPARE + 0x800, count, target | TABLE, 0);
        rig.barrier(Barrier::DSB_SY);
        rig.make(L0 + 8, SPARE | TABLE);
        rig.expect_unless(legal, Rule::UninitialisedTable);
    }
}
