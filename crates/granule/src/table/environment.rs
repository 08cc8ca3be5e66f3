//! The three traits as one value for [`PageTables`](super::PageTables).
//!
//! The code here only forwards calls.

#![allow(unsafe_code, reason = "hands on the promises of the traits")]

use super::allocator::TableAllocator;
use super::memory::TableMemory;
use super::tlb_ops::TlbOps;
use crate::forward;

/// Everything that [`PageTables`](super::PageTables) needs: table memory, table pages, TLB
/// maintenance.
pub trait TableEnvironment: TableMemory + TableAllocator + TlbOps {}
impl<E: TableMemory + TableAllocator + TlbOps> TableEnvironment for E {}

/// A [`TableEnvironment`] of three values.
#[derive(Clone, Copy, Debug)]
pub struct Environment<M, A, T> {
    /// Accesses the tables' memory.
    pub memory: M,
    /// Allocates and frees table pages.
    pub allocator: A,
    /// Issues barriers and TLBIs.
    pub tlb: T,
}

// SAFETY: every call goes to `memory`, whose implementation keeps the trait's promises.
unsafe impl<M: TableMemory, A, T> TableMemory for Environment<M, A, T> {
    forward!(self.memory: load find_unlike store exchange fill update update_alike);
}

// SAFETY: every call goes to `allocator`, whose implementation keeps the trait's promises.
unsafe impl<M, A: TableAllocator, T> TableAllocator for Environment<M, A, T> {
    forward!(self.allocator: pages reserve allocate allocate_aligned free);
}

impl<M, A, T: TlbOps> TlbOps for Environment<M, A, T> {
    forward!(self.tlb: capabilities dsb_ishst dsb_ish isb tlbi);
}

// SAFETY: every call goes to the referenced value, which keeps the trait's promises.
unsafe impl<T: TableMemory> TableMemory for &mut T {
    forward!(*self: load find_unlike store exchange fill update update_alike);
}

// SAFETY: every call goes to the referenced value, which keeps the trait's promises.
unsafe impl<T: TableAllocator> TableAllocator for &mut T {
    forward!(*self: pages reserve allocate allocate_aligned free);
}

impl<T: TlbOps> TlbOps for &mut T {
    forward!(*self: capabilities dsb_ishst dsb_ish isb tlbi);
}
