//! The exact sequence of barriers and TLBIs on live tables.
//!
//! Each expected list is written out from the architecture's table of situations (DSB ISHST,
//! TLBI, DSB ISH, ISB) and operand layout; nothing is computed by the library.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    Attributes, Page4K, Page16K, Page64K, PageSize, Permissions, PhysicalAddress, VaRange,
};
use granule::table::{Holes, Leaves, Piece};
use granule_testing::host::Event;
use granule_testing::shape::{LARGE, PLAIN};

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// The events that are not stores, allocations or reservations.
fn maintenance(events: &[Event]) -> Vec<Event> {
    let keep = |event: &&Event| {
        matches!(
            event,
            Event::DsbIshst | Event::DsbIsh | Event::Isb | Event::Tlbi(_) | Event::Free(_)
        )
    };
    events.iter().filter(keep).copied().collect()
}

fn address(operand: u64, scope: TlbiScope) -> Event {
    Event::Tlbi(TlbiOp::Address {
        operand,
        scope,
        all_asids: true,
    })
}

#[test]
fn becoming_live_and_mapping_take_one_pair_of_barriers_and_no_tlbi() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    let start = bench.reference.address(0);
    let out = PhysicalAddress(0x8000_0000);
    let tables = &mut bench.tables;
    tables.map(start, out, 3 << 21, RW, Leaves::PAGES).unwrap();
    assert_eq!(maintenance(&bench.host.take_events()), []);
    let mut bench = bench.make_live();
    let tables = &mut bench.tables;
    let pair = [Event::DsbIshst, Event::Isb];
    assert_eq!(bench.host.take_events(), pair);
    let next = bench.reference.address(5 << 21);
    tables.map(next, out, 3 << 21, RW, Leaves::PAGES).unwrap();
    assert_eq!(maintenance(&bench.host.take_events()), pair);
    // Several ranges, one pair.
    let pieces = [20, 40, 60].map(|piece| Piece {
        start: bench.reference.address(piece << 21),
        output: out,
        bytes: 1 << 21,
        attributes: RW,
        leaves: Leaves::LARGEST,
    });
    tables.map_pieces(&pieces).unwrap();
    assert_eq!(maintenance(&bench.host.take_events()), pair);
}

#[test]
fn unmapping_one_page() {
    // The page is the only one in its tables, so three tables go too: all levels, no hint.
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    bench.lay(0x1234_5000, 0, 0x1000, RW, Leaves::PAGES);
    let before = bench.tree.clone();
    let start = bench.reference.address(0x1234_5000);
    bench.tables.unmap(start, 0x1000).unwrap();
    let events = maintenance(&bench.host.take_events());
    // Address bits 55:12 of 0xffff_0000_1234_5000.
    let operand = 0x0ff0_0001_2345;
    assert_eq!(
        events[..4],
        [
            Event::DsbIshst,
            address(operand, TlbiScope::AllLevels),
            Event::DsbIsh,
            Event::Isb,
        ]
    );
    let mut freed: Vec<Event> = events[4..].to_vec();
    let mut expected: Vec<Event> = before.tables[1..]
        .iter()
        .map(|table| Event::Free(table.address))
        .collect();
    freed.sort_by_key(|event| format!("{event:?}"));
    expected.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(freed, expected);
    // Nothing is there any more: nothing is done.
    bench.tables.unmap(start, 0x1000).unwrap();
    assert_eq!(bench.host.take_events(), []);
}

#[test]
fn unmapping_a_page_whose_table_stays_takes_a_level_hint() {
    // FEAT_TTL: granule 10 (16K) and level 3 in bits 47:44.
    let geometry = PLAIN.geometry(PageSize::K16, 47, VaRange::Lower);
    let mut bench = Bench::<Page16K>::new(&geometry, Setting::LIVE);
    bench.lay(0x8000, 0, 0x8000, RW, Leaves::PAGES);
    let start = bench.reference.address(0xc000);
    bench.tables.unmap(start, 0x4000).unwrap();
    assert_eq!(
        maintenance(&bench.host.take_events()),
        [
            Event::DsbIshst,
            address(0b1011 << 44 | 0xc, TlbiScope::LastLevel),
            Event::DsbIsh,
            Event::Isb,
        ]
    );
}

