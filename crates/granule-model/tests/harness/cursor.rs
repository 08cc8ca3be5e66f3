//! Operations of one page each, with one cursor: done by the library, and checked step by step.

use crate::bench::{Bench, settle};
use crate::operation::{Does, Operation};
use crate::reference::Reference;
use crate::stage::Staged;
use crate::watch::conflict_allowed;
use granule::arch::Page;
use granule::table::{EmptyTables, TableError};
use granule_model::{Access, AccessKind};
use std::rc::Rc;

/// The most pages that a cursor advances over; it moves farther.
const ADVANCES: u64 = 4;

/// Does the steps one after the other, those that are refused too, and leaves the expected tables
/// in `bench.left`. Each step is complete when it returns: nothing is left to the next one.
pub(crate) fn perform<P: Page, S: Staged>(
    steps: &[Operation<S>],
    bench: &mut Bench<P, S>,
    reference: &Reference<S>,
) -> Result<(), TableError> {
    let (geometry, shape) = (bench.geometry, bench.shape);
    let base = geometry.base().0;
    let page = P::SIZE.bytes();
    let address = |offset: u64| S::at(base.wrapping_add(offset));
    let world = Rc::clone(&bench.world);
    let mut now = reference.clone();
    let mut at = steps.first().map_or(0, |step| step.range(&geometry).0);
    let mut cursor = bench.tables.cursor(address(at))?;
    for (number, step) in steps.iter().enumerate() {
        let (from, _) = step.range(&geometry);
        if at <= from && from - at <= ADVANCES * page {
            for _ in 0..(from - at) / page {
                cursor.advance();
            }
        } else {
            cursor.move_to(address(from))?;
        }
        assert_eq!(cursor.address(), address(from), "the place before {step:?}");
        let mut after = now.clone();
        step.apply(&geometry, &mut after);
        for sample in &mut world.borrow_mut().watch.samples {
            let offset = sample.va.wrapping_sub(base);
            sample.before = now.outcome(&geometry, offset, sample.access);
            sample.after = after.outcome(&geometry, offset, sample.access);
        }
        let tables = world.borrow().tables;
        let result = match (step, step.does()) {
            (Operation::Map(piece), _) => cursor.map(piece.output, piece.attributes),
            (_, Some(Does::Protect(change, holes))) => cursor.protect(*change, *holes),
            (_, Some(Does::Unmap(empty))) => cursor.unmap(*empty),
            (other, _) => panic!("a cursor has no {}", other.name()),
        };
        let frees = matches!(step.does(), Some(Does::Unmap(EmptyTables::Free)));
        let kept = world.borrow().tables >= tables;
        assert!(kept || frees, "tables were freed by {step:?}");
        if steps.len() == 1 && matches!(result, Err(TableError::OutOfTables { .. })) {
            return result;
        }
        step.check_result(&geometry, shape.bbm_level, &now, result);
        at = from;
        if result.is_ok() {
            at += page;
            now = after;
        }
        assert_eq!(cursor.address(), address(at), "the place after {step:?}");
        settle(&world, shape.cpus);
        for kind in [AccessKind::Read, AccessKind::Write] {
            let access = Access {
                regime: S::REGIME,
                kind,
                user: number % 2 == 1,
            };
            let world = world.borrow();
            let (cpu, va) = (number as u32 % shape.cpus, base.wrapping_add(from));
            let mut outcomes = world.model.outcomes(cpu, va, access);
            outcomes.retain(|one| !conflict_allowed(&world.model, one));
            let expected = now.outcome(&geometry, from, access);
            assert_eq!(outcomes, [expected], "CPU {cpu} at {va:#x} after {step:?}");
        }
    }
    bench.left = Some(now);
    Ok(())
}
