//! RWHZWS and its relaxations: every kind of change, at every BBM level.

use crate::rig::*;
use granule_model::{Barrier, Config, Event, Rule};

/// One page changed from one value to another in place.
fn page(bbm_level: u8, old: u64, new: u64) -> Rig {
    let mut rig = Rig::new(bbm_level);
    rig.make(L3, old);
    rig.expect(&[]);
    rig.store(L3, new);
    rig
}

#[test]
fn memory_type_output_address_and_its_space_always_need_a_break() {
    let old = RAM | PAGE | RW;
    for level in 0..=3 {
        for new in [
            old | DEVICE,
            old | NON_SECURE,
            old & !(0b01 << 8),
            old + 0x1000,
            (RAM + 0x1000) | PAGE | RW | RO,
        ] {
            page(level, old, new).expect(&[Rule::BreakBeforeMake]);
        }
    }
}

#[test]
fn the_violation_names_both_events_and_the_place() {
    let mut rig = page(0, RAM | PAGE | RW, RAM + 0x1000 | PAGE | RW);
    let now = rig.model.events();
    let violation = &rig.model.violations()[0];
    assert_eq!(violation.rule.name(), "RWHZWS");
    assert_eq!(violation.event, now - 1);
    assert_eq!(violation.earlier, Some(now - 1));
    assert_eq!(violation.location, Some(L3));
    assert_eq!(violation.range, (VA, VA + 0xfff));
    assert!(violation.is_virtual);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn read_only_pages_of_equal_contents_may_move() {
    let mut rig = Rig::with(Config {
        cpus: 2,
        equal_contents: true,
        ..Config::default()
    });
    rig.make(L3, RAM | PAGE | RW | RO);
    rig.store(L3, (RAM + 0x1000) | PAGE | RW | RO);
    rig.invalidate("vaale1is", at(VA));
    rig.settle(&[]);
    rig.store(L3, RAM + 0x2000 | PAGE | RW);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn permissions_and_not_global_change_in_place_and_need_a_tlbi_before_they_are_relied_on() {
    let old = RAM | PAGE | RW;
    for new in [old | RO, old | NG, (old | RO) ^ (1 << 54)] {
        let mut rig = page(0, old, new);
        rig.expect(&[]);
        rig.publish();
        rig.settle(&[Rule::StaleTranslation]);

        let mut rig = page(0, old, new);
        rig.invalidate("vaale1is", at(VA));
        rig.settle(&[]);
    }
}

#[test]
fn not_global_to_global_needs_a_break() {
    for level in 0..=3 {
        page(level, RAM | PAGE | RW | NG, RAM | PAGE | RW).expect(&[Rule::BreakBeforeMake]);
    }
}

#[test]
fn software_bits_and_the_access_flag_need_nothing() {
    let old = RAM | PAGE | RW;
    for (from, to) in [(old, old | 0b1111 << 55), (old & !AF, old)] {
        let mut rig = page(0, from, to);
        rig.publish();
        rig.settle(&[]);
    }
    // An entry with the flag clear is not cached, so anything may follow it.
    let mut rig = page(0, old & !AF, old + 0x1000);
    rig.publish();
    rig.settle(&[]);
}

#[test]
fn widening_needs_an_invalidation_and_clearing_the_access_flag_strictly() {
    let old = RAM | PAGE | RW;
    let stale = &[Rule::StaleTranslation][..];
    for (from, to, lax) in [
        (old | RO, old, stale),
        (old, old & !XN, stale),
        (old | GUARDED, old, stale),
        (old, old & !AF, &[]),
        // The same again is legal.
        (old, old, &[]),
    ] {
        for (strict, invalidate) in [(false, false), (true, false), (true, true)] {
            let mut rig = Rig::with(Config { strict, ..two() });
            rig.make(L3, from);
            rig.store(L3, to);
            if invalidate {
                rig.invalidate("vaale1is", at(VA));
            } else {
                rig.publish();
            }
            rig.settle(match (strict, invalidate) {
                (_, true) => &[],
                (true, _) if from != to => stale,
                _ => lax,
            });
        }
    }
}

#[test]
fn a_guarded_page_narrows_what_is_allowed() {
    for guard in [GUARDED, 0] {
        let mut rig = Rig::new(0);
        rig.make(L3, RAM | PAGE | RW & !XN);
        rig.make(L3, RAM | PAGE | RW & !XN | guard);
        rig.sync();
        let text = rig.model.violations().first().map(ToString::to_string);
        assert_eq!(
            text.is_some_and(|text| text.contains("may still use the old translation")),
            guard != 0
        );
    }
}

#[test]
fn break_before_make_needs_all_its_steps() {
    let (old, new) = (RAM | PAGE | RW, RAM + 0x1000 | PAGE | RW);
    // Which of the steps are taken: DSB, TLBI, DSB.
    for steps in 0..8 {
        let mut rig = Rig::new(0);
        rig.make(L3, old);
        rig.store(L3, 0);
        if steps & 1 != 0 {
            rig.barrier(Barrier::DSB_ISHST);
        }
        if steps & 2 != 0 {
            rig.tlbi("vaale1is", at(VA));
        }
        if steps & 4 != 0 {
            rig.barrier(Barrier::DSB_ISH);
        }
        rig.make(L3, new);
        let complete = steps == 7;
        rig.expect_unless(complete, Rule::BreakBeforeMake);
    }
}

#[test]
fn the_same_again_needs_no_tlbi() {
    for strict in [false, true] {
        let mut rig = Rig::with(Config { strict, ..two() });
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L3, 0);
        rig.make(L3, RAM | PAGE | RW);
        rig.sync();
        rig.expect_unless(!strict, Rule::Revalidated);
    }
}

/// A block, and a filled but unlinked table that maps the same.
fn block(bbm_level: u8, attributes: u64) -> Rig {
    let mut rig = Rig::new(bbm_level);
    rig.make(L2 + 8, RAM | BLOCK | RW);
    rig.fill(SPARE, 512, RAM | PAGE | attributes, 0x1000);
    rig.barrier(Barrier::DSB_ISHST);
    rig.expect(&[]);
    rig
}

#[test]
fn a_block_is_split_in_place_from_level_2_on() {
    for level in 0..=3 {
        let mut rig = block(level, RW);
        rig.make(L2 + 8, SPARE | TABLE);
        rig.sync();
        if level < 2 {
            let all = rig.model.violations();
            assert!(!all.is_empty() && all.iter().all(|one| one.rule == Rule::BreakBeforeMake));
        } else {
            rig.expect(&[]);
        }
        let va = VA + 0x20_3000;
        rig.cpu = 1;
        rig.isb();
        match level {
            2 => rig.reads(1, va, &[Some(RAM + 0x3000), Some(u64::MAX)]),
            3 => rig.reads(1, va, &[Some(RAM + 0x3000)]),
            _ => {}
        }
    }
}

#[test]
fn a_conflict_abort_is_reported_in_strict_mode() {
    for (level, rules) in [(2, &[Rule::ConflictPossible][..]), (3, &[])] {
        let mut rig = Rig::with(Config {
            cpus: 2,
            bbm_level: level,
            strict: true,
            ..Config::default()
        });
        rig.make(L2 + 8, RAM | BLOCK | RW);
        rig.fill(SPARE, 512, RAM | PAGE | RW, 0x1000);
        rig.release(L2 + 8, SPARE | TABLE);
        rig.expect(rules);
    }
}

#[test]
fn a_table_is_folded_in_place_from_level_2_on() {
    for level in 0..=3 {
        let mut rig = Rig::new(level);
        rig.fill(SPARE, 512, RAM | PAGE | RW, 0x1000);
        rig.release(L2 + 8, SPARE | TABLE);
        rig.publish();
        rig.make(L2 + 8, RAM | BLOCK | RW);
        rig.sync();
        if level < 2 {
            assert!(rig.model.violation_count() > 0);
        } else {
            rig.expect(&[]);
        }
    }
}

#[test]
fn nothing_else_changes_together_with_the_size() {
    // Attributes after the split, in the same store.
    for level in 2..=3 {
        let mut rig = block(level, RW | DEVICE);
        rig.store(L2 + 8, SPARE | TABLE);
        rig.expect(&[Rule::SizeWithOtherChange]);
    }
    // Permissions need no break, so they may go along: until they are relied on (RPVTFW).
    for invalidate in [false, true] {
        let mut rig = block(2, RW | RO);
        rig.store(L2 + 8, SPARE | TABLE);
        if invalidate {
            rig.invalidate("vaae1is", at(VA + 0x20_0000));
        }
        rig.expect(&[]);
        rig.isb();
        rig.sync();
        let stale = rig.rules().contains(&Rule::StaleTranslation);
        assert_eq!(stale, !invalidate);
    }
    // First split, then change: the old block must go before that is relied on.
    let mut rig = block(2, RW);
    rig.make(L2 + 8, SPARE | TABLE);
    rig.update(SPARE + 8 * 5, 1, 0, RO);
    rig.publish();
    rig.expect(&[]);
    rig.settle(&[Rule::StaleTranslation, Rule::StaleTranslation]);
    // One address inside the old block removes it, and that of the page the page.
    let mut rig = block(2, RW);
    rig.make(L2 + 8, SPARE | TABLE);
    rig.update(SPARE + 8 * 5, 1, 0, RO);
    rig.invalidate("vaae1is", at(VA + 0x20_5000));
    rig.settle(&[]);
}

#[test]
fn level_1_splits_with_the_not_translation_bit() {
    let operand = at(VA + 0x20_0000);
    let mut rig = block(1, RW);
    rig.store(L2 + 8, RAM | BLOCK | RW | NT);
    rig.invalidate("vaale1is", operand);
    rig.store(L2 + 8, SPARE | TABLE);
    rig.invalidate("vaale1is", operand);
    rig.settle(&[]);

    // Without the invalidation the block without nT may still be there.
    let mut rig = block(1, RW);
    rig.store(L2 + 8, RAM | BLOCK | RW | NT);
    rig.barrier(Barrier::DSB_ISHST);
    rig.store(L2 + 8, SPARE | TABLE);
    assert!(rig.model.violation_count() > 0);

    // And with level 0 the bit is not there at all.
    let mut rig = block(0, RW);
    rig.store(L2 + 8, RAM | BLOCK | RW | NT);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn level_1_folds_with_the_not_translation_bit() {
    for forget in [false, true] {
        let mut rig = Rig::new(1);
        rig.fill(SPARE, 512, RAM | PAGE | RW, 0x1000);
        rig.release(L2 + 8, SPARE | TABLE);
        rig.publish();
        rig.store(L2 + 8, RAM | BLOCK | RW | NT);
        if !forget {
            rig.barrier(Barrier::DSB_ISHST);
            for page in 0..512 {
                rig.tlbi("vaae1is", at(VA + 0x20_0000 + page * 0x1000));
            }
            rig.barrier(Barrier::DSB_ISH);
        }
        rig.expect(&[]);
        rig.store(L2 + 8, RAM | BLOCK | RW);
        rig.invalidate("vaae1is", at(VA + 0x20_0000));
        if forget {
            assert!(rig.model.violation_count() > 0);
        } else {
            rig.settle(&[]);
        }
    }
}

#[test]
fn another_table_behind_an_entry_needs_a_break() {
    let mut rig = Rig::new(3);
    rig.fill(SPARE, 512, 0, 0);
    rig.release(L2 + 8, SPARE | TABLE);
    rig.publish();
    rig.fill(SPARE + 0x1000, 512, 0, 0);
    rig.release(L2 + 8, SPARE + 0x1000 | TABLE);
    rig.expect(&[Rule::BreakBeforeMake]);
}

#[test]
fn limits_in_table_entries_change_in_place_and_need_a_tlbi() {
    // APTable[1]: read-only below.
    for name in ["vaae1is", "vaale1is"] {
        let mut rig = Rig::new(0);
        rig.make(L3, RAM | PAGE | RW);
        rig.store(L2, L3 | TABLE | 1 << 62);
        rig.expect(&[]);
        rig.invalidate(name, at(VA));
        rig.sync();
        // A last-level operation leaves the table entry without the limit.
        rig.expect_unless(name == "vaae1is", Rule::StaleTranslation);
    }
}

#[test]
fn a_block_left_with_the_not_translation_bit_may_fault() {
    let operand = at(VA + 0x20_0000);
    let mut rig = block(1, RW);
    rig.store(L2 + 8, RAM | BLOCK | RW | NT);
    rig.invalidate("vaale1is", operand);
    rig.expect(&[]);
    rig.reads(0, VA + 0x20_0000, &[Some(RAM), None]);
    rig.event(Event::assume_visible(VA + 0x20_0000, 0x1000));
    // By either CPU.
    rig.expect(&[Rule::NoTranslation, Rule::NoTranslation]);
    rig.settle(&[Rule::NoTranslation]);

    // The last TLBI of the protocol: without it a CPU may still have the block that faults.
    let mut rig = block(1, RW);
    rig.store(L2 + 8, RAM | BLOCK | RW | NT);
    rig.invalidate("vaale1is", operand);
    rig.make(L2 + 8, SPARE | TABLE);
    rig.reads(0, VA + 0x20_0000, &[Some(RAM), None, Some(u64::MAX)]);
    rig.settle(&[Rule::StaleTranslation]);
}
