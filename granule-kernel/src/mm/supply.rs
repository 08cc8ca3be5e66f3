//! Where pages for tables come from: one type for all there are, so that the walker is compiled once for
//! each page size and not once more for each of these. What hands the pages out is elsewhere.

use super::early_tables::EarlyTables;
use super::table_pages::TablePages;
#[cfg(feature = "test-image")]
use granule::arch::PhysicalAddress;
use granule::linear::{Arena, direct};
use granule::table::{FreedTable, TableAllocator, TableRun};

/// Where pages for tables come from.
pub(crate) enum Supply<'a> {
    /// There are none, and none are needed.
    Nothing,
    /// The boot's, for the linear map.
    Arena(&'a mut Arena),
    /// Early memory.
    Early(EarlyTables<'a>),
    /// The page allocator, and what is to be heard of its pages.
    Pages(TablePages<'a>),
    /// A range, each page given once and never again.
    #[cfg(feature = "test-image")]
    Range { next: PhysicalAddress, page: u64 },
}

// SAFETY: each implementer vouched for its own pages; a range is promised to `parts`.
unsafe impl TableAllocator for Supply<'_> {
    #[inline(never)]
    fn reserve(&mut self, tables: usize) -> bool {
        match self {
            Self::Nothing => tables == 0,
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
            Self::Nothing => None,
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
            Self::Nothing => {}
            #[cfg(feature = "test-image")]
            Self::Range { .. } => {}
            Self::Arena(arena) => arena.free(table),
            Self::Early(early) => early.free(table),
            Self::Pages(pages) => pages.free(table),
        }
    }
}

impl direct::HasArena for Supply<'_> {
    fn arena(&mut self) -> Option<&mut Arena> {
        match self {
            Self::Arena(arena) => Some(arena),
            _ => None,
        }
    }
}
