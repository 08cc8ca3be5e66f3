//! Translation faults on what another CPU has made valid.
//!
//! Nothing orders a CPU's walk for an access behind the load that told it that the address may be used
//! (only FEAT_ETS2 does). So a page that one CPU made valid, published by its DSB and told of may
//! fault once on another, which walked too early. Taking the exception is the event after which it
//! walks anew, so it is tried again, if
//! the walker now says that there is a translation.
//!
//! Like [`conflict`](super::conflict) this takes no lock and touches nothing that is ever split.

use super::frame::Frame;
use crate::cpu;
use crate::smp::percpu;
use core::sync::atomic::{AtomicU32, Ordering};
use granule_kcore::syndrome;

/// Deals with `frame` if it is a translation fault where there is a translation; true if what was
/// interrupted is to try again.
pub(super) fn handle(frame: &Frame) -> bool {
    if !syndrome::own_abort(frame.esr).is_some_and(syndrome::is_translation_fault) {
        return false;
    }
    wait_for_test();
    if cpu::translate(frame.far).is_err() {
        return false;
    }
    percpu::this()
        .spurious_faults
        .fetch_add(1, Ordering::Relaxed);
    true
}

const FREE: u32 = 0;
/// The next fault is to wait.
const HELD: u32 = 1;
/// It waits.
const WAITING: u32 = 2;

/// For a test: no emulator walks too early.
static TEST: AtomicU32 = AtomicU32::new(FREE);

/// For a test: makes the next translation fault wait, as early as a CPU walks that is too early,
/// until [`release`] is called.
pub(crate) fn hold() {
    TEST.store(HELD, Ordering::Release);
}

/// Whether a fault waits.
pub(crate) fn is_held() -> bool {
    TEST.load(Ordering::Acquire) == WAITING
}

/// Lets it go on.
pub(crate) fn release() {
    TEST.store(FREE, Ordering::Release);
}

fn wait_for_test() {
    if TEST.load(Ordering::Acquire) == HELD {
        TEST.store(WAITING, Ordering::Release);
        while TEST.load(Ordering::Acquire) == WAITING {
            cpu::relax();
        }
    }
}
