//! Tests of the walk: its events for whole trees, the restrictions of tables, and that it ends.

use crate::world::{BASE, Pages, TABLES, World, kernel};
use granule::arch::{
    Attributes, Descriptor, Kind, Level, OutputFormat, PageSize, Permissions, PhysicalAddress,
    Stage2Attributes, Stage2Permissions, VaRange,
};
use granule::table::Leaves;
use granule_inspect::attributes::Decoded;
use granule_inspect::ranges::{Merger, Range};
use granule_inspect::totals::Totals;
use granule_inspect::tree::Tree;
use granule_inspect::walk::{EVERYTHING, Event, LeftOut, Tables, Why, walk};
use granule_testing::shape::{self, LARGE};
use std::ops::ControlFlow;

pub const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// The ranges, the totals and the tables that are left out.
pub fn ranges(
    pages: &Pages,
    tree: &Tree,
    within: (u64, u64),
) -> (Vec<Range>, Totals, Vec<LeftOut>) {
    let (mut found, mut totals, mut left_out) = (Vec::new(), Totals::default(), Vec::new());
    let mut merger = Merger::default();
    let ended: ControlFlow<()> = walk(&Tables::new(pages, tree), tree, within, |event| {
        match event {
            Event::Table(table) if table.before.is_none() => totals.add_table(tree),
            Event::Table(_) => {}
            Event::Leaves(leaves) => {
                let range = Range::of(tree, leaves);
                totals.add_range(tree, &range);
                found.extend(merger.push(range));
            }
            Event::LeftOut(table) => left_out.push(table.clone()),
        }
        ControlFlow::Continue(())
    });
    assert!(ended.is_continue());
    found.extend(merger.end());
    (found, totals, left_out)
}

