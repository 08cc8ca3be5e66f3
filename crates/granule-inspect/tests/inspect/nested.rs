//! Stage 1 below stage 2: a host under a hypervisor, whose tables lie at intermediate addresses.

use crate::walk::RW;
use crate::world::{BASE, Pages, TABLES, World, kernel};
use granule::arch::{Stage2Attributes, Stage2Geometry, Stage2Permissions};
use granule::table::Leaves;
use granule_inspect::explain::explain;
use granule_inspect::lint::{LintOptions, Rule, lint};
use granule_inspect::tree::Through;
use granule_inspect::walk::{EVERYTHING, Event, Tables, walk};
use granule_testing::shape;
use std::ops::ControlFlow;

const MEMORY: u64 = 0x8000_0000;
/// The distance of the memory from its intermediate addresses.
const DISTANCE: u64 = 0x10_0000_0000;

/// A kernel whose tables and memory are below a stage 2 of this shape, which maps so many of its tables.
fn host(shape: Stage2Geometry, mapped: u64) -> World {
    let host = World::at(
        kernel(),
        TABLES,
        &[(0x1000, MEMORY, 0x2000, RW, Leaves::PAGES)],
    );
    let bytes = shape.shape().page_size().bytes();
    let attributes = Stage2Attributes::normal(Stage2Permissions::READ_WRITE);
    let tables = (mapped * 0x1000).next_multiple_of(bytes);
    let guest = World::guest(
        shape,
        &[
            (TABLES, TABLES + DISTANCE, tables, attributes, Leaves::PAGES),
            (
                MEMORY,
                MEMORY + DISTANCE,
                0x1_0000,
                attributes,
                Leaves::PAGES,
            ),
        ],
    );
    // The host's tables have the same intermediate addresses as those of stage 2 have physical ones.
    let moved = host
        .pages
        .0
        .into_iter()
        .map(|(page, words)| (page + DISTANCE, words));
    let pages = Pages(guest.pages.0.into_iter().chain(moved).collect());
    let mut tree = host.tree;
    tree.through = Some(Through {
        root: guest.tree.root,
        shape,
    });
    World { pages, tree }
}

#[test]
fn a_host_is_read_through_stage_2_of_each_page_size() {
    let shapes = shape::stage2()
        .into_iter()
        .filter(|shape| shape.shape().va_bits() >= 36);
    for shape in shapes {
        let world = host(shape, 3);
        let tables = Tables::new(&world.pages, &world.tree);
        let mut found = Vec::new();
        let _: ControlFlow<()> = walk(&tables, &world.tree, EVERYTHING, |event| {
            match event {
                Event::Leaves(leaves) => found.push((leaves.start, leaves.output, leaves.count)),
                Event::Table(_) => {}
                Event::LeftOut(left_out) => panic!("{left_out}"),
            }
            ControlFlow::Continue(())
        });
        assert_eq!(found, [(BASE + 0x1000, MEMORY, 2)], "{shape:?}");
        let end = explain(&tables, &world.tree, BASE + 0x1234).end_in_words();
        assert!(end.starts_with("translated to 0x80000234; "), "{end}");
        assert!(
            end.ends_with("; stage 2 translates 0x80000234 to 0x1080000234"),
            "{end}"
        );
    }
}

#[test]
fn a_table_that_stage_2_does_not_map_is_reported_so() {
    let world = host(shape::stage2()[0], 2);
    let linted = lint(
        &world.pages,
        std::slice::from_ref(&world.tree),
        &LintOptions::default(),
        &mut |_| {},
    );
    let [finding] = linted.findings.list.as_slice() else {
        panic!("{:?}", linted.findings.list);
    };
    assert_eq!(finding.rule, Rule::UnreadableTable);
    assert!(
        finding
            .text
            .contains(" does not map 0x90002000: the entry is invalid"),
        "{finding}"
    );
}
