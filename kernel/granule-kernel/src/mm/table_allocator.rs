//! The kernel's table allocator: one type for all sources of table pages, so that the walker is compiled once
//! for each page size. The sources themselves are elsewhere.

#![allow(unsafe_code, reason = "hands on the promise of each source of tables")]

use super::early_tables::EarlyTables;
use super::phys_to_virt::KernelPhysToVirt;
use super::table_pages::TablePages;
#[cfg(feature = "test-image")]
use granule::arch::PhysicalAddress;
use granule::linear::{self, Arena};
use granule::table::{FreedTable, TableAllocator, TableRun};

/// A source of table pages.
pub(crate) enum KernelTableAllocator<'a> {
    /// No pages, for operations that need none.
    Empty,
    /// The boot's arena, for the linear map.
    Arena(&'a mut Arena<KernelPhysToVirt>),
    /// Early memory.
    Early(EarlyTables<'a>),
    /// The page allocator, with its watch on pages.
    Pages(TablePages<'a>),
    /// A range. Each page is given out once and never reused.
    #[cfg(feature = "test-image")]
    Range { next: PhysicalAddress, page: u64 },
}

// SAFETY: each source's implementer answers for its own pages; the caller of `environment` promises the pages of a
// range.
unsafe impl TableAllocator for KernelTableAllocator<'_> {
    #[inline(never)]
    fn reserve(&mut self, tables: usize) -> bool {
        match self {
            Self::Empty => tables == 0,
            Self::Arena(arena) => arena.reserve(tables),
            Self::Early(early) => early.reserve(tables),
            Self::Pages(pages) => pages.reserve(tables),
            #[cfg(feature = "test-image")]
            Self::Range { .. } => true,
        }
    }

    #[inline(never)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        match self {
            Self::Empty => None,
            Self::Arena(arena) => arena.allocate(most),
            Self::Early(early) => early.allocate(most),
            Self::Pages(pages) => pages.allocate(most),
            #[cfg(feature = "test-image")]
            Self::Range { next, page } => {
                let first = *next;
                next.0 += *page;
                (most > 0).then_some(TableRun { first, count: 1 })
            }
        }
    }

    #[inline(never)]
    fn free(&mut self, table: FreedTable) {
        match self {
            Self::Empty => {}
            #[cfg(feature = "test-image")]
            Self::Range { .. } => {}
            Self::Arena(arena) => arena.free(table),
            Self::Early(early) => early.free(table),
            Self::Pages(pages) => pages.free(table),
        }
    }
}

// SAFETY: one with an arena takes all pages from it, and stays what it is.
unsafe impl linear::HasArena for KernelTableAllocator<'_> {
    type Memory = KernelPhysToVirt;
    fn arena(&mut self) -> Option<&mut Arena<KernelPhysToVirt>> {
        match self {
            Self::Arena(arena) => Some(arena),
            _ => None,
        }
    }
}
