//! Maps with a bounded number of cells: whatever is put together, sums stay those of the ranges.

use crate::world::{World, kernel};
use granule::arch::{Attributes, Level, Permissions};
use granule::table::Leaves;
use granule_inspect::map::{Content, Drawn, draw, share};
use granule_inspect::totals::LeafKind;
use granule_inspect::tree::Tree;
use granule_testing::cases;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE: u64 = 4096;
const PAGES: Leaves = Leaves {
    top: Level::L3,
    contiguous: false,
};

fn drawn(world: &World, most: usize) -> Drawn {
    draw(&world.pages, &world.tree, most, &mut |_| {})
}

/// Checks the invariants of every map, however few cells it may have.
#[track_caller]
fn is_right(tree: &Tree, drawn: &Drawn, most: usize) {
    let cells = &drawn.map.cells;
    assert!(cells.len() <= most.max(1), "{} of {most}", cells.len());
    let ranges: u64 = cells.iter().map(|cell| cell.ranges).sum();
    assert_eq!(ranges, drawn.map.ranges);
    for pair in cells.windows(2) {
        assert!(pair[0].last() < pair[1].start, "{pair:?}");
    }
    let mut bytes: BTreeMap<LeafKind, u64> = BTreeMap::new();
    for cell in cells {
        let parts = cell.parts(tree);
        assert!(parts.values().sum::<u64>() <= cell.bytes, "{cell:?}");
        for ((kind, _), part) in parts {
            *bytes.entry(kind).or_default() += part;
        }
    }
    let totals = &drawn.totals.leaves;
    let expected = totals.iter().map(|(kind, count)| (*kind, count.bytes));
    assert!(bytes.into_iter().eq(expected), "{cells:?} {totals:?}");
}

fn alternating(pages: u64) -> World {
    let kinds = [Permissions::READ, Permissions::READ_WRITE];
    let piece = |at: u64| {
        let attributes = Attributes::normal(kinds[(at % 2) as usize]);
        (at * PAGE, 0x8000_0000 + at * PAGE, PAGE, attributes, PAGES)
    };
    World::at(
        kernel(),
        crate::world::TABLES,
        &(0..pages).map(piece).collect::<Vec<_>>(),
    )
}

#[test]
fn while_there_is_room_a_cell_is_a_range() {
    let world = alternating(100);
    let drawn = drawn(&world, 100);
    assert_eq!((drawn.map.cells.len(), drawn.map.ranges), (100, 100));
    assert_eq!(drawn.map.window, None);
    let alike = |content: &Content| matches!(content, Content::Alike { .. });
    assert!(drawn.map.cells.iter().all(|cell| alike(&cell.content)));
    is_right(&world.tree, &drawn, 100);
}

#[test]
fn sums_are_exact_with_fewer_cells() {
    let world = alternating(1000);
    for most in [0, 1, 2, 3, 10, 63, 100, 999] {
        let drawn = drawn(&world, most);
        is_right(&world.tree, &drawn, most);
        let span: u64 = drawn.map.cells.iter().map(|cell| cell.bytes).sum();
        assert_eq!(span, 1000 * PAGE);
    }
    // Windows are not larger than they must be.
    assert_eq!(drawn(&world, 500).map.window, Some(13));
    assert_eq!(drawn(&world, 500).map.cells.len(), 500);
}

#[test]
fn neighbours_that_differ_in_their_output_alone_come_first() {
    let write = Attributes::normal(Permissions::READ_WRITE);
    let read = Attributes::normal(Permissions::READ);
    // Backwards through memory, so that no leaf continues the one before it.
    let mut pieces: Vec<_> = (0..100)
        .map(|at| (at * PAGE, 0x8000_0000 - at * PAGE, PAGE, write, PAGES))
        .collect();
    pieces.push((100 * PAGE, 0x9000_0000, PAGE, read, PAGES));
    let world = World::plain(&pieces);
    let drawn = drawn(&world, 50);
    is_right(&world.tree, &drawn, 50);
    assert_eq!(drawn.map.window, None);
    let cells = &drawn.map.cells;
    assert_eq!(
        (cells.len(), cells[0].ranges, cells[0].bytes),
        (2, 100, 100 * PAGE)
    );
    let Content::Alike { output, .. } = cells[0].content else {
        panic!("{cells:?}");
    };
    assert_eq!(output, 0x8000_0000);
}

#[test]
fn leftover_space_is_shared() {
    assert_eq!(share(&[], 10), 10);
    assert_eq!(share(&[3, 4], 10), 10);
    assert_eq!(share(&[1, 100, 100], 11), 5);
    assert_eq!(share(&[9, 9, 9], 2), 1);
}

proptest! {
    #![proptest_config(cases::config(64, 8))]

    #[test]
    fn any_map_is_right(
        pieces in prop::collection::vec((0_u64..40, 1_u64..40, any::<bool>(), any::<bool>()), 1..60),
        most in 0_usize..80,
    ) {
        let mut at = 0;
        let pieces: Vec<_> = pieces
            .into_iter()
            .map(|(gap, pages, write, largest)| {
                let start = at + gap * PAGE;
                at = start + pages * PAGE;
                let allowed = if write { Permissions::READ_WRITE } else { Permissions::READ };
                let leaves = if largest { Leaves::LARGEST } else { PAGES };
                (start, 0x8000_0000 + start, pages * PAGE, Attributes::normal(allowed), leaves)
            })
            .collect();
        let world = World::plain(&pieces);
        is_right(&world.tree, &drawn(&world, most), most);
    }
}