#[test]
#[cfg_attr(miri, ignore = "8192 entries take minutes; 4K runs the same code")]
fn changing_permissions_of_a_contiguous_group_reaches_every_member() {
    // 32 pages of 64K with the hint. Without ranges: 32 operations; with them: one of
    // (NUM + 1) * 2 = 32 granules, so NUM is 15 and SCALE 0.
    let geometry = PLAIN.geometry(PageSize::K64, 48, VaRange::Lower);
    for range in [false, true] {
        let setting = Setting::LIVE.range(range).level_hint(false);
        let mut bench = Bench::<Page64K>::new(&geometry, setting);
        bench.lay(0x20_0000, 0x20_0000, 0x20_0000, RW, Leaves::LARGEST);
        assert!(
            bench
                .tree
                .leaves
                .iter()
                .all(|leaf| leaf.word >> 52 & 1 == 1)
        );
        let start = bench.reference.address(0x20_0000);
        bench
            .tables
            .protect(start, 0x20_0000, READ_ONLY, Holes::Refuse)
            .unwrap();
        let mut expected = vec![Event::DsbIshst];
        if range {
            expected.push(Event::Tlbi(TlbiOp::Range {
                operand: 0b11 << 46 | 15 << 39 | 0x20_0000 >> 16,
                scope: TlbiScope::LastLevel,
                all_asids: true,
            }));
        } else {
            for page in 0..32 {
                expected.push(address(
                    (0x20_0000 + page * 0x1_0000) >> 12,
                    TlbiScope::LastLevel,
                ));
            }
        }
        expected.extend([Event::DsbIsh, Event::Isb]);
        assert_eq!(maintenance(&bench.host.take_events()), expected);
    }
}

#[test]
fn the_repeat_erratum_issues_tlbi_and_dsb_twice() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let setting = Setting::LIVE.repeat(true).level_hint(false).range(false);
    let mut bench = Bench::<Page4K>::new(&geometry, setting);
    bench.lay(0x1000, 0x1000, 0x2000, RW, Leaves::PAGES);
    let start = bench.reference.address(0x1000);
    bench
        .tables
        .protect(start, 0x2000, READ_ONLY, Holes::Refuse)
        .unwrap();
    let round = [
        address(1, TlbiScope::LastLevel),
        address(2, TlbiScope::LastLevel),
        Event::DsbIsh,
    ];
    let expected = [&[Event::DsbIshst][..], &round, &round, &[Event::Isb]].concat();
    assert_eq!(maintenance(&bench.host.take_events()), expected);
    // Mapping issues no TLBI, so there is nothing to repeat.
    let next = bench.reference.address(0x10_0000);
    let out = PhysicalAddress(0);
    bench
        .tables
        .map(next, out, 0x1000, RW, Leaves::PAGES)
        .unwrap();
    assert_eq!(
        maintenance(&bench.host.take_events()),
        [Event::DsbIshst, Event::Isb]
    );
}

#[test]
fn an_address_space_of_its_own_is_named() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let setting = Setting {
        asid: Some(0xabcd),
        range: false,
        level_hint: false,
        ..Setting::LIVE
    };
    let own = Attributes {
        global: false,
        ..RW
    };
    let mut bench = Bench::<Page4K>::new(&geometry, setting);
    // More than 512 pages, which is where single operations end.
    let count = 513;
    bench.lay(0x5000, 0, count << 12, own, Leaves::PAGES);
    let start = bench.reference.address(0x5000);
    bench
        .tables
        .protect(start, 0x1000, READ_ONLY, Holes::Refuse)
        .unwrap();
    let one = TlbiOp::Address {
        operand: 0xabcd << 48 | 5,
        scope: TlbiScope::LastLevel,
        all_asids: false,
    };
    let events = maintenance(&bench.host.take_events());
    assert_eq!(events[1], Event::Tlbi(one));
    // Too many single operations: the whole address space.
    bench
        .tables
        .protect(start, count << 12, READ_ONLY, Holes::Refuse)
        .unwrap();
    let all = TlbiOp::Asid {
        operand: 0xabcd << 48,
    };
    assert_eq!(
        maintenance(&bench.host.take_events()),
        [Event::DsbIshst, Event::Tlbi(all), Event::DsbIsh, Event::Isb]
    );
}

