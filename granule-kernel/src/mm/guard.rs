//! Guard pages that are moved from anywhere: pools of pages in memory that was split beforehand.
//!
//! Making a page of a pool invalid is one store and one TLBI, making it valid one store, without a
//! lock and without memory, so it may be done in an interrupt, or with any lock held. For that
//! the pages stay pages: nothing merges them, and no other call changes them, as long as the pool
//! lives.

use super::error::LinearError;
use super::live::{self, Flush};
use super::permissions::check_free;
use super::{merge, pages};
use core::fmt;
use core::ops::Range;
use granule::arch::VirtualAddress;
use granule::arch::page_size::Level;
use granule::table::{Counts, TableError};
use granule_kcore::frames::Frame;

/// Why there is no pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolError {
    /// There is no free block of so many pages.
    NoMemory { pages: u64 },
    /// There are as many pools as there can be.
    TooMany,
    /// The memory cannot be split.
    Linear(LinearError),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory { pages } => write!(f, "no free block of {pages} pages is there"),
            Self::TooMany => write!(
                f,
                "there are {} pools of guard pages already; release one",
                live::MOST_POOLS
            ),
            Self::Linear(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for PoolError {}

/// Pages, all valid at first, each of which can be made invalid and valid again.
#[derive(Debug)]
pub(crate) struct Pool {
    range: Range<u64>,
    first: Frame,
    order: u32,
    page: u64,
}

impl Pool {
    /// A pool of `2^order` pages, split from whatever leaf they are in. Takes the lock once.
    ///
    /// # Errors
    ///
    /// When there is no memory for pages or tables, no room for one more pool, or the CPUs do not
    /// allow the split. Nothing has changed then.
    pub(crate) fn new(order: u32) -> Result<Self, PoolError> {
        let pages = 1u64 << order;
        let first = pages::allocate(order).ok_or(PoolError::NoMemory { pages })?;
        let made = live::change(Flush::Now, |kernel, live, tree| {
            let page = kernel.page();
            let start = kernel
                .placement
                .virtual_address(first.address(kernel.geometry.page_size()));
            let start = start.ok_or(PoolError::Linear(LinearError::TooEarly))?;
            let bytes = pages * page;
            check_free(kernel, live, start, bytes).map_err(PoolError::Linear)?;
            if live.pools.is_full() {
                return Err(PoolError::TooMany);
            }
            // All or nothing: so many tables suffice for both ends and all between.
            let size = kernel.geometry.page_size();
            let start_level = kernel.geometry.start_level();
            let levels = Level::ALL.into_iter().filter(|level| *level >= start_level);
            let above = levels.filter(|level| !level.is_last());
            let spans = above.map(|level| (bytes / size.entry_bytes(level)) as usize + 1);
            let needed = spans.sum();
            if !tree.reserve(needed) {
                let error = LinearError::Table(TableError::OutOfTables { needed });
                return Err(PoolError::Linear(error));
            }
            // A page that becomes invalid is split from what lies on either side; so when each has
            // been, none is in a leaf with another. Nobody uses them yet.
            let mut done = 0;
            let mut split = || {
                while done < pages {
                    tree.hide(VirtualAddress(start.0 + done * page), page)?;
                    done += 1;
                }
                Ok::<(), TableError>(())
            };
            let split = split();
            tree.show(start, done * page)
                .and(split)
                .map_err(|error| PoolError::Linear(LinearError::Table(error)))?;
            tree.relied(start, bytes);
            let range = start.0..start.0 + bytes;
            live.pools
                .try_push(range.clone())
                .map_err(|_| PoolError::TooMany)?;
            Ok(Self {
                range,
                first,
                order,
                page,
            })
        })
        .unwrap_or(Err(PoolError::Linear(LinearError::TooEarly)));
        if made.is_err() {
            let _ = pages::free(first, order);
        }
        made
    }

    /// The address of page `index`.
    pub(crate) fn address(&self, index: u64) -> Option<VirtualAddress> {
        let address = index
            .checked_mul(self.page)?
            .checked_add(self.range.start)?;
        (address < self.range.end).then_some(VirtualAddress(address))
    }

    /// Makes page `index` valid or not, and gives what it took: one store and, when it becomes
    /// invalid, one TLBI before this returns, after which every access by any CPU faults; nothing
    /// if it was so already. From anywhere; two calls for the same page at once are the caller's
    /// affair.
    ///
    /// # Errors
    ///
    /// When there is no such page.
    pub(crate) fn flip(&self, index: u64, valid: bool) -> Result<Counts, LinearError> {
        let outside = LinearError::Outside {
            start: self.range.start.wrapping_add(index.wrapping_mul(self.page)),
            bytes: self.page,
        };
        let address = self.address(index).ok_or(outside)?;
        let kernel = live::kernel().ok_or(LinearError::TooEarly)?;
        // SAFETY: the pages were split in `new`; while the pool lives nothing merges them and
        // nothing else changes them.
        Ok(unsafe { live::set_valid(kernel, address, self.page, valid)? })
    }

    /// Gives the pages back to the page allocator, valid, and lets their leaves be merged again.
    pub(crate) fn release(self) {
        let bytes = self.range.end - self.range.start;
        let start = VirtualAddress(self.range.start);
        live::change(Flush::Now, |kernel, live, tree| {
            // Pages: nothing is split.
            let shown = tree.show(start, bytes);
            debug_assert!(shown.is_ok(), "the pages of a pool: {shown:?}");
            live.pools.retain(|pool| *pool != self.range);
            merge::note(kernel, live, start, bytes);
        });
        let _ = pages::free(self.first, self.order);
        merge::wake();
    }
}
