//! The state of each CPU while it comes up or goes off.

use crate::percpu::per_cpu;
use core::sync::atomic::{AtomicBool, AtomicU32};

/// Not started, or no such CPU.
pub(super) const OFF: u32 = 0;
/// The boot CPU waits for the CPU to come up.
pub(super) const STARTING: u32 = 1;
/// The CPU runs the kernel.
pub(super) const UP: u32 = 2;
/// The CPU came up but cannot take interrupts.
pub(super) const FAILED: u32 = 3;
/// The boot CPU gave up waiting. The CPU must go off if it still arrives or still runs.
pub(super) const GIVEN_UP: u32 = 4;
/// The CPU was requested to go off and could not.
pub(super) const STAYS: u32 = 5;

per_cpu! {
    static STATE: AtomicU32 = AtomicU32::new(OFF);
}

per_cpu! {
    static FOR_GOOD: AtomicBool = AtomicBool::new(false);
}

/// The state of CPU `number`. The boot CPU's is never read.
pub(super) fn of(number: usize) -> Option<&'static AtomicU32> {
    STATE.of(number)
}

/// Whether nothing can switch CPU `number` off, because it was started by its release address.
pub(super) fn is_for_good(number: usize) -> Option<&'static AtomicBool> {
    FOR_GOOD.of(number)
}
