//! Hidden leaves: places that are taken, but translate nothing.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{Attributes, Page4K, PageSize, Permissions, VaRange};
use granule::table::{Holes, Leaves, Merged, PermissionChange, TableError};
use granule_testing::host::Event;
use granule_testing::shape::PLAIN;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);
const PAGE: u64 = 0x1000;
const GROUP: u64 = 16 * PAGE;
const BLOCK: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

fn bench(bbm: u32) -> Bench<Page4K> {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let setting = Setting::LIVE.bbm(bbm);
    Bench::new(&geometry, setting)
}

#[test]
fn a_guard_page_and_back() {
    let mut bench = bench(0);
    bench.lay(0x10_0000, 0x10_0000, 4 * PAGE, RW, Leaves::PAGES);
    let before = bench.dump();
    let guard = bench.reference.address(0x10_1000);
    bench.tables.set_invalid(guard, PAGE).unwrap();
    let tlbi = TlbiOp::Address {
        operand: 0x101,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    };
    let events = bench.host.take_events();
    assert!(matches!(events[0], Event::Change { .. }));
    let rest = [
        Event::DsbIshst,
        Event::Tlbi(tlbi),
        Event::DsbIsh,
        Event::Isb,
    ];
    assert_eq!(events[1..], rest);
    assert_eq!(bench.tables.query(guard), None);
    // An entry that was invalid is not cached: no TLBI.
    bench.tables.set_valid(guard, PAGE).unwrap();
    let events = bench.host.take_events();
    assert!(matches!(events[0], Event::Change { .. }));
    assert_eq!(events[1..], [Event::DsbIshst, Event::Isb]);
    assert_eq!(bench.dump(), before);
    // A page that is valid already takes nothing at all.
    bench.tables.set_valid(guard, PAGE).unwrap();
    assert_eq!(bench.host.take_events(), []);
}

#[test]
fn present_invalid_leaves_count_as_mapped() {
    let mut bench = bench(0);
    bench.lay(BLOCK, BLOCK, BLOCK, RW, Leaves::LARGEST);
    bench.lay(4 * BLOCK, 0, 2 * PAGE, RW, Leaves::PAGES);
    bench.set_invalid(BLOCK, BLOCK).unwrap();
    bench.set_invalid(4 * BLOCK + PAGE, PAGE).unwrap();
    for (at, bytes, taken) in [
        (BLOCK, PAGE, BLOCK),
        (BLOCK + 7 * PAGE, PAGE, BLOCK + 7 * PAGE),
        (4 * BLOCK + PAGE, PAGE, 4 * BLOCK + PAGE),
        (0, 8 * BLOCK, BLOCK),
    ] {
        let address = bench.reference.address(taken);
        let answer = bench.map(at, 0, bytes, RW, Leaves::LARGEST);
        assert_eq!(answer, Err(TableError::AlreadyMapped { address }));
    }
    // It keeps the permissions, and takes changes of them: nothing is a hole there.
    bench
        .protect(BLOCK, BLOCK, READ_ONLY, Holes::Refuse)
        .unwrap();
    bench.set_valid(BLOCK, BLOCK).unwrap();
    let at = bench.tables.query(bench.reference.address(BLOCK)).unwrap();
    assert!(!at.attributes.permissions.writable);
    // Holes are refused.
    let address = bench.reference.address(3 * BLOCK);
    for answer in [
        bench.set_invalid(3 * BLOCK, PAGE),
        bench.set_valid(3 * BLOCK, PAGE),
    ] {
        assert_eq!(answer, Err(TableError::NotMapped { address }));
    }
    // A table with only present-invalid pages in it stays, one without anything goes.
    bench.unmap(4 * BLOCK, PAGE).unwrap();
    let before = bench.host.given_out();
    bench.unmap(4 * BLOCK + PAGE, PAGE).unwrap();
    assert_eq!(bench.host.given_out(), before - 1);
}

