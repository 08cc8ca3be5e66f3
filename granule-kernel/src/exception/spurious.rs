//! Translation faults on what another CPU has made valid.
//!
//! Nothing orders a CPU's walk for an access behind the load that told it that the address may be used
//! (only FEAT_ETS2 does). So a page that one CPU made valid, published by its DSB and told of may
//! fault once on another, which walked too early. Taking the exception is the event after which it
//! walks anew, so it is tried again, if
//! the walker now says that there is a translation.
//!
//! Like [`conflict`](super::conflict) this takes no lock and touches nothing that is ever split.

use super::hook::ABORTS;
use crate::arch::cpu;
use crate::arch::frame::Frame;
use crate::percpu::{Aligned, Local};
use core::sync::atomic::{AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::syndrome;

/// Translation faults of each CPU that were none any more.
static FAULTS: Local<AtomicU64> = Local([const { Aligned(AtomicU64::new(0)) }; MOST_CPUS]);

/// Translation faults of all CPUs that were none any more.
pub(crate) fn count() -> u64 {
    FAULTS.sum()
}

/// Deals with `frame` if it is a translation fault where there is a translation; true if what was
/// interrupted is to try again.
pub(super) fn handle(frame: &Frame) -> bool {
    if !syndrome::own_abort(frame.esr).is_some_and(|abort| abort.status.is_translation_fault()) {
        return false;
    }
    if let Some(hook) = ABORTS.get() {
        hook.before_translation_fault();
    }
    if cpu::translate(frame.far).is_err() {
        return false;
    }
    FAULTS.this().fetch_add(1, Ordering::Relaxed);
    true
}
