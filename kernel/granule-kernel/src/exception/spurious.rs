//! Handles translation faults on an address that another CPU has just made valid.
//!
//! Without FEAT_ETS2, nothing orders a CPU's walk for an access after the load that showed that the
//! address is valid. So a page that another CPU made valid, and published with a DSB, may fault
//! once here because this CPU walked too early. Taking the exception forces a new walk, so the
//! access is retried if the walker now finds a translation.
//!
//! Like [`conflict`](super::conflict) this file takes no lock and accesses no memory whose mapping is ever
//! split.
//!
//! The record counts such faults as `spurious_faults`.

use super::hook::ABORTS;
use crate::arch::cpu;
use crate::percpu::per_cpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::exception_frame::Frame;
use granule_kcore::syndrome;

per_cpu! {
    /// Spurious translation faults of the CPU.
    static FAULTS: AtomicU64 = AtomicU64::new(0);
}

/// Spurious translation faults of all CPUs.
pub(crate) fn count() -> u64 {
    FAULTS.sum()
}

/// Handles `frame` if it is a translation fault on an address that now translates. Returns true if the
/// interrupted instruction must be retried.
pub(super) fn handle(frame: &Frame) -> bool {
    if !syndrome::own_abort(frame.esr).is_some_and(|abort| abort.status.is_translation_fault()) {
        return false;
    }
    if let Some(hook) = ABORTS.get() {
        (hook.before_translation_fault)();
    }
    if cpu::translate(frame.far).is_err() {
        return false;
    }
    FAULTS.this().fetch_add(1, Ordering::Relaxed);
    true
}
