//! Handles TLB conflict aborts. A CPU of FEAT_BBM level 1 or 2 may take one after a live leaf changed its
//! size, as long as its TLB holds entries of both sizes (RNGLXZ, IHYQMB).
//!
//! The handler invalidates the CPU's own TLB, which is sure to remove both entries (RBLRKC, IJCCRT; a TLBI by
//! address is not, RGRVDR), and the access is retried.
//!
//! Only the linear map is ever split. So everything that the handler uses lies elsewhere, in the last 32 GiB
//! of the address space: the vectors and this code, the stack (another one if the interrupted one lies in the
//! linear map), the frame, and the CPU's own slot. The handler takes no lock, does not print, and follows no
//! pointer into the linear map, because a conflict inside it would recur for ever.
//!
//! The abort may happen at any access, fetch or stack access in the leaf, until the entry of the old size is
//! gone. A conflict in the vectors' first store would overwrite ELR and SPSR, and a thread's stack may lie in
//! the linear map. So before any store, for interrupts too, the vector checks by the stack pointer's upper
//! bits whether the stack lies in the last 32 GiB. If it does not, or has no room left, the frame goes to the
//! CPU's exception stack.
//!
//! Because it uses nothing of the linear map, the handler may interrupt a holder of the tables' lock that
//! reaches tables in the very block that was split. A second conflict during the handler means that the rule
//! was broken, and ends in a panic. Handled conflicts are `tlb_conflicts` in the record. An AT reports a
//! conflict in PAR_EL1 and not as an exception: `arch::cpu::translate` invalidates and tries once more.

use super::hook::ABORTS;
use crate::arch::cpu;
use crate::fatal::panic;
use crate::percpu::per_cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule_kcore::exception_frame::Frame;
use granule_kcore::syndrome;

per_cpu! {
    /// Whether the CPU is handling a TLB conflict abort.
    static BUSY: AtomicBool = AtomicBool::new(false);
}

per_cpu! {
    /// TLB conflict aborts that the CPU has handled.
    static CONFLICTS: AtomicU64 = AtomicU64::new(0);
}

/// TLB conflict aborts that all CPUs have handled.
pub(crate) fn count() -> u64 {
    CONFLICTS.sum()
}

/// TLB conflict aborts that this CPU has handled.
#[cfg(feature = "test-image")]
pub(crate) fn of_this_cpu() -> u64 {
    CONFLICTS.this().load(Ordering::Relaxed)
}

/// Handles `frame` if it is a TLB conflict abort. Returns true if the interrupted instruction must be
/// retried.
pub(super) fn handle(frame: &Frame) -> bool {
    let Some(abort) = syndrome::own_abort(frame.esr) else {
        return false;
    };
    let hook = ABORTS
        .get()
        .filter(|hook| abort.status.is_translation_fault() && (hook.is_conflict)(frame.far));
    if !abort.status.is_tlb_conflict() && hook.is_none() {
        return false;
    }
    let busy = BUSY.this();
    if busy.swap(true, Ordering::Relaxed) {
        panic::exception(
            frame,
            format_args!(
                "TLB conflict abort at {:#018x} while another one was dealt with, by code that \
                 must touch nothing that is ever split",
                frame.far
            ),
        );
    }
    if let Some(hook) = hook {
        (hook.before_conflict)();
    }
    // At EL2 with E2H and TGE set the instruction applies to EL2&0, the regime of this kernel.
    cpu::tlbi_vmalle1_local();
    CONFLICTS.this().fetch_add(1, Ordering::Relaxed);
    busy.store(false, Ordering::Relaxed);
    true
}
