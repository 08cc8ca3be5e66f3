//! Where table pages come from: the second of the three traits the walker stands on.

use super::FreedTable;
use crate::arch::PhysicalAddress;

/// A run of table pages that follow each other in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRun {
    /// The first page.
    pub first: PhysicalAddress,
    /// How many there are, at least 1.
    pub count: usize,
}

/// Gives and takes back pages for tables.
///
/// An operation first counts the tables it needs, then [`reserve`](Self::reserve)s them all, and
/// only then changes anything: running out is one error, before the first store.
///
/// # Safety
///
/// A page given out must be of the page size of the tables, aligned to it, reachable by the
/// [`TableMemory`](super::TableMemory) that goes with it, below the physical address size of the
/// geometry, and used by nobody else until it is freed. Its contents may be anything.
pub unsafe trait TableAllocator {
    /// Makes sure that the next `tables` pages can be allocated; false if they cannot, and then
    /// nothing has changed.
    #[must_use]
    fn reserve(&mut self, tables: usize) -> bool;

    /// Gives at least one and at most `most` pages in one run, or `None` when nothing is left,
    /// which after a successful [`reserve`](Self::reserve) does not happen. Longer runs make
    /// faster maps: the entries that point to them are written in one loop.
    fn allocate(&mut self, most: usize) -> Option<TableRun>;

    /// Takes back one page, which no walker can reach any more.
    fn free(&mut self, table: FreedTable);
}
