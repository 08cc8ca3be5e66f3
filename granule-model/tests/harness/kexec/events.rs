//! What one CPU does beside the steps, as events.

use crate::machine::Shared;
use granule_model::{Barrier, CacheOp, EventKind, Purpose, Register, Tlbi};

pub(super) fn clean(world: &Shared, address: u64, bytes: u64) {
    let op = CacheOp::CleanToPoc;
    world
        .borrow_mut()
        .event(EventKind::Cache { op, address, bytes });
}

pub(super) fn barrier(world: &Shared, barrier: Barrier) {
    world.borrow_mut().event(EventKind::Barrier(barrier));
}

pub(super) fn stored(world: &Shared, address: u64, bytes: u64, purpose: Purpose) {
    world.borrow_mut().event(EventKind::OtherStore {
        address,
        bytes,
        purpose,
    });
}

pub(super) fn register(world: &Shared, register: Register, value: u64) {
    let mut world = world.borrow_mut();
    world.event(EventKind::RegisterWrite { register, value });
}

pub(super) fn tlbi(world: &Shared, name: &str) {
    let op = Tlbi::from_name(name, 0).map(EventKind::Tlbi);
    op.into_iter()
        .for_each(|kind| world.borrow_mut().event(kind));
}
