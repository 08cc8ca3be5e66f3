//! Two trees compared.

use crate::walk::{RW, ranges};
use crate::world::{BASE, Piece, World};
use granule::arch::{Attributes, Permissions};
use granule::table::Leaves;
use granule_inspect::diff::{Difference, Listed, diff};
use granule_inspect::walk::EVERYTHING;

const MEMORY: u64 = 0x8000_0000;
const PAGE: u64 = 0x1000;

fn compared(old: &[Piece<Attributes>], new: &[Piece<Attributes>]) -> Vec<Difference> {
    let (old, new) = (World::plain(old), World::plain(new));
    let of = |world: &World| ranges(&world.pages, &world.tree, EVERYTHING).0;
    let (olds, news) = (of(&old), of(&new));
    diff(
        Listed {
            tree: &old.tree,
            ranges: &olds,
        },
        Listed {
            tree: &new.tree,
            ranges: &news,
        },
    )
}

#[test]
fn equal_ranges_are_no_difference() {
    let piece = (0, MEMORY, 16 * PAGE, RW, Leaves::PAGES);
    assert_eq!(compared(&[piece], &[piece]), []);
    assert_eq!(compared(&[], &[]), []);
}

#[test]
fn changed_pages_in_the_middle_are_reported_alone() {
    let read = Attributes::normal(Permissions::READ);
    let found = compared(
        &[(0, MEMORY, 16 * PAGE, RW, Leaves::PAGES)],
        &[
            (0, MEMORY, 4 * PAGE, RW, Leaves::PAGES),
            (4 * PAGE, MEMORY + 4 * PAGE, 2 * PAGE, read, Leaves::PAGES),
            (6 * PAGE, MEMORY + 6 * PAGE, 10 * PAGE, RW, Leaves::PAGES),
        ],
    );
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(
        (found[0].start, found[0].bytes),
        (BASE + 4 * PAGE, 2 * PAGE)
    );
    assert_eq!(
        found[0].old.as_deref(),
        Some("4K page at 0x80004000 RW PXN UXN AF ISH normal-WB")
    );
    assert_eq!(
        found[0].new.as_deref(),
        Some("4K page at 0x80004000 ro PXN UXN AF ISH normal-WB")
    );
}

#[test]
fn ends_that_only_one_maps_are_reported_each() {
    let found = compared(
        &[(0, MEMORY, 8 * PAGE, RW, Leaves::PAGES)],
        &[(4 * PAGE, MEMORY + 4 * PAGE, 8 * PAGE, RW, Leaves::PAGES)],
    );
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    let words = "RW PXN UXN AF ISH normal-WB";
    let expected = [
        format!(
            "0xffffff8000000000 - 0xffffff8000003fff      16K  only in the first: 4K page at 0x80000000 {words}"
        ),
        format!(
            "0xffffff8000008000 - 0xffffff800000bfff      16K  only in the second: 4K page at 0x80008000 {words}"
        ),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn outputs_and_leaf_sizes_count() {
    let block = 1 << 21;
    let contiguous = Leaves {
        contiguous: true,
        ..Leaves::PAGES
    };
    let old = [(0, MEMORY, block, RW, Leaves::PAGES)];
    for new in [
        (0, MEMORY, block, RW, Leaves::LARGEST),
        (0, MEMORY, block, RW, contiguous),
        (0, MEMORY + PAGE, block, RW, Leaves::PAGES),
    ] {
        let found = compared(&old, &[new]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0].start, found[0].bytes), (BASE, block));
    }
}

/// The highest address has no next one.
#[test]
fn the_end_of_the_address_space_ends_it() {
    let last = (1 << 39) - PAGE;
    let found = compared(&[(last, MEMORY, PAGE, RW, Leaves::PAGES)], &[]);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].start, found[0].bytes),
        (0u64.wrapping_sub(PAGE), PAGE)
    );
}
