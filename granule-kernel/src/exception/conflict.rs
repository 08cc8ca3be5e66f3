//! TLB conflict aborts: what a CPU of FEAT_BBM level 1 or 2 may take after a live leaf changed its
//! size, as long as it still has an entry of the old size beside one of the new (RNGLXZ, IHYQMB).
//!
//! The CPU's own TLB is emptied, which is what surely removes both (RBLRKC, IJCCRT; by address it
//! is not, RGRVDR), and the access is tried again.
//!
//! What is ever split is the linear map. So all that this takes lies elsewhere, in the last 4 GiB
//! of the address space: the vectors and this code, the stack they run on (another one if the
//! interrupted one lies in the linear map), the frame, and the CPU's own slot. Nothing here takes a
//! lock, prints, or follows a pointer into the linear map: a conflict in here would never end.

use super::hook::ABORTS;
use crate::arch::cpu;
use crate::arch::frame::Frame;
use crate::fatal::panic;
use crate::percpu::{Aligned, Local};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::syndrome;

/// Whether each CPU is dealing with a TLB conflict abort.
static BUSY: Local<AtomicBool> = Local([const { Aligned(AtomicBool::new(false)) }; MOST_CPUS]);
/// TLB conflict aborts that each CPU has dealt with.
static CONFLICTS: Local<AtomicU64> = Local([const { Aligned(AtomicU64::new(0)) }; MOST_CPUS]);

/// TLB conflict aborts that all CPUs have dealt with.
pub(crate) fn count() -> u64 {
    CONFLICTS.sum()
}

/// Those that this CPU has dealt with.
#[cfg(feature = "test-image")]
pub(crate) fn of_this_cpu() -> u64 {
    CONFLICTS.this().load(Ordering::Relaxed)
}

/// Deals with `frame` if it is a TLB conflict abort; true if what was interrupted is to try again.
pub(super) fn handle(frame: &Frame) -> bool {
    let Some(abort) = syndrome::own_abort(frame.esr) else {
        return false;
    };
    let hook = ABORTS
        .get()
        .filter(|hook| abort.status.is_translation_fault() && hook.is_conflict(frame.far));
    if !abort.status.is_tlb_conflict() && hook.is_none() {
        return false;
    }
    let busy = BUSY.this();
    if busy.swap(true, Ordering::Relaxed) {
        panic::exception(
            frame,
            format_args!(
                "TLB conflict abort at {:#018x} while another one was dealt with, by code that must touch nothing that is ever split",
                frame.far
            ),
        );
    }
    if let Some(hook) = hook {
        hook.before_conflict();
    }
    // At EL2 with E2H and TGE set the instruction is for EL2&0, the regime that we run in.
    cpu::tlbi_vmalle1_local();
    CONFLICTS.this().fetch_add(1, Ordering::Relaxed);
    busy.store(false, Ordering::Relaxed);
    true
}