#[test]
fn neighbours_are_one_range_across_tables() {
    let world = World::plain(&[
        (0x1000, 0x4000_1000, 0x60_0000, RW, Leaves::PAGES),
        (0x8000_0000, 0x8000_0000, 0x40_0000, RW, Leaves::LARGEST),
    ]);
    let (found, totals, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert!(left_out.is_empty());
    let places: Vec<_> = found
        .iter()
        .map(|range| {
            (
                range.start,
                range.bytes,
                range.output,
                range.leaf_bytes,
                range.contiguous,
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            (BASE + 0x1000, 0x60_0000, 0x4000_1000, 0x1000, false),
            (BASE + 0x8000_0000, 0x40_0000, 0x8000_0000, 0x20_0000, false),
        ]
    );
    assert_eq!(
        Decoded::new(&world.tree, found[0].attributes).to_string(),
        "RW PXN UXN AF ISH normal-WB"
    );
    // The root, two of level 2, four of level 3.
    assert_eq!((totals.tables, totals.table_bytes), (7, 7 * 4096));
    assert_eq!(totals.mapped(), 0xa0_0000);
    assert_eq!(totals.tlb(true).number(), 0x600 + 2);
    assert_eq!(totals.reach(3, true), 0x40_1000);
}

/// Every tree of every shape: the ranges are those that were mapped.
#[test]
fn every_shape_shows_what_was_mapped() {
    for geometry in shape::all() {
        let page = geometry.page_size().bytes();
        let read = Attributes {
            global: false,
            ..Attributes::normal(Permissions::READ)
        };
        let pieces = [
            (page, 0x4000_0000 + page, 40 * page, RW, Leaves::PAGES),
            (64 * page, 0x4000_0000, 40 * page, read, Leaves::LARGEST),
        ];
        let world = World::at(geometry, TABLES, &pieces);
        let (found, totals, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
        assert!(left_out.is_empty(), "{geometry:?}");
        let base = geometry.base().0;
        let first = &found[0];
        assert_eq!(
            (first.start, first.bytes, first.output),
            (base + page, 40 * page, 0x4000_0000 + page)
        );
        let rest: u64 = found[1..].iter().map(|range| range.bytes).sum();
        assert_eq!(rest, 40 * page);
        assert_eq!(totals.tables, world.pages.0.len() as u64);
        assert_eq!(totals.mapped(), 80 * page);
    }
    for geometry in shape::stage2() {
        let page = geometry.shape().page_size().bytes();
        let all = Stage2Attributes::normal(Stage2Permissions::ALL);
        // In the last root table.
        let at = (1 << geometry.shape().va_bits()) - 48 * page;
        let world = World::guest(
            geometry,
            &[(at, 0x4000_0000, 40 * page, all, Leaves::PAGES)],
        );
        let (found, totals, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
        assert!(left_out.is_empty(), "{geometry:?}");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].start, found[0].bytes), (at, 40 * page));
        assert_eq!(totals.tables, world.pages.0.len() as u64);
        let words = Decoded::new(&world.tree, found[0].attributes).to_string();
        let execute = if geometry.shape().execute_by_privilege() {
            "PX UX"
        } else {
            "X"
        };
        // With VTCR_EL2.DS bits 9:8 of a leaf are address bits.
        let lpa2 = geometry.shape().format() == OutputFormat::Lpa2;
        let shareability = if lpa2 { "SH-TCR" } else { "ISH" };
        assert_eq!(words, format!("RW {execute} AF {shareability} normal-WB"));
    }
}

#[test]
fn only_what_lies_within_is_shown_and_only_its_tables_are_read() {
    let mut world = World::plain(&[
        (0, 0x4000_0000, 0x20_0000, RW, Leaves::PAGES),
        (0x20_0000, 0x4020_0000, 0x20_0000, RW, Leaves::PAGES),
    ]);
    // A walk that read this table would report that it is missing.
    let (table, _) = world.entry(0x20_0000, Level::L3);
    world.pages.0.remove(&table);
    let within = (BASE + 0x3fff, BASE + 0x5000);
    let (found, _, left_out) = ranges(&world.pages, &world.tree, within);
    assert!(left_out.is_empty());
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].start, found[0].bytes, found[0].output),
        (BASE + 0x3000, 0x3000, 0x4000_3000)
    );
    let (_, _, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert_eq!(left_out.len(), 1);
    assert_eq!(
        left_out[0].to_string(),
        format!(
            "0xffffff8000200000 to 0xffffff80003fffff is left out: the table of level 3 at \
             {table:#x} cannot be read (no memory at {table:#x})"
        )
    );
}

#[test]
fn restrictions_of_tables_hold_for_what_is_below_them() {
    let all = Permissions {
        user: true,
        privileged_execute: true,
        user_execute: true,
        ..Permissions::READ_WRITE
    };
    let piece = |at| {
        (
            at,
            0x4000_0000,
            0x1000,
            Attributes::normal(all),
            Leaves::PAGES,
        )
    };
    let mut world = World::plain(&[piece(0), piece(0x20_0000), piece(0x4000_0000)]);
    // No stores and no execution at EL1 below one table, no access by EL0 below the table above it.
    world.change(0x20_0000, Level::L2, |word| word | 1 << 62 | 1 << 59);
    world.change(0, Level::L1, |word| word | 1 << 61 | 1 << 60);
    let (found, _, _) = ranges(&world.pages, &world.tree, EVERYTHING);
    let words: Vec<_> = found
        .iter()
        .map(|range| Decoded::new(&world.tree, range.attributes).to_string())
        .collect();
    assert_eq!(
        words,
        [
            "RW PX UXN AF ISH normal-WB",
            "ro PXN UXN AF ISH normal-WB",
            // What EL0 may write, EL1 never executes.
            "RW PXN UX user AF ISH normal-WB",
        ]
    );
}

