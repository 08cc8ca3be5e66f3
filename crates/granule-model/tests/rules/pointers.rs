//! Cached pointers to tables below the entry that changed: an invalidation of one address removes
//! only the pointers on its way.

use crate::rig::*;
use granule_model::{Barrier, Rule};

/// The second table of level 3, for the 2 MiB after the first.
const L3B: u64 = 0x4000_5000;
const SECOND: u64 = VA + 0x20_0000;
const GIB_BLOCK: u64 = RAM | BLOCK | RW;

/// Two tables of level 3, with a page in each, and the entry above both made invalid.
fn unlinked(bbm_level: u8) -> Rig {
    let mut rig = Rig::new(bbm_level);
    rig.fill(L3B, 512, 0, 0);
    rig.store(L3, RAM | PAGE | RW);
    rig.make(L3B, (RAM + 0x20_0000) | PAGE | RW);
    rig.release(L2 + 8, L3B | TABLE);
    rig.publish();
    rig.expect(&[]);
    rig.store(L1, 0);
    rig
}

/// A last-level invalidation of both pages.
fn leaves(rig: &mut Rig) {
    rig.invalidate("vaale1is", at(VA));
    rig.invalidate("vaale1is", at(SECOND));
}

#[test]
fn a_block_waits_for_every_pointer_below_it() {
    for (second, legal) in [(false, false), (true, true)] {
        let mut rig = unlinked(0);
        rig.invalidate("vaae1is", at(VA));
        if second {
            rig.invalidate("vaae1is", at(SECOND));
        }
        leaves(&mut rig);
        rig.expect(&[]);
        rig.store(L1, GIB_BLOCK);
        rig.expect_unless(legal, Rule::BreakBeforeMake);
    }
    // Pointers to tables without pages: a walk faults where the block translates.
    for (second, legal) in [(false, false), (true, true)] {
        let mut rig = unlinked(0);
        rig.store(L3, 0);
        rig.store(L3B, 0);
        rig.invalidate("vaae1is", at(VA));
        rig.invalidate(if second { "vaae1is" } else { "vaale1is" }, at(SECOND));
        rig.store(L1, GIB_BLOCK);
        rig.expect_unless(legal, Rule::BreakBeforeMake);
    }
    // All of the regime at once.
    let mut rig = unlinked(0);
    rig.invalidate("vmalle1is", 0);
    rig.store(L1, GIB_BLOCK);
    rig.expect(&[]);
}

#[test]
fn a_pointer_below_a_block_of_the_same_memory_may_stay_at_level_2_and_of_other_memory_not() {
    for (block, legal) in [(GIB_BLOCK, true), (GIB_BLOCK + (1 << 30), false)] {
        let mut rig = unlinked(2);
        rig.invalidate("vaae1is", at(VA));
        leaves(&mut rig);
        rig.store(L1, block);
        rig.expect_unless(legal, Rule::BreakBeforeMake);
    }
    // The pointer of the entry itself.
    for (block, legal) in [(RAM, true), (RAM + 0x20_0000, false)] {
        let mut rig = unlinked(2);
        rig.store(L1, L2 | TABLE);
        rig.invalidate("vmalle1is", 0);
        rig.store(L2, 0);
        rig.invalidate("vaale1is", at(VA));
        rig.store(L2, block | BLOCK | RW);
        rig.expect_unless(legal, Rule::BreakBeforeMake);
    }
}

#[test]
fn a_page_is_cached_again_through_a_pointer_that_is_left() {
    // Last-level invalidations leave the pointers, through which the pages are found again; the
    // pointers go then, and the second page stays.
    for (order, legal) in [("pages first", false), ("pointers first", true)] {
        let mut rig = unlinked(0);
        if legal {
            rig.invalidate("vaae1is", at(VA));
            rig.invalidate("vaae1is", at(SECOND));
            leaves(&mut rig);
        } else {
            leaves(&mut rig);
            // No page here is mapped, so only the pointers go.
            rig.invalidate("vaae1is", at(VA + 0x1f_0000));
            rig.invalidate("vaae1is", at(SECOND + 0x1f_0000));
        }
        rig.sync();
        let found = rig.rules();
        assert_eq!(found.is_empty(), legal, "{order}: {found:?}");
        assert!(found.iter().all(|rule| *rule == Rule::StaleTranslation));
    }
    // Pages that are invalid in their table first are not found again.
    let mut rig = unlinked(0);
    rig.store(L3, 0);
    rig.store(L3B, 0);
    leaves(&mut rig);
    rig.invalidate("vaae1is", at(VA + 0x1f_0000));
    rig.invalidate("vaae1is", at(SECOND + 0x1f_0000));
    rig.settle(&[]);
}

#[test]
fn a_pointer_of_another_cpu_is_no_way_for_this_one() {
    let mut rig = unlinked(0);
    rig.barrier(Barrier::DSB_ISHST);
    // Each CPU invalidates for itself: one in the right order while the other has all pointers.
    rig.cpu = 1;
    for name in ["vaae1", "vaale1"] {
        rig.tlbi(name, at(VA));
        rig.tlbi(name, at(SECOND));
        rig.barrier(Barrier::DSB_NSH);
        rig.isb();
    }
    rig.cpu = 0;
    rig.flush();
    rig.settle(&[]);
}

#[test]
fn a_pointer_is_a_way_for_the_cpu_that_holds_it_only() {
    let mut rig = unlinked(0);
    rig.barrier(Barrier::DSB_ISHST);
    rig.cpu = 1;
    rig.tlbi("vaae1", at(VA + 0x1f_0000));
    rig.tlbi("vaae1", at(SECOND + 0x1f_0000));
    rig.barrier(Barrier::DSB_NSH);
    rig.isb();
    rig.cpu = 0;
    leaves(&mut rig);
    // CPU 0 may have found the pages again, CPU 1 not.
    rig.flush();
    rig.settle(&[]);
}

#[test]
fn one_dsb_for_pointers_and_pages_leaves_the_pages() {
    // Nothing orders the two invalidations before the DSB.
    for (dsb, legal) in [(false, false), (true, true)] {
        let mut rig = unlinked(0);
        rig.barrier(Barrier::DSB_ISHST);
        rig.tlbi("vaae1is", at(VA + 0x1f_0000));
        rig.tlbi("vaae1is", at(SECOND + 0x1f_0000));
        if dsb {
            rig.barrier(Barrier::DSB_ISH);
        }
        rig.tlbi("vaale1is", at(VA));
        rig.tlbi("vaale1is", at(SECOND));
        rig.barrier(Barrier::DSB_ISH);
        rig.isb();
        rig.sync();
        assert_eq!(rig.model.violation_count() == 0, legal, "{dsb}");
    }
}
