//! Memory with any bytes: every reader ends, and what it shows lies in the address space.

use crate::walk::ranges;
use crate::world::Pages;
use granule::arch::{Geometry, PageSize, PhysicalAddress};
use granule_inspect::diff::{Listed, diff};
use granule_inspect::explain::explain;
use granule_inspect::lint::{LintOptions, Severity, lint};
use granule_inspect::tree::{Origin, Owner, Shape, Tree};
use granule_inspect::walk::{EVERYTHING, Tables};
use granule_testing::{cases, shape};
use proptest::prelude::*;

/// A word that is often a table or a leaf of the few pages that are there.
fn word(size: PageSize) -> impl Strategy<Value = u64> {
    let page = size.bytes();
    prop_oneof![
        4 => Just(0),
        2 => (0..6u64).prop_map(move |at| (at * page) | 0b11),
        1 => (0..6u64, any::<u64>()).prop_map(move |(at, bits)| (at * page) | bits & (0xfff | 0xfff << 52)),
        1 => any::<u64>(),
    ]
}

/// Six pages, of which one is missing, filled with a few words each.
fn pages(size: PageSize) -> impl Strategy<Value = Pages> {
    let page = prop::collection::vec((0..size.entries(), word(size)), 0..12);
    (prop::collection::vec(page, 6), 0..6u64).prop_map(move |(pages, missing)| {
        let filled = (0..).zip(pages).filter(|(at, _)| *at != missing);
        Pages(
            filled
                .map(|(at, some)| {
                    let mut words = vec![0; size.entries()];
                    for (index, word) in some {
                        words[index] = word;
                    }
                    (at * size.bytes(), words)
                })
                .collect(),
        )
    })
}

fn shapes() -> Vec<Shape> {
    let stage1 = shape::all().into_iter().map(Shape::Stage1);
    stage1
        .chain(shape::stage2().into_iter().map(Shape::Stage2))
        .collect()
}

fn any_tree() -> impl Strategy<Value = (Tree, Pages)> {
    let roots = prop_oneof![4 => 0..6u64, 1 => any::<u64>()];
    (prop::sample::select(shapes()), roots).prop_flat_map(|(shape, root)| {
        let mut tree = Tree::new(Owner::Kernel, PhysicalAddress(root), shape, Origin::Guess);
        let size = tree.geometry().page_size();
        if root < 6 {
            tree.root = PhysicalAddress(root * size.bytes());
        }
        (Just(tree), pages(size))
    })
}

proptest! {
    #![proptest_config(cases::config(300, 4))]

    #[test]
    fn every_reader_ends((tree, pages) in any_tree(), offset in any::<u64>()) {
        let geometry: &Geometry = tree.geometry();
        let (found, totals, _) = ranges(&pages, &tree, EVERYTHING);
        let mut next = geometry.base().0;
        for range in &found {
            prop_assert!(range.start >= next, "{range:x?}");
            prop_assert!(geometry.offset(granule::arch::VirtualAddress(range.last())).is_some());
            next = range.last();
        }
        prop_assert!(totals.tables <= 5 + 16);
        prop_assert!(totals.tlb(true).number() <= totals.tlb(false).number());
        let tables = Tables::new(&pages, &tree);
        let address = geometry.base().0.wrapping_add(offset % geometry.span());
        for address in [address, offset, geometry.base().0, u64::MAX] {
            let explained = explain(&tables, &tree, address);
            prop_assert!(explained.steps.len() <= 5);
            prop_assert!(!explained.to_string().is_empty());
        }
        let linted = lint(&pages, std::slice::from_ref(&tree), &LintOptions::default(), &mut |_| {});
        prop_assert!(linted.findings.worst() <= Some(Severity::Error));
        let listed = Listed { tree: &tree, ranges: &found };
        prop_assert_eq!(diff(listed, listed), []);
    }
}
