//! Every builder runs out of pages at every one that it takes.

use super::direct::{WithArena, with_arena};
use super::fixmap::with_fixmap;
use super::pieces;
use crate::shape::Shape;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::linear;
use granule::linear::fixmap::{self, Slot};
use granule::linear::{Barriers, LeafStats, Strategy};
use granule::table::{Leaves, PageTables, TableError, Visit};
use granule_model::Event;

/// Every valid entry: its table, index and descriptor.
fn entries<P: Page, E>(tables: &PageTables<P, E>) -> Vec<(u64, usize, u64)>
where
    E: granule::table::TableEnvironment,
{
    let mut found = Vec::new();
    tables.visit_all(|entry| {
        found.push((entry.table.0, entry.index, entry.descriptor.0));
        Visit::EVERYTHING
    });
    found
}

/// Each builder runs out of pages at each single one that it needs: it reports that, the tables are as
/// they were, no slot is left open, and no rule is broken.
fn exhausted<P: Page>(shape: Shape, leaves: Leaves) -> u64 {
    let geometry = shape.geometry::<P>();
    let pieces = pieces(&geometry, leaves);
    let needed = LeafStats::new(&geometry, &pieces).tables;
    let mut refused = 0;
    for had in 0..needed {
        let (world, mut tables) = with_arena::<P>(&shape, had + 1);
        let before = entries(&tables);
        // SAFETY: the model's memory is reached everywhere.
        let result = unsafe { linear::create(&mut tables, &pieces, WithArena::arena) };
        let what = format!("direct: {had} of {needed} pages, {shape:?}");
        assert!(
            matches!(result, Err(TableError::OutOfTables { .. })),
            "{what}: {result:?}"
        );
        assert_eq!(entries(&tables), before, "{what}");
        world.borrow_mut().event(Event::Settled);
        assert_eq!(world.borrow().model.violations(), [], "{what}");
        refused += 1;
    }
    for strategy in Strategy::ALL {
        let (bench, mut fixmap) = with_fixmap::<P>(shape);
        let root = bench.tables.root_table();
        let before = entries(&bench.tables);
        for had in 0.. {
            fixmap.pages.borrow_mut().left = had;
            let barriers = Barriers::Table;
            // SAFETY: the bench's own tree, which nothing else changes; no slot stays open.
            let result =
                unsafe { fixmap::create::<P, _>(&mut fixmap, root, &pieces, strategy, barriers) };
            let what = format!("{strategy:?}: {had} pages, {shape:?}");
            assert_eq!(fixmap.open, [None; Slot::COUNT], "{what}");
            bench.settle();
            assert_eq!(bench.violations(), Vec::<String>::new(), "{what}");
            let Err(error) = result else {
                assert!(had > 0, "{what}: nothing was needed");
                break;
            };
            assert!(
                matches!(error, TableError::OutOfTables { needed } if needed as u64 > had),
                "{what}: {error}"
            );
            assert_eq!(entries(&bench.tables), before, "{what}");
            refused += 1;
        }
    }
    refused
}

#[test]
fn every_allocation_of_every_builder_fails() {
    let refused = exhausted::<Page4K>(Shape::kernel(39), Leaves::LARGEST)
        + exhausted::<Page4K>(Shape::kernel(48), Leaves::PAGES)
        + exhausted::<Page16K>(Shape::kernel(47), Leaves::LARGEST)
        + exhausted::<Page64K>(Shape::kernel(42), Leaves::PAGES);
    assert!(refused > 50, "{refused} times");
}
