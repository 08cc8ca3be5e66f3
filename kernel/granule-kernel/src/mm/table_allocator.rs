//! The kernel's table allocator: one type for all sources of table pages, so that the walker is compiled once. The
//! sources themselves are elsewhere.

#![allow(unsafe_code, reason = "what the sources promise")]

use super::early_tables::EarlyTables;
use super::environment::TableSource;
use super::phys_to_virt::KernelPhysToVirt;
use super::table_pages::TablePages;
#[cfg(feature = "test-image")]
use granule::arch::PhysicalAddress;
use granule::linear::Arena;
use granule::table::{FreedTable, Reservation, TableRun};

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

// SAFETY: each source's implementer answers for its own pages, and a self-test for those of a range.
unsafe impl TableSource for KernelTableAllocator<'_> {
    #[inline(never)]
    fn reserve(&mut self, tables: usize) -> Reservation {
        let has = match self {
            Self::Empty => tables == 0,
            Self::Arena(arena) => return arena.reserve(tables),
            Self::Early(early) => early.has(tables),
            Self::Pages(pages) => pages.reserve(tables),
            #[cfg(feature = "test-image")]
            Self::Range { .. } => true,
        };
        has.into()
    }

    #[inline(never)]
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let first = match self {
            Self::Empty => None,
            Self::Arena(arena) => return arena.allocate_run(most),
            Self::Early(early) => early.allocate(),
            Self::Pages(pages) => return pages.allocate_run(most),
            #[cfg(feature = "test-image")]
            Self::Range { next, page } => {
                let first = *next;
                next.0 += *page;
                Some(first)
            }
        };
        first.map(|first| TableRun { first, count: 1 })
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

impl KernelTableAllocator<'_> {
    /// Gives back pages that were reserved and not used.
    pub(super) fn release_reserved(&mut self) {
        if let Self::Pages(pages) = self {
            pages.release_reserved();
        }
    }

    /// The boot's arena, if the tables come from it.
    pub(super) const fn arena(&mut self) -> Option<&mut Arena<KernelPhysToVirt>> {
        match self {
            Self::Arena(arena) => Some(arena),
            _ => None,
        }
    }
}
