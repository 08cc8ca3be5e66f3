//! Merging: what becomes a block or a group again and what must not, and the order in which it
//! is done on live tables.

use crate::bench::{Bench, Setting};
use crate::changes::{READ_ONLY, WRITABLE};
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{Attributes, Level, Page4K, PageSize, Permissions, VaRange};
use granule::table::{Holes, Leaves, Merged};
use granule_testing::host::Event;
use granule_testing::shape::{LARGE, PLAIN};
use granule_testing::walk::Tree;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);
const RO: Attributes = Attributes::normal(Permissions {
    writable: false,
    ..Permissions::READ_WRITE
});
const PAGE: u64 = 0x1000;
const GROUP: u64 = 16 * PAGE;
const BLOCK: u64 = 2 << 20;

fn bench(live: bool, bbm: u32) -> Bench<Page4K> {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let setting = Setting::LIVE.live(live).bbm(bbm);
    Bench::new(&geometry, setting)
}

pub fn merged(tables: u64, groups: u64) -> Merged {
    let mut merged = Merged::default();
    (merged.tables, merged.groups) = (tables, groups);
    merged
}

/// Counts the leaves at a level, and those with the hint.
fn leaves(tree: &Tree, level: i32) -> (usize, usize) {
    let at = tree.leaves.iter().filter(|leaf| leaf.level == level);
    let hinted = at.clone().filter(|leaf| leaf.word >> 52 & 1 == 1);
    (at.count(), hinted.count())
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn pages_and_blocks_become_the_largest_leaf() {
    for live in [false, true] {
        let mut bench = bench(live, 2);
        let (gib, page) = (1 << 30, Leaves::PAGES);
        let blocks = Leaves {
            top: Level::L2,
            contiguous: false,
        };
        let rest = gib - BLOCK;
        bench.lay(gib, gib, rest, RW, blocks);
        bench.lay(gib + rest, gib + rest, BLOCK, RW, page);
        let span = bench.arch.span();
        let done = bench.merge(0, span, Leaves::LARGEST).unwrap();
        assert_eq!(done, merged(2, 0));
        assert_eq!(leaves(&bench.tree, 1), (1, 0));
        assert_eq!(bench.tree.leaves.len(), 1);
        // Once more there is nothing to do, and nothing is done.
        bench.host.take_events();
        let start = bench.reference.address(0);
        let again = bench.tables.merge(start, span, Leaves::LARGEST).unwrap();
        assert_eq!((again, bench.host.take_events()), (merged(0, 0), vec![]));
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn no_larger_than_asked_for() {
    let cases = [
        (Leaves::PAGES, merged(0, 0)),
        (
            Leaves {
                top: Level::L3,
                contiguous: true,
            },
            merged(0, 64),
        ),
        (
            Leaves {
                top: Level::L2,
                contiguous: false,
            },
            merged(2, 0),
        ),
        (Leaves::LARGEST, merged(2, 0)),
    ];
    for (limit, expected) in cases.into_iter().take(if cfg!(miri) { 2 } else { 4 }) {
        let mut bench = bench(true, 3);
        bench.lay(BLOCK, BLOCK, 2 * BLOCK, RW, Leaves::PAGES);
        let span = bench.arch.span();
        assert_eq!(bench.merge(0, span, limit).unwrap(), expected);
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn only_what_the_range_holds_whole() {
    let mut bench = bench(true, 3);
    bench.lay(BLOCK, BLOCK, 2 * BLOCK, RW, Leaves::PAGES);
    // One page short of a group, of a block: what is whole inside becomes groups.
    let all = Leaves::LARGEST;
    assert_eq!(bench.merge(BLOCK + PAGE, GROUP, all).unwrap(), merged(0, 0));
    assert_eq!(
        bench.merge(BLOCK + PAGE, 2 * GROUP - PAGE, all).unwrap(),
        merged(0, 1)
    );
    assert_eq!(
        bench.merge(BLOCK, BLOCK - PAGE, all).unwrap(),
        merged(0, 30)
    );
    // From inside one block to inside another, then all of the first.
    let inside = bench.merge(BLOCK + GROUP, BLOCK, all).unwrap();
    assert_eq!(inside, merged(0, 2));
    assert_eq!(bench.merge(BLOCK, BLOCK, all).unwrap(), merged(1, 0));
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn only_what_is_alike() {
    let block = |bench: &mut Bench<Page4K>, output: u64| {
        bench.lay(BLOCK, output, BLOCK, RW, Leaves::PAGES);
    };
    let all = Leaves::LARGEST;
    type Change = fn(&mut Bench<Page4K>);
    // What makes one page differ, how many groups are left, and what makes it alike again.
    let cases: [(Change, u64, Change); 4] = [
        (
            |b| {
                b.protect(BLOCK + 5 * PAGE, PAGE, READ_ONLY, Holes::Refuse)
                    .unwrap()
            },
            31,
            |b| {
                b.protect(BLOCK + 5 * PAGE, PAGE, WRITABLE, Holes::Refuse)
                    .unwrap()
            },
        ),
        (
            |b| b.set_invalid(2 * BLOCK - PAGE, PAGE).unwrap(),
            31,
            |b| b.set_valid(2 * BLOCK - PAGE, PAGE).unwrap(),
        ),
        (
            |b| b.unmap(BLOCK, PAGE).unwrap(),
            31,
            |b| b.map(BLOCK, BLOCK, PAGE, RW, Leaves::PAGES).unwrap(),
        ),
        (
            |b| {
                b.unmap(BLOCK + GROUP, PAGE).unwrap();
                // The right address, or one page beside it.
                b.map(BLOCK + GROUP, BLOCK, PAGE, RW, Leaves::PAGES)
                    .unwrap();
            },
            31,
            |b| {
                b.unmap(BLOCK + GROUP, PAGE).unwrap();
                let (at, leaves) = (BLOCK + GROUP, Leaves::PAGES);
                b.map(at, at, PAGE, RW, leaves).unwrap();
            },
        ),
    ];
    for (spoil, groups, mend) in cases.into_iter().take(if cfg!(miri) { 1 } else { 4 }) {
        let mut bench = bench(true, 3);
        block(&mut bench, BLOCK);
        spoil(&mut bench);
        assert_eq!(bench.merge(BLOCK, BLOCK, all).unwrap(), merged(0, groups));
        mend(&mut bench);
        assert_eq!(bench.merge(BLOCK, BLOCK, all).unwrap(), merged(1, 0));
    }
    if cfg!(miri) {
        return;
    }
    // An output that is aligned to groups but not to the block, and one that is to neither.
    let mut aside = bench(true, 3);
    block(&mut aside, BLOCK + GROUP);
    assert_eq!(aside.merge(BLOCK, BLOCK, all).unwrap(), merged(0, 32));
    let mut aside = bench(true, 3);
    block(&mut aside, BLOCK + PAGE);
    assert_eq!(aside.merge(BLOCK, BLOCK, all).unwrap(), merged(0, 0));
}

#[test]
fn a_group_that_reaches_out_of_the_space_is_not_made() {
    // The root has 8 entries at level 2, half a group (RWMNPV).
    let geometry = PLAIN.geometry(PageSize::K4, 25, VaRange::Lower);
    assert_eq!(geometry.span(), 16 * BLOCK);
    let geometry24 = LARGE.geometry(PageSize::K4, 24, VaRange::Lower);
    for (geometry, groups) in [(geometry, 1), (geometry24, 0)] {
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
        bench.set_bbm(3);
        let span = geometry.span();
        let leaves = Leaves {
            top: Level::L2,
            contiguous: false,
        };
        bench.lay(0, 0, span, RW, leaves);
        assert_eq!(
            bench.merge(0, span, Leaves::LARGEST).unwrap(),
            merged(0, groups)
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn the_levels_of_bbm() {
    for (bbm, expected) in [
        (0, merged(0, 0)),
        (1, merged(0, 32)),
        (2, merged(1, 0)),
        (3, merged(1, 0)),
    ] {
        let mut live = bench(true, bbm);
        live.map(BLOCK, BLOCK, BLOCK, RW, Leaves::PAGES).unwrap();
        assert_eq!(live.merge(BLOCK, BLOCK, Leaves::LARGEST).unwrap(), expected);
        if cfg!(miri) {
            return;
        }
        let mut private = bench(false, bbm);
        private.map(BLOCK, BLOCK, BLOCK, RW, Leaves::PAGES).unwrap();
        let done = private.merge(BLOCK, BLOCK, Leaves::LARGEST).unwrap();
        assert_eq!(done, merged(1, 0));
    }
}

fn freed(events: &[Event]) -> usize {
    let free = |event: &&Event| matches!(event, Event::Free(_));
    events.iter().filter(free).count()
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn unlinked_tables_wait_for_tlbis_of_every_small_leaf() {
    // 40 tables: 32 wait together, then 8. Without operations on ranges all of the TLB goes, for
    // that many pages; each table of its own takes one for each of its pages.
    let blocks = if cfg!(miri) { 1 } else { 40 };
    let rounds: &[usize] = if cfg!(miri) { &[1] } else { &[32, 8] };
    for range in [false, true] {
        let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
        let setting = Setting::LIVE.range(range).bbm(3);
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        let bytes = blocks as u64 * BLOCK;
        // Not at a multiple of 32 MiB: no groups of blocks come of it.
        bench.lay(BLOCK, 5 * BLOCK, bytes, RW, Leaves::PAGES);
        bench.host.take_events();
        let start = bench.reference.address(BLOCK);
        bench.tables.merge(start, bytes, Leaves::LARGEST).unwrap();
        let events = bench.host.take_events();
        let mut rest = &events[..];
        for &round in rounds {
            // The stores, each a block in the place of a table.
            let is_store = |event: &Event| matches!(event, Event::Store { .. });
            assert!(rest[..round].iter().all(is_store));
            assert_eq!(rest[round], Event::DsbIshst);
            let tlbis: Vec<TlbiOp> = rest[round + 1..]
                .iter()
                .map_while(|event| match event {
                    Event::Tlbi(op) => Some(*op),
                    _ => None,
                })
                .collect();
            assert!(
                tlbis.iter().all(|op| match op {
                    TlbiOp::All => !range && round > 1,
                    TlbiOp::Range { operand, scope, .. } =>
                        range && *scope == TlbiScope::AllLevels && operand >> 37 & 0b11 == 0,
                    TlbiOp::Address { operand, scope, .. } =>
                        !range && *scope == TlbiScope::AllLevels && operand >> 44 & 0b1111 == 0,
                    _ => false,
                }),
                "{tlbis:x?}"
            );
            let expected = if !range && round == 1 { 512 } else { 1 };
            assert_eq!(tlbis.len(), expected);
            rest = &rest[round + 1 + tlbis.len()..];
            assert_eq!(rest[..2], [Event::DsbIsh, Event::Isb]);
            rest = &rest[2..];
            assert_eq!(freed(&rest[..round]), round);
            rest = &rest[round..];
        }
        assert_eq!(rest, []);
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn one_address_reaches_all_of_what_was_merged() {
    // After the merge nothing small may be cached: the change of the block invalidates by one
    // address of it.
    let mut bench = bench(true, 3);
    bench.lay(BLOCK, BLOCK, BLOCK, RW, Leaves::PAGES);
    bench.merge(BLOCK, BLOCK, Leaves::LARGEST).unwrap();
    let start = bench.reference.address(BLOCK);
    bench
        .tables
        .protect(start, BLOCK, READ_ONLY, Holes::Refuse)
        .unwrap();
    let events = bench.host.take_events();
    let tlbis = events.iter().filter(|e| matches!(e, Event::Tlbi(_)));
    assert_eq!(tlbis.count(), 1, "{events:x?}");
}

#[test]
fn restrictions_in_a_table_descriptor_are_not_lost() {
    // Tables that somebody else made may restrict all below them (APTable, UXNTable, PXNTable):
    // a block would be without.
    for bit in [59, 60, 61, 62] {
        let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
        bench.lay(0, 0, BLOCK, RW, Leaves::PAGES);
        let level2 = bench.tree.tables.iter().find(|t| t.level == 2).unwrap();
        let (table, old) = (level2.address, bench.host.word(level2.address, 0));
        bench.host.set_word(table, 0, old | 1 << bit);
        let start = bench.reference.address(0);
        let all = Leaves {
            contiguous: false,
            ..Leaves::LARGEST
        };
        let done = bench.tables.merge(start, BLOCK, all).unwrap();
        assert_eq!(done, merged(0, 0), "bit {bit}");
        bench.host.set_word(table, 0, old);
        let done = bench.tables.merge(start, BLOCK, all).unwrap();
        assert_eq!(done, merged(1, 0));
        if cfg!(miri) {
            return;
        }
    }
}

#[test]
fn bits_that_only_blocks_have_do_not_become_addresses() {
    // nT, bit 16, which somebody else may have left set: in a page it is an address bit.
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    bench.lay(BLOCK, BLOCK, BLOCK, RO, Leaves::LARGEST);
    let level2 = bench.tree.tables.iter().find(|t| t.level == 2).unwrap();
    let (table, old) = (level2.address, bench.host.word(level2.address, 1));
    bench.host.set_word(table, 1, old | 1 << 16);
    // The bench compares every page's output.
    bench.protect(BLOCK, PAGE, WRITABLE, Holes::Refuse).unwrap();
}
