//! The three traits as one value for [`PageTables`](super::PageTables).
//!
//! The code here only forwards calls.

use super::allocator::TableAllocator;
use super::maintenance::Maintenance;
use super::memory::TableMemory;
use crate::forward;

/// Everything that [`PageTables`](super::PageTables) needs: table memory, table pages, TLB maintenance.
pub trait Environment: TableMemory + TableAllocator + Maintenance {}
impl<E: TableMemory + TableAllocator + Maintenance> Environment for E {}

/// An [`Environment`] of three parts.
#[derive(Clone, Copy, Debug)]
pub struct Parts<M, A, T> {
    /// Accesses the tables' memory.
    pub memory: M,
    /// Allocates and frees table pages.
    pub allocator: A,
    /// Issues barriers and TLBIs.
    pub maintenance: T,
}

// SAFETY: every call goes to `memory`, whose implementation keeps the trait's promises.
unsafe impl<M: TableMemory, A, T> TableMemory for Parts<M, A, T> {
    forward!(self.memory: load find_mapped store exchange fill update);
}

// SAFETY: every call goes to `allocator`, whose implementation keeps the trait's promises.
unsafe impl<M, A: TableAllocator, T> TableAllocator for Parts<M, A, T> {
    forward!(self.allocator: reserve allocate free);
}

impl<M, A, T: Maintenance> Maintenance for Parts<M, A, T> {
    forward!(self.maintenance: capabilities dsb_ishst dsb_ish isb tlbi);
}
