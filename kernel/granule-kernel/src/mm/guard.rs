//! Pools of guard pages, which any context may make invalid and valid again.
//!
//! The memory of a pool is split to pages when the pool is made. Making a page invalid is then one
//! store and one TLBI, and making it valid is one store. Neither takes a lock or allocates memory,
//! so both are allowed in an interrupt and with any lock held. While the pool lives, nothing merges
//! its pages and no other call changes them.

#![allow(unsafe_code, reason = "pages whose entries only the pool changes")]

use super::error::LinearError;
use super::kernel_tables::{self, Flush, MOST_POOLS};
use super::pageattr::check_free;
use super::{merge, pages, walker};
use core::ops::Range;
use granule::arch::{Level, PhysicalAddress, VirtualAddress};
use granule::table::TableError;
use granule_kcore::frames::Frame;
use granule_trace::recorder::Counts;
use thiserror::Error;

/// Why a pool could not be made.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum PoolError {
    #[error("no free block of {pages} pages is there")]
    NoMemory { pages: u64 },
    #[error("there are {MOST_POOLS} pools of guard pages already; release one")]
    TooMany,
    /// The memory could not be split to pages.
    #[error("{0}")]
    Linear(#[from] LinearError),
}

impl From<TableError> for PoolError {
    fn from(error: TableError) -> Self {
        Self::Linear(LinearError::Table(error))
    }
}

/// A block of pages, all valid at first. Each page can be made invalid and valid again.
#[derive(Debug)]
pub(crate) struct Pool {
    range: Range<u64>,
    first: Frame,
    order: u32,
    page: u64,
}

impl Pool {
    /// Allocates a pool of `2^order` pages and splits the leaves that contain them. Takes the
    /// tables' lock once. Fails when there is no memory for pages or tables, when the largest number of pools
    /// exists, or when the CPUs do not allow the split. Nothing has changed then.
    pub(crate) fn new(order: u32) -> Result<Self, PoolError> {
        let pages = 1u64 << order;
        let first = pages::allocate(order).ok_or(PoolError::NoMemory { pages })?;
        let made = kernel_tables::change(Flush::Now, |kernel, state, tree| {
            let page = kernel.page();
            let start = kernel
                .placement
                .virtual_address(first.address(kernel.geometry.page_size()));
            let start = start.ok_or(LinearError::TooEarly)?;
            let bytes = pages * page;
            check_free(kernel, state, start, bytes)?;
            if state.pools.is_full() {
                return Err(PoolError::TooMany);
            }
            // Reserve every table before the first change, so that the split cannot fail halfway.
            // This number suffices for both ends and everything between.
            let size = kernel.geometry.page_size();
            let start_level = kernel.geometry.start_level();
            let levels = Level::ALL.into_iter().filter(|level| *level >= start_level);
            let above = levels.filter(|level| *level != Level::L3);
            let spans = above.map(|level| (bytes / size.entry_bytes(level)) as usize + 1);
            let needed = spans.sum();
            if !walker::reserve(tree, needed) {
                return Err(TableError::OutOfTables { needed }.into());
            }
            // Making a page invalid splits it from the pages on both sides. When each page has been
            // invalid once, no page shares a leaf with another. The pages are not in use yet.
            let mut done = 0;
            let mut split = || {
                while done < pages {
                    tree.set_invalid(VirtualAddress(start.0 + done * page), page)?;
                    done += 1;
                }
                Ok::<(), TableError>(())
            };
            let split = split();
            tree.set_valid(start, done * page).and(split)?;
            walker::assume_visible(tree, start, bytes);
            let range = start.0..start.0 + bytes;
            state
                .pools
                .try_push(range.clone())
                .map_err(|_| PoolError::TooMany)?;
            Ok(Self {
                range,
                first,
                order,
                page,
            })
        })
        .unwrap_or(Err(LinearError::TooEarly.into()));
        if made.is_err() {
            let _ = pages::free(first, order);
        }
        made
    }

    /// Makes a pool of `pages` pages of early memory from `start` on, which the map has in pages and nothing else
    /// uses. Such a pool is never released. Fails when the largest number of pools exists.
    pub(crate) fn of_boot(start: PhysicalAddress, pages: u64) -> Result<Self, PoolError> {
        let made = kernel_tables::change(Flush::Now, |kernel, state, _| {
            let page = kernel.page();
            let first = kernel.placement.virtual_address(start);
            let first = first.ok_or(LinearError::TooEarly)?.0;
            let range = first..first + pages * page;
            let pool = Self {
                range: range.clone(),
                first: Frame::containing(start, kernel.geometry.page_size()),
                order: pages.ilog2(),
                page,
            };
            let room = state.pools.try_push(range);
            room.map_err(|_| PoolError::TooMany)?;
            Ok(pool)
        });
        made.unwrap_or(Err(LinearError::TooEarly.into()))
    }

    /// The number of the page at `address`, if it is in the pool.
    pub(crate) fn index_of(&self, address: u64) -> Option<u64> {
        let inside = self.range.contains(&address);
        inside.then(|| (address - self.range.start) / self.page)
    }

    /// Bytes of a page.
    pub(crate) const fn page(&self) -> u64 {
        self.page
    }

    pub(crate) fn address(&self, index: u64) -> Option<VirtualAddress> {
        let address = index
            .checked_mul(self.page)?
            .checked_add(self.range.start)?;
        (address < self.range.end).then_some(VirtualAddress(address))
    }

    /// Makes page `index` valid or invalid, and returns the operations that this took. Making it
    /// invalid takes one store and one TLBI, after which every access by any CPU faults. Making it
    /// valid takes one store. A page that is in the requested state already takes nothing. Callable
    /// from any context. The caller must not run two calls for the same page at once. Fails when the pool has no
    /// such page.
    pub(crate) fn set_valid(&self, index: u64, valid: bool) -> Result<Counts, LinearError> {
        let outside = LinearError::Outside {
            start: self.range.start.wrapping_add(index.wrapping_mul(self.page)),
            bytes: self.page,
        };
        let address = self.address(index).ok_or(outside)?;
        let kernel = kernel_tables::kernel().ok_or(LinearError::TooEarly)?;
        // SAFETY: `new` split the pages, or the map has those of `of_boot` in pages; while the pool lives nothing
        // merges them and nothing else changes them.
        Ok(unsafe { kernel_tables::set_valid(kernel, address, self.page, valid)? })
    }

    /// Makes the pages valid, frees them to the page allocator, and allows their leaves to be
    /// merged again.
    #[cfg_attr(
        not(feature = "test-image"),
        allow(dead_code, reason = "self-tests release theirs")
    )]
    pub(crate) fn release(self) {
        let bytes = self.range.end - self.range.start;
        let start = VirtualAddress(self.range.start);
        kernel_tables::change(Flush::Now, |kernel, state, tree| {
            // The range is in pages already, so nothing is split.
            let shown = tree.set_valid(start, bytes);
            debug_assert!(shown.is_ok(), "the pages of a pool: {shown:?}");
            state.pools.retain(|pool| *pool != self.range);
            merge::note(kernel, state, start, bytes);
        });
        let _ = pages::free(self.first, self.order);
        merge::wake();
    }
}
