//! The hook of data and instruction aborts: what looks like a TLB conflict abort, and what comes before
//! a translation fault is looked at.
//!
//! An implementation keeps the rule of `conflict`: it takes no lock, and touches nothing that is ever
//! split.

use crate::hook::Hook;

/// Changes how aborts are dealt with.
pub(crate) trait AbortHook: Sync {
    /// Whether a translation fault at `address` is to be taken for a TLB conflict abort.
    fn is_conflict(&self, address: u64) -> bool;

    /// Comes before the TLB is emptied for such a fault.
    fn before_conflict(&self);

    /// Comes before the walker is asked whether a translation fault is one still.
    fn before_translation_fault(&self);
}

/// The hook of aborts.
pub(crate) static ABORTS: Hook<dyn AbortHook> = Hook::new();