#[test]
fn loops_and_tables_that_are_used_again_end() {
    let mut world = World::plain(&[(0, 0x4000_0000, 0x1000, RW, Leaves::PAGES)]);
    let root = world.tree.root.0;
    world.change(0x4000_0000, Level::L1, |_| root | 0b11);
    let (_, _, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert_eq!(left_out.len(), 1);
    assert_eq!(left_out[0].why, Why::Loop);
    assert_eq!(
        (left_out[0].start, left_out[0].bytes),
        (BASE + 0x4000_0000, 1 << 30)
    );

    // 512 entries lead to one table of 512 entries that lead to one table: 2^18 tables of pages.
    let mut world = World::plain(&[(0, 0x4000_0000, 0x1000, RW, Leaves::PAGES)]);
    let (second, third) = (world.entry(0, Level::L2).0, world.entry(0, Level::L3).0);
    world.pages.0.insert(root, vec![second | 0b11; 512]);
    world.pages.0.insert(second, vec![third | 0b11; 512]);
    let (found, totals, left_out) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert_eq!(totals.tables, 3);
    assert!(left_out.iter().all(|it| it.why == Why::Limit));
    // The limit of 2^16 tables is for both levels: 127 of level 2, the rest of level 3 beside the first.
    assert_eq!(found.len(), (1 << 16) - 127 + 1);
}

/// A group whose members are in several ranges is one TLB entry all the same.
#[test]
fn a_group_counts_once() {
    let mut world = World::plain(&[(0, 0x4000_0000, 0x2_0000, RW, Leaves::LARGEST)]);
    world.change(0x5000, Level::L3, |word| word & !Descriptor::ACCESS_FLAG);
    let (found, totals, _) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert_eq!(found.len(), 3);
    assert_eq!(
        (totals.tlb(true).number(), totals.tlb(false).number()),
        (2, 32)
    );
}

#[test]
fn no_more_tables_than_allowed_are_entered() {
    let world = World::plain(&[(0, 0x4000_0000, 0x60_0000, RW, Leaves::PAGES)]);
    let tables = Tables::new(&world.pages, &world.tree).limit(4);
    let (mut bytes, mut left_out) = (0, 0);
    let _: ControlFlow<()> = walk(&tables, &world.tree, EVERYTHING, |event| {
        match event {
            Event::Table(_) => {}
            Event::Leaves(leaves) => bytes += leaves.count * leaves.leaf_bytes,
            Event::LeftOut(it) => {
                assert_eq!(it.why, Why::Limit);
                left_out += it.bytes;
            }
        }
        ControlFlow::Continue(())
    });
    // The root, one of level 2, two of the three of level 3.
    assert_eq!((bytes, left_out), (0x40_0000, 0x20_0000));
}

/// The root of a small space is not a whole page, and need not begin at one.
#[test]
fn a_small_root_is_read_alone() {
    let geometry = LARGE.geometry(PageSize::K4, 32, VaRange::Lower);
    assert_eq!(geometry.root_entries(), 4);
    let whole = World::at(
        geometry,
        TABLES,
        &[(0, 0x4000_0000, 0x1000, RW, Leaves::PAGES)],
    );
    let mut pages = whole.pages.clone();
    let root = pages.0.remove(&whole.tree.root.0).unwrap();
    pages.0.insert(0x1_0040, root[..4].to_vec());
    let tree = Tree {
        root: PhysicalAddress(0x1_0040),
        ..whole.tree
    };
    let (found, _, left_out) = ranges(&pages, &tree, EVERYTHING);
    assert_eq!((found.len(), left_out.len()), (1, 0));
}

#[test]
fn software_bits_and_present_invalid_entries_split_nothing_and_map_nothing() {
    let mut world = World::plain(&[(0, 0x4000_0000, 0x4000, RW, Leaves::PAGES)]);
    world.change(0x1000, Level::L3, |word| word | 1 << 55);
    world.change(0x3000, Level::L3, |word| {
        word & !Descriptor::VALID | Descriptor::PRESENT_INVALID
    });
    let (found, _, _) = ranges(&world.pages, &world.tree, EVERYTHING);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].bytes, 0x3000);
    let (table, index) = world.entry(0x3000, Level::L3);
    let word = Descriptor(world.pages.0[&table][index]);
    assert_eq!(word.kind(&kernel(), Level::L3), Kind::PresentInvalid);
}
