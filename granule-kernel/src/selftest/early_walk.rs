//! A CPU that walks too early: its next translation fault waits until a test has made the page valid.
//!
//! No emulator walks before the load that told it of the page, so the fault itself is held back.

use crate::arch::cpu;
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
/// The next fault is to wait.
const HELD: u32 = 1;
/// It waits.
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

/// Lets the fault go on.
pub(super) fn release() {
    STATE.store(FREE, Ordering::Release);
}

/// Waits, if this is the fault that is to.
pub(super) fn wait() {
    if STATE.load(Ordering::Acquire) == HELD {
        STATE.store(WAITING, Ordering::Release);
        while STATE.load(Ordering::Acquire) == WAITING {
            cpu::relax();
        }
    }
}
