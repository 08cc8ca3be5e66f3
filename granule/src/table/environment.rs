//! The three traits as one value, which is what [`PageTables`](super::PageTables) takes.
//!
//! Nothing in here but handing calls on.

use super::allocator::TableAllocator;
use super::maintenance::Maintenance;
use super::memory::TableMemory;
use crate::forward;

/// All that [`PageTables`](super::PageTables) stands on.
pub trait Environment: TableMemory + TableAllocator + Maintenance {}
impl<E: TableMemory + TableAllocator + Maintenance> Environment for E {}

/// An [`Environment`] of three parts.
#[derive(Clone, Copy, Debug)]
pub struct Parts<M, A, T> {
    /// Reaches the tables' memory.
    pub memory: M,
    /// Gives and takes back table pages.
    pub allocator: A,
    /// Issues barriers and TLBIs.
    pub maintenance: T,
}

// SAFETY: every call goes to the part whose implementer vouched for it.
unsafe impl<M: TableMemory, A, T> TableMemory for Parts<M, A, T> {
    forward!(self.memory: load find_mapped store exchange fill update);
}

// SAFETY: every call goes to the part whose implementer vouched for it.
unsafe impl<M, A: TableAllocator, T> TableAllocator for Parts<M, A, T> {
    forward!(self.allocator: reserve allocate free);
}

impl<M, A, T: Maintenance> Maintenance for Parts<M, A, T> {
    forward!(self.maintenance: capabilities dsb_ishst dsb_ish isb tlbi);
}
