//! The trait that allocates table pages: the second of the three traits of
//! [`PageTables`](super::PageTables).

#![allow(unsafe_code, reason = "the promise of an allocator of tables")]

use super::FreedTable;
use crate::arch::{PageSize, PhysicalAddress};

/// A run of table pages that follow each other in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRun {
    /// The first page.
    pub first: PhysicalAddress,
    /// The number of pages, at least 1.
    pub count: usize,
}

/// The common properties of all pages that an allocator gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePages {
    /// Their size.
    pub page_size: PageSize,
    /// The end of the last of them. No page ends behind it.
    pub end: PhysicalAddress,
}

/// Allocates and frees pages for tables.
///
/// An operation first counts the tables it needs, then [`reserve`](Self::reserve)s them all, and
/// only then changes entries. A shortage is therefore one error, before the first store.
///
/// # Safety
///
/// An allocated page must have the page size of the tables and be aligned to it. The accompanying
/// [`TableMemory`](super::TableMemory) must reach it, it must lie below the physical address size
/// of the geometry, and no other code may use it until it is freed. Its contents may be anything.
/// [`allocate`](Self::allocate) gives no more pages than asked for, and
/// [`allocate_aligned`](Self::allocate_aligned) as many, aligned to all of them.
pub unsafe trait TableAllocator {
    /// The common properties of its pages. Tables of another page size, or whose descriptors cannot
    /// hold the addresses, are refused when they begin. An allocator that serves any page size
    /// keeps this default.
    fn pages(&self) -> Option<TablePages> {
        None
    }

    /// Ensures that the next `tables` pages can be allocated. Returns false, and changes nothing,
    /// if they cannot.
    #[must_use]
    fn reserve(&mut self, tables: usize) -> bool;

    /// Allocates at least one and at most `most` pages in one run. Returns `None` when no page is
    /// left, which must not happen after a successful [`reserve`](Self::reserve). Longer runs are
    /// faster to map, because one loop writes the entries that point to them.
    fn allocate(&mut self, most: usize) -> Option<TableRun>;

    /// Allocates `count` pages that follow each other, and returns the first, which is aligned to
    /// the bytes of all together. `count` is a power of two up to 16. Only the concatenated root
    /// tables of stage 2 need that, and no [`reserve`](Self::reserve) comes before. Each page is
    /// freed by itself.
    ///
    /// An allocator without such runs keeps this default, which has none of more than one page.
    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        if count == 1 && self.reserve(1) {
            self.allocate(1).map(|run| run.first)
        } else {
            None
        }
    }

    /// Frees one page that no walker can reach any more.
    fn free(&mut self, table: FreedTable);
}
