//! The hook over data and instruction aborts: simulated TLB conflict aborts, and a call before a translation
//! fault is examined.
//!
//! An implementation follows the rule of `conflict`: it takes no lock, and accesses no memory whose mapping
//! is ever split.

use crate::hook::Hook;

/// Changes how aborts are handled.
pub(crate) trait AbortHook: Sync {
    /// Whether a translation fault at `address` is treated as a TLB conflict abort.
    fn is_conflict(&self, address: u64) -> bool;

    /// Called before the TLB is invalidated for such a fault.
    fn before_conflict(&self);

    /// Called before a walk checks whether the address translates now.
    fn before_translation_fault(&self);
}

/// The installed hook over aborts.
pub(crate) static ABORTS: Hook<dyn AbortHook> = Hook::new();