#[test]
fn a_block_takes_one_operation_of_any_size() {
    // 1 GiB as one block: one operation by address.
    let geometry = LARGE.geometry(PageSize::K4, 48, VaRange::Upper);
    let setting = Setting::LIVE.level_hint(false);
    let mut bench = Bench::<Page4K>::new(&geometry, setting);
    bench.lay(1 << 30, 1 << 30, 2 << 30, RW, Leaves::LARGEST);
    let start = bench.reference.address(1 << 30);
    bench
        .tables
        .protect(start, 1 << 30, READ_ONLY, Holes::Refuse)
        .unwrap();
    // Address bits 55:12 of 0xffff_0000_4000_0000.
    assert_eq!(
        maintenance(&bench.host.take_events()),
        [
            Event::DsbIshst,
            address(0x0ff0_0004_0000, TlbiScope::LastLevel),
            Event::DsbIsh,
            Event::Isb,
        ]
    );
}

#[test]
fn empty_tables_that_were_there_before_go_too() {
    // Two tables of pages without a page in them, as a boot loader may leave them. Two pages
    // that meet where the tables meet: a walker may have cached the pointers to both.
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    for range in [false, true] {
        let setting = Setting::LIVE.range(range);
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        let level2 = bench.host.take_page();
        let level3 = [bench.host.take_page(), bench.host.take_page()];
        bench
            .host
            .set_word(bench.tables.root_table().0, 0, level2 | 0b11);
        bench.host.set_word(level2, 0, level3[0] | 0b11);
        bench.host.set_word(level2, 1, level3[1] | 0b11);
        bench.tree = bench.arch.walk(&bench.host, bench.tables.root_table());
        // The bench compares, and finds a TLBI for each of the tables.
        bench.unmap(0x1f_f000, 0x2000).unwrap();
        assert_eq!(bench.host.given_out(), 1);
    }
}

#[test]
fn leaves_of_several_sizes_are_all_reached() {
    // Three pages, a block, three pages; a fourth page on either side keeps the tables. In steps
    // of the block's size two operations would do, and most of the pages would stay cached.
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let block = 2 << 20;
    for range in [false, true] {
        let setting = Setting::LIVE.range(range);
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        let start = block - 0x4000;
        let bytes = block + 0x8000;
        bench.lay(start, start, bytes, RW, Leaves::LARGEST);
        assert_eq!(bench.tree.leaves.len(), 4 + 1 + 4);
        // The bench finds a TLBI for each of them.
        bench.unmap(start + 0x1000, bytes - 0x2000).unwrap();
        assert_eq!(bench.tree.leaves.len(), 2);
        // And where the block comes first, or last.
        bench.lay(start + 0x1000, 0, 0x3000, RW, Leaves::PAGES);
        bench.lay(block, block, block, RW, Leaves::LARGEST);
        bench.unmap(start + 0x1000, block + 0x3000).unwrap();
        bench.lay(block, block, block, RW, Leaves::LARGEST);
        bench.lay(2 * block, 0, 0x3000, RW, Leaves::PAGES);
        bench.unmap(block, block + 0x3000).unwrap();
        assert_eq!(bench.tree.leaves.len(), 2);
    }
}

#[test]
fn a_change_that_changes_nothing_stores_and_issues_nothing() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let read = Attributes::normal(Permissions::READ);
    // Pages with a hole between them, a group, and a block.
    bench.lay(0, 0, 0x4000, read, Leaves::PAGES);
    bench.lay(0x1_0000, 0x1_0000, 0x1_0000, read, Leaves::LARGEST);
    bench.lay(2 << 20, 2 << 20, 2 << 20, read, Leaves::LARGEST);
    for (offset, bytes) in [
        (0x1000, 0x1000),
        (0, 0x4000),
        (0x1_1000, 0x1000),
        // The edge inside the block needs no split either.
        (0x2000, (2 << 20) + 0x5000),
    ] {
        bench.host.take_events();
        let start = bench.reference.address(offset);
        let tables = &mut bench.tables;
        tables
            .protect(start, bytes, READ_ONLY, Holes::Skip)
            .unwrap();
        tables
            .modify(start, bytes, Holes::Skip, |leaf| leaf.accessed = true)
            .unwrap();
        assert_eq!(bench.host.take_events(), [], "{bytes:#x} from {start}");
        // The bench compares it with the reference.
        bench
            .protect(offset, bytes, READ_ONLY, Holes::Skip)
            .unwrap();
    }
    let start = bench.reference.address(0);
    let mut cursor = bench.tables.cursor(start).unwrap();
    bench.host.take_events();
    cursor.protect(READ_ONLY, Holes::Refuse).unwrap();
    assert_eq!(bench.host.take_events(), []);
}
