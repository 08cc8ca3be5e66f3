//! Running out of table pages, at each page that an operation needs: the error is reported, the
//! tables are as they were to the last entry, and no rule is broken. Every other operation is one for
//! which the tree itself holds the pages.

use crate::bench::Bench;
use crate::draw::Draw;
use crate::operation::{Does, Operation};
use crate::random::{Random, from_environment};
use crate::reference::Reference;
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::table::{Stage1, Stage2, TableError, Visit};

/// Every valid entry: its table, index and descriptor.
fn dump<P: Page, S: Staged>(bench: &Bench<P, S>) -> Vec<(u64, usize, u64)> {
    let mut entries = Vec::new();
    bench.tables.visit_all(|entry| {
        entries.push((entry.table.0, entry.index, entry.descriptor.0));
        Visit::EVERYTHING
    });
    entries
}

fn given_out<P: Page, S: Staged>(bench: &Bench<P, S>) -> u64 {
    bench.world.borrow().tables
}

fn unmaps<S: Staged>(operation: &Operation<S>) -> bool {
    match operation {
        Operation::Cursor(steps) => steps.iter().any(unmaps),
        _ => matches!(operation.does(), Some(Does::Unmap(_))),
    }
}

/// Does random operations, each of which first fails at every single page that it needs. How
/// often that was.
fn run<P: Page, S: Staged>(shape: Shape, operations: u64) -> u64 {
    let seed = from_environment("GRANULE_HARNESS_SEED").unwrap_or(1);
    let mut bench = Bench::<P, S>::of(shape, seed);
    let geometry = bench.geometry;
    let draw = Draw::<S>::new(geometry, &shape);
    let mut random = Random::new(seed);
    let mut reference = Reference::default();
    let mut refused = 0;
    for step in 0..operations {
        let mut operation = draw.operation(&mut random, &reference);
        operation.look(&bench);
        if let Operation::Cursor(steps) = &mut operation {
            // Operations that fail as a whole.
            steps.truncate(1);
        }
        let before = (dump(&bench), given_out(&bench));
        let mut left = 0;
        let result = loop {
            let mut pages = bench.tables.environment().pages.borrow_mut();
            (pages.left, pages.reserves) = (left, step % 2 == 0);
            drop(pages);
            let result = operation.perform(&mut bench, &reference);
            let Err(TableError::OutOfTables { needed }) = result else {
                break result;
            };
            let what =
                format!("seed {seed:#x} {shape:?} step {step}: {left} pages for {operation:?}");
            assert!(needed as u64 > left, "{what}: {needed} are enough");
            assert_eq!((dump(&bench), given_out(&bench)), before, "{what}");
            bench.settle();
            assert_eq!(bench.violations(), Vec::<String>::new(), "{what}");
            refused += 1;
            left += 1;
        };
        bench.settle();
        assert_eq!(bench.violations(), Vec::<String>::new());
        operation.check_result(&geometry, bench.shape.bbm_level, &reference, result);
        if result.is_ok() {
            let used = given_out(&bench).saturating_sub(before.1);
            // An unmap that splits one block may free tables elsewhere.
            if unmaps(&operation) {
                assert!(used <= left, "{used} pages where {left} were to be had");
            } else {
                assert_eq!(used, left, "just as many pages as were there to be had");
            }
            operation.apply(&geometry, &mut reference);
            reference = bench.left.take().unwrap_or(reference);
        }
    }
    refused
}

/// Where live leaves are split, which takes tables too.
fn splitting(va_bits: u32) -> Shape {
    Shape::kernel(va_bits).bbm_level(3)
}

#[test]
fn every_allocation_fails_4k() {
    let wide = Shape {
        asid: Some(3),
        wide: true,
        bbm_level: 3,
        ..Shape::kernel(52)
    };
    let refused =
        run::<Page4K, Stage1>(Shape::kernel(48), 1500) + run::<Page4K, Stage1>(wide, 1500);
    assert!(refused > 1000, "{refused} times");
}

#[test]
fn every_allocation_fails_16k() {
    let refused = run::<Page16K, Stage1>(splitting(47), 1200);
    assert!(refused > 150, "{refused} times");
}

#[test]
fn every_allocation_fails_64k() {
    let refused = run::<Page64K, Stage1>(splitting(42), 600);
    assert!(refused > 50, "{refused} times");
}

#[test]
fn every_allocation_of_a_guest_fails() {
    let refused = run::<Page4K, Stage2>(Shape::kernel(40), 800)
        + run::<Page4K, Stage2>(splitting(48), 800)
        + run::<Page16K, Stage2>(splitting(40), 400)
        + run::<Page64K, Stage2>(splitting(42), 300);
    assert!(refused > 500, "{refused} times");
}
