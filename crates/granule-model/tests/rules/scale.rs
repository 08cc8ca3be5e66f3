//! A trace of a million events, in bounded time and memory.

use crate::rig::*;
use granule_model::{Barrier, Config};

#[test]
fn a_trace_that_is_wrong_all_the_way_is_replayed_too() {
    let mut rig = Rig::with(Config::default());
    for round in 0..20_000u64 {
        // Another page in the same slot, never invalidated; pages unmapped, never invalidated.
        rig.store(L3, RAM + (round % 0x8000 * 0x1000) | PAGE | RW);
        rig.store(L3 + 8 + round % 511 * 8, RAM | PAGE | RW);
        rig.store(L3 + 8 + round % 511 * 8, 0);
        rig.tlbi("vale1is", 0);
    }
    assert_eq!(
        rig.model.violations().len(),
        rig.model.config().most_violations
    );
    assert!(rig.model.violation_count() > 18_000);
    // Entries that were reported are dropped, however long it goes on.
    assert!(rig.model.kept() < 2000, "{} kept", rig.model.kept());
}

#[test]
fn a_million_events_are_replayed() {
    let mut rig = Rig::with(Config::default());
    // Boot-like: 512 tables filled in one event each, linked, then pages changed one by one.
    for table in 0..512 {
        let base = 0x1_0000_0000 + table * 0x1000;
        rig.fill(base, 512, RAM + table * 0x20_0000 | PAGE | RW, 0x1000);
        if table > 0 {
            rig.release(L2 + table * 8, base | TABLE);
        }
    }
    rig.publish();
    while rig.model.events() < 1_000_000 {
        for index in 0..512 {
            let va = VA + 0x20_0000 + index * 0x1000;
            let entry = 0x1_0000_1000 + index * 8;
            let page = RAM + 0x20_0000 + index * 0x1000 | PAGE | RW;
            rig.store(entry, 0);
            rig.barrier(Barrier::DSB_ISHST);
            rig.tlbi("vaale1is", at(va));
            rig.barrier(Barrier::DSB_ISH);
            rig.make(entry, page);
        }
    }
    rig.settle(&[]);
    // Tables and a few more, and a few entries for each event.
    let (kept, visits) = (rig.model.kept(), rig.model.visits());
    assert!(kept < 2 * 512, "{kept} kept");
    assert!(visits < 128 * rig.model.events(), "{visits} visits");
}
