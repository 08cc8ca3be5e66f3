//! Contiguous groups.

use crate::rig::*;
use granule_model::{Access, Config, Event, FaultKind, Miss, Outcome, Rule, System};

#[test]
fn a_group_may_be_filled_and_emptied_entry_by_entry() {
    let mut rig = Rig::new(0);
    for index in 0..16 {
        rig.store(L3 + index * 8, RAM + index * 0x1000 | PAGE | RW | CONT);
    }
    rig.publish();
    for index in 0..16 {
        rig.store(L3 + index * 8, 0);
    }
    rig.barrier(granule_model::Barrier::DSB_ISHST);
    for index in 0..16 {
        rig.tlbi("vaale1is", at(VA + index * 0x1000));
    }
    rig.barrier(granule_model::Barrier::DSB_ISH);
    rig.fill(L3, 16, RAM + 0x10_0000 | PAGE | RW, 0x1000);
    rig.publish();
    rig.settle(&[]);
}

#[test]
fn every_member_must_be_invalidated() {
    let mut rig = Rig::new(0);
    rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
    rig.publish();
    rig.fill(L3, 16, 0, 0);
    rig.barrier(granule_model::Barrier::DSB_ISHST);
    for index in (0..16).filter(|&index| index != 11) {
        rig.tlbi("vaale1is", at(VA + index * 0x1000));
    }
    rig.barrier(granule_model::Barrier::DSB_ISH);
    rig.fill(L3, 16, RAM + 0x10_0000 | PAGE | RW, 0x1000);
    let violation = &rig.model.violations()[0];
    assert_eq!(violation.range, (VA + 0xb000, VA + 0xbfff));
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn members_with_and_without_the_bit_are_misprogrammed() {
    let mut rig = Rig::new(0);
    rig.fill(L3, 8, RAM | PAGE | RW | CONT, 0x1000);
    rig.expect(&[]);
    rig.store(L3 + 8 * 8, RAM + 0x8000 | PAGE | RW);
    rig.expect(&[Rule::MixedContiguous]);
    // The next group is another one.
    let mut rig = Rig::new(0);
    rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
    rig.store(L3 + 16 * 8, RAM + 0x1_0000 | PAGE | RW);
    rig.expect(&[]);
}

#[test]
fn the_bit_changes_entry_by_entry_from_level_1_on() {
    for level in 0..=3 {
        let mut rig = Rig::new(level);
        rig.fill(L3, 16, RAM | PAGE | RW, 0x1000);
        rig.publish();
        for index in 0..16 {
            rig.update(L3 + index * 8, 1, 0, CONT);
        }
        rig.publish();
        rig.sync();
        if level == 0 {
            assert!(rig.model.violation_count() > 0);
        } else {
            rig.expect(&[]);
        }
    }
    // Left half done it is a misprogrammed group.
    let mut rig = Rig::new(2);
    rig.fill(L3, 16, RAM | PAGE | RW, 0x1000);
    rig.publish();
    rig.update(L3, 8, 0, CONT);
    rig.publish();
    rig.expect(&[]);
    rig.settle(&[Rule::MixedContiguous]);
}

#[test]
fn nothing_else_changes_together_with_the_bit() {
    let mut rig = Rig::new(2);
    rig.fill(L3, 16, RAM | PAGE | RW, 0x1000);
    rig.publish();
    rig.update(L3, 16, 0, CONT | DEVICE);
    rig.expect(&[Rule::SizeWithOtherChange]);
}

#[test]
fn members_map_one_aligned_range_with_the_same_attributes() {
    let first = RAM | PAGE | RW | CONT;
    for (value, index) in [
        // Not aligned, not contiguous, another memory type.
        (first + 0x1000, 0),
        (first + 0x9000, 1),
        (first + 0x1000 | DEVICE, 1),
    ] {
        let mut rig = Rig::new(0);
        if index > 0 {
            rig.store(L3, first);
            rig.expect(&[]);
        }
        rig.store(L3 + index * 8, value);
        rig.expect(&[Rule::UnequalContiguous]);
    }
}

#[test]
fn access_and_dirty_state_may_differ_and_permissions_until_relied_on() {
    let dbm = 1 << 51;
    let mut rig = Rig::new(0);
    rig.fill(L3, 16, RAM | PAGE | RW | RO | dbm | CONT, 0x1000);
    rig.publish();
    rig.update(L3 + 24, 1, RO, 0);
    rig.update(L3 + 32, 1, AF, 0);
    rig.invalidate("vmalle1is", 0);
    rig.settle(&[]);

    let mut rig = Rig::new(0);
    rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
    rig.publish();
    rig.update(L3, 15, 0, RO);
    for index in 0..16 {
        rig.invalidate("vaale1is", at(VA + index * 0x1000));
    }
    rig.expect(&[]);
    rig.settle(&[Rule::UnequalContiguous]);
}

#[test]
fn members_differ_in_nothing_but_access_and_dirty_state() {
    let first = RAM | PAGE | RW | CONT;
    let dbm = 1 << 51;
    // What differs, and whether it may until the group is relied on.
    for (first, second, until_relied_on) in [
        (first, first ^ 0b11 << 8, false),
        (first, first ^ NON_SECURE, false),
        (first, first ^ RO, true),
        (first, first ^ 1 << 6, true),
        (first, first ^ NG, true),
        (first, first ^ GUARDED, true),
        (first, first ^ 1 << 53, true),
        (first, first ^ 1 << 54, true),
        // A dirty page, by hardware, and one that is read-only.
        (first | dbm, first | RO, true),
    ] {
        let mut rig = Rig::new(0);
        rig.make(L3, first);
        rig.make(L3 + 8, second + 0x1000);
        rig.expect_unless(until_relied_on, Rule::UnequalContiguous);
        if until_relied_on {
            rig.settle(&[Rule::UnequalContiguous]);
        }
    }
    // Two mistakes: at level 2 the bit may differ for a while, the address not.
    let mut rig = Rig::new(2);
    rig.make(L3 + 16, RAM + 0x2000 | PAGE | RW);
    rig.make(L3, first);
    rig.expect(&[]);
    rig.make(L3 + 8, first + 0x9000);
    rig.expect(&[Rule::UnequalContiguous]);
}

#[test]
fn a_group_is_relied_on_in_its_own_address_space() {
    use crate::kernels::{ASID, OTHER, program};
    let mut rig = program(1, granule_model::Policies::NONE);
    let first = RAM | PAGE | RW | NG | CONT;
    rig.make(OTHER + 0x3080, first);
    rig.make(OTHER + 0x3088, (first + 0x1000) | RO);
    let relied = |asid| Event::AssumeVisible {
        start: 0x10000,
        bytes: 0x10000,
        asid: Some(asid),
    };
    rig.event(relied(ASID as u16 + 1));
    rig.expect(&[]);
    rig.event(relied(ASID as u16));
    rig.expect(&[Rule::UnequalContiguous]);
}

#[test]
fn a_group_is_checked_when_its_table_is_linked() {
    let mut rig = Rig::new(0);
    rig.fill(SPARE, 16, RAM + 0x1000 | PAGE | RW | CONT, 0x1000);
    rig.expect(&[]);
    rig.release(L2 + 8, SPARE | TABLE);
    rig.expect(&[Rule::UnequalContiguous]);
}

#[test]
fn a_group_beyond_the_top_table() {
    // 4K, 33-bit addresses: the top table is of level 1 and has 8 entries, half a group.
    let mut rig = Rig::off(Config::default());
    rig.fill(L0, 8, RAM | BLOCK | RW | CONT, 1 << 30);
    rig.event(granule_model::Event::lines(System::DC_CIVAC, L0, 64));
    rig.barrier(granule_model::Barrier::DSB_SY);
    rig.turn_on((TCR & !(0x3f << 16)) | 31 << 16 | EPD0, 0, L0);
    rig.expect(&[Rule::ContiguousOutside]);
}

#[test]
fn a_lookup_may_take_any_member_for_the_group() {
    // The first member is read-only, the others are not: a store to it may be allowed (RJQQTC).
    let mut rig = Rig::new(0);
    rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
    rig.publish();
    rig.update(L3, 1, 0, RO);
    rig.invalidate("vmalle1is", 0);
    let allowed = |outcome: &Outcome| matches!(outcome, Outcome::Memory(one) if one.address == RAM);
    let outcomes = rig.model.outcomes(0, VA, Access::WRITE);
    assert!(outcomes.iter().any(allowed), "{outcomes:?}");
    assert!(outcomes.contains(&Outcome::Fault(FaultKind::Permission)));
    rig.expect(&[]);
    rig.event(Event::assume_visible(VA + 0x10_0000, 0x1000));
    rig.expect(&[]);
    rig.event(Event::assume_visible(VA + 0x4000, 0x1000));
    rig.expect(&[Rule::UnequalContiguous]);
}

#[test]
fn a_lookup_in_a_group_half_done_may_conflict() {
    for (level, conflict) in [(1, true), (2, true), (3, false)] {
        let mut rig = Rig::new(level);
        rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
        rig.publish();
        rig.update(L3, 8, CONT, 0);
        rig.invalidate("vmalle1is", 0);
        let outcomes = rig.model.outcomes(0, VA, Access::READ);
        assert_eq!(outcomes.contains(&Outcome::Conflict), conflict, "{level}");
        // All of it done, nothing of that is left.
        rig.update(L3, 16, CONT, 0);
        rig.invalidate("vmalle1is", 0);
        assert_eq!(rig.model.outcomes(0, VA, Access::READ).len(), 1);
    }
}

/// A full group with BBM level 2, which both CPUs may hold.
fn full() -> Rig {
    let mut rig = Rig::new(2);
    rig.fill(L3, 16, RAM | PAGE | RW | CONT, 0x1000);
    rig.publish();
    rig
}

fn empty(rig: &mut Rig, members: std::ops::Range<u64>) {
    for index in members {
        rig.store(L3 + index * 8, 0);
        rig.invalidate("vaale1is", at(VA + index * 0x1000));
    }
}

#[test]
fn a_valid_member_serves_for_those_that_were_emptied() {
    // Member by member, each with its own TLBI: all but the last may be found again.
    let mut rig = full();
    empty(&mut rig, 0..16);
    rig.sync();
    let found = rig.model.violations();
    let stale = |rule: &Rule| *rule == Rule::StaleTranslation;
    assert!(
        !found.is_empty() && rig.rules().iter().all(stale),
        "{found:?}"
    );
    assert!(
        found.iter().all(|one| one.range.1 < VA + 0xf000),
        "{found:?}"
    );
    assert_eq!(
        found[0].missed.map(|(_, miss)| miss),
        Some(Miss::GroupServes)
    );
    // The hint of all goes first.
    let mut rig = full();
    rig.update(L3, 16, CONT, 0);
    rig.invalidate("vmalle1is", 0);
    empty(&mut rig, 0..16);
    rig.settle(&[]);
    // A half: until the other one is empty too, and the whole invalidated.
    let mut rig = full();
    empty(&mut rig, 0..8);
    rig.reads(0, VA, &[None, Some(RAM)]);
    rig.reads(0, VA + 0x8000, &[Some(RAM + 0x8000)]);
    rig.fill(L3 + 8 * 8, 8, 0, 0);
    rig.invalidate("vmalle1is", 0);
    rig.reads(0, VA, &[None]);
    rig.settle(&[]);
    let mut rig = full();
    empty(&mut rig, 0..1);
    rig.event(Event::assume_visible(VA + 0x1000, 0x1000));
    rig.expect(&[]);
    rig.event(Event::assume_visible(VA, 0x1000));
    rig.expect(&[Rule::StaleTranslation]);
    // Other pages come in its place.
    let mut rig = full();
    empty(&mut rig, 0..1);
    rig.store(L3, RAM + 0x10_0000 | PAGE | RW);
    assert!(
        rig.rules().contains(&Rule::BreakBeforeMake),
        "{:?}",
        rig.rules()
    );
}

#[test]
fn a_member_that_was_never_valid_may_be_served_too() {
    let mut rig = Rig::new(0);
    rig.fill(L3, 8, RAM | PAGE | RW | CONT, 0x1000);
    rig.publish();
    rig.reads(0, VA + 0x8000, &[None, Some(RAM + 0x8000)]);
    rig.reads(0, VA + 0x10_000, &[None]);
    rig.settle(&[]);
}