#[test]
fn a_hidden_leaf_is_split_at_any_level_of_bbm() {
    // It is invalid, so nothing of it is cached: the rules for valid entries do not hold.
    for (bytes, member) in [(GROUP, true), (BLOCK, false), (16 * BLOCK, true)] {
        let mut bench = bench(0);
        bench.lay(bytes, bytes, bytes, RW, Leaves::LARGEST);
        let before = bench.dump();
        let present_invalid = bench.set_invalid(bytes + PAGE, PAGE);
        let edge = bench.reference.address(bytes + PAGE);
        let leaf = bench.reference.address(bytes);
        let refused = TableError::InsideLeaf {
            edge,
            leaf,
            leaf_bytes: bytes,
            takes: if bytes == GROUP {
                BbmLevel::Level1
            } else {
                BbmLevel::Level2
            },
        };
        assert_eq!(present_invalid, Err(refused));
        bench.set_invalid(bytes, bytes).unwrap();
        bench.set_valid(bytes + PAGE, PAGE).unwrap();
        bench
            .protect(bytes + 4 * PAGE, PAGE, READ_ONLY, Holes::Refuse)
            .unwrap();
        bench.unmap(bytes + 2 * PAGE, PAGE).unwrap();
        assert_eq!(bench.tree.leaves.len(), 1);
        bench.lay(bytes + 2 * PAGE, bytes + 2 * PAGE, PAGE, RW, Leaves::PAGES);
        bench.set_valid(bytes, bytes).unwrap();
        let writable = PermissionChange {
            writable: Some(true),
            ..READ_ONLY
        };
        bench
            .protect(bytes + 4 * PAGE, PAGE, writable, Holes::Refuse)
            .unwrap();
        bench.set_bbm(3);
        let merged = bench.merge(bytes, bytes, Leaves::LARGEST).unwrap();
        let expected = crate::merge::merged(u64::from(bytes >= BLOCK), u64::from(member));
        assert_eq!(merged, expected);
        assert_eq!(bench.dump(), before);
        if cfg!(miri) {
            return;
        }
    }
}

/// Nothing of a present-invalid block is cached, so unmapping it takes no TLBI. If a part of it
/// stays, walkers go by a table from then on and must see it whole; if none does, there is nothing
/// new to see.
#[test]
fn unmapping_hidden_blocks_takes_barriers_only_where_a_table_is_linked() {
    let mut bench = bench(0);
    bench.lay(GIB, GIB, 2 * GIB, RW, Leaves::LARGEST);
    bench.set_invalid(GIB, 2 * GIB).unwrap();
    let start = bench.reference.address(GIB);
    let before = bench.host.given_out();
    bench.tables.unmap(start, BLOCK).unwrap();
    assert_eq!(bench.host.given_out(), before + 1);
    let events = bench.host.take_events();
    let barriers = events
        .iter()
        .filter(|event| !matches!(event, Event::Store { .. } | Event::Change { .. }));
    let barriers: Vec<_> = barriers.collect();
    let [
        Event::Reserve(1),
        Event::Allocate { count: 1, .. },
        Event::DsbIshst,
        Event::Isb,
    ] = barriers[..]
    else {
        panic!("{barriers:x?}");
    };
    // The second block goes whole: one store.
    let start = bench.reference.address(2 * GIB);
    bench.tables.unmap(start, GIB).unwrap();
    let events = bench.host.take_events();
    assert!(
        matches!(events[..], [Event::Store { count: 1, .. }]),
        "{events:x?}"
    );
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn hidden_leaves_are_never_merged_with_others() {
    let mut bench = bench(3);
    bench.lay(BLOCK, BLOCK, BLOCK, RW, Leaves::PAGES);
    let nothing = Merged::default();
    // A whole group: all present-invalid is not a group, for the hint implies that they translate.
    bench.set_invalid(BLOCK, GROUP).unwrap();
    let merged = bench.merge(BLOCK, GROUP, Leaves::LARGEST).unwrap();
    assert_eq!(merged, nothing);
    // A whole table.
    bench.set_invalid(BLOCK, BLOCK).unwrap();
    let merged = bench.merge(BLOCK, BLOCK, Leaves::LARGEST).unwrap();
    assert_eq!(merged, nothing);
    bench.set_valid(BLOCK, BLOCK).unwrap();
    let merged = bench.merge(BLOCK, BLOCK, Leaves::LARGEST).unwrap();
    assert_eq!(merged, crate::merge::merged(1, 0));
}

#[test]
fn a_hidden_group_keeps_its_hint() {
    let mut bench = bench(0);
    bench.lay(GROUP, GROUP, GROUP, RW, Leaves::LARGEST);
    let before = bench.dump();
    bench.set_invalid(GROUP, GROUP).unwrap();
    assert_eq!(bench.tree.present_invalid.len(), 16);
    assert!(
        bench
            .tree
            .present_invalid
            .iter()
            .all(|leaf| leaf.word >> 52 & 1 == 1)
    );
    bench.set_valid(GROUP, GROUP).unwrap();
    assert_eq!(bench.dump(), before);
}
