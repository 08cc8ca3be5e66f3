//! The hook over data and instruction aborts: simulated TLB conflict aborts, and a call before a translation
//! fault is examined.
//!
//! An implementation follows the rule of `conflict`: it takes no lock, and accesses no memory whose mapping
//! is ever split.

use crate::hook::Hook;

/// Changes how aborts are handled.
pub(crate) struct AbortHook {
    /// Whether a translation fault at `address` is treated as a TLB conflict abort.
    pub(crate) is_conflict: fn(u64) -> bool,
    /// Called before the TLB is invalidated for such a fault.
    pub(crate) before_conflict: fn(),
    /// Called before a walk checks whether the address translates now.
    pub(crate) before_translation_fault: fn(),
}

/// The installed hook over aborts.
pub(crate) static ABORTS: Hook<AbortHook> = Hook::new();
