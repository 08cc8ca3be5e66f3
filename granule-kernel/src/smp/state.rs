//! How far each CPU is on its way up or off.

use crate::percpu::{Aligned, Local};
use core::sync::atomic::AtomicU32;
use granule_kcore::cpus::MOST_CPUS;

/// Not started, or not a CPU at all.
pub(super) const OFF: u32 = 0;
/// The boot CPU waits for it.
pub(super) const STARTING: u32 = 1;
/// It runs the kernel.
pub(super) const UP: u32 = 2;
/// It came up and found that it cannot take interrupts.
pub(super) const FAILED: u32 = 3;
/// The boot CPU gave it up; should it come, or not have gone, it must go.
pub(super) const GIVEN_UP: u32 = 4;
/// It was told to go off, and could not.
pub(super) const STAYS: u32 = 5;

static STATES: Local<AtomicU32> = Local([const { Aligned(AtomicU32::new(OFF)) }; MOST_CPUS]);

/// The state of CPU `number`. That of the boot CPU is never asked for.
pub(super) fn of(number: usize) -> Option<&'static AtomicU32> {
    STATES.of(number)
}
