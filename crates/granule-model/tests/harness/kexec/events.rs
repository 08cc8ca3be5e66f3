//! The actions of one CPU beside the steps, as events.

use crate::machine::Shared;
use granule_model::{Barrier, Event, System};

pub(super) fn clean(world: &Shared, address: u64, bytes: u64) {
    let op = System::DC_CVAC;
    world.borrow_mut().event(Event::lines(op, address, bytes));
}

pub(super) fn barrier(world: &Shared, barrier: Barrier) {
    world.borrow_mut().event(Event::Barrier(barrier));
}

pub(super) fn stored(world: &Shared, start: u64, bytes: u64) {
    world.borrow_mut().event(Event::Data { start, bytes });
}

pub(super) fn stored_code(world: &Shared, start: u64, bytes: u64) {
    world.borrow_mut().event(Event::Code { start, bytes });
}

pub(super) fn register(world: &Shared, register: System, value: u64) {
    let mut world = world.borrow_mut();
    world.event(Event::System(register, value));
}

pub(super) fn tlbi(world: &Shared, op: System) {
    world.borrow_mut().event(Event::System(op, 0));
}
