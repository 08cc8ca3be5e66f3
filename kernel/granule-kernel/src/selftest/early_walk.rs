//! Simulates a CPU that walks too early: its next translation fault waits until a test has made the page
//! valid.
//!
//! No emulator walks before the load that announced the page, so the fault itself is delayed.

use crate::arch::cpu;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
/// The next fault must wait.
const HELD: u32 = 1;
/// A fault waits.
const WAITING: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(FREE);

/// Makes the next translation fault wait until [`release`] is called.
pub(super) fn hold() {
    STATE.store(HELD, Ordering::Release);
}

/// Whether a fault waits.
pub(super) fn is_held() -> bool {
    STATE.load(Ordering::Acquire) == WAITING
}

/// Lets the fault continue.
pub(super) fn release() {
    STATE.store(FREE, Ordering::Release);
}

/// Waits, if the next fault must wait.
pub(super) fn wait() {
    if STATE.load(Ordering::Acquire) == HELD {
        STATE.store(WAITING, Ordering::Release);
        while STATE.load(Ordering::Acquire) == WAITING {
            cpu::relax();
        }
    }
}
