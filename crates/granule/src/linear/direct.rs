//! The `direct` strategy: tables come from memory that the map already covers.
//!
//! A small static pool provides the first tables. All others come from one piece of RAM, the
//! [`Arena`], which is mapped first: the pool's tables map the start of the arena, the tables in
//! that part map the next, far larger part, and so on. Two or three rounds reach a GiB of tables.
//! The rest of RAM is then mapped in whole tables, each filled while it is still private. No valid
//! entry ever changes, so no TLBI is needed.
//!
//! Tables in the arena map a part of it that is 512 (4K), 2048 (16K) or 8192 (64K) times as large as they
//! are. Each round ends in one DSB ISHST and one ISB.

#![allow(unsafe_code, reason = "the arena alone owns its pages")]

use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::table::{
    FreeList, FreedTable, PageTables, PhysToVirt, Piece, Reservation, TableEnvironment, TableError,
    TablePages, TableRun,
};

/// Table memory for the boot: a static pool, then the mapped part of a piece of RAM.
///
/// Pages that were never allocated are not touched, because they may not be mapped yet. Freed pages
/// are kept in a [`FreeList`] and reused first.
#[derive(Debug)]
pub struct Arena<R> {
    page_size: PageSize,
    pool: FreeRun,
    ram: FreeRun,
    /// The end of the piece of RAM. `ram.end` is the end of its mapped part.
    ram_end: u64,
    /// The highest end of all memory so far.
    end: u64,
    freed: FreeList<R>,
}

/// Pages not yet allocated.
#[derive(Clone, Copy, Debug, Default)]
struct FreeRun {
    next: u64,
    end: u64,
}

impl FreeRun {
    const fn pages(self, page_size: PageSize) -> u64 {
        self.end.saturating_sub(self.next) >> page_size.shift()
    }
}

impl<R> Arena<R> {
    /// An arena that has only the pool from `start` to `end`. Both are physical addresses and are
    /// rounded inward to pages of `page_size`. It reaches freed pages through `memory`.
    ///
    /// # Safety
    ///
    /// The caller owns the pool exclusively, and `memory` reaches it.
    #[must_use]
    pub const unsafe fn new(
        memory: R,
        start: PhysicalAddress,
        end: PhysicalAddress,
        page_size: PageSize,
    ) -> Self {
        let mask = page_size.bytes() - 1;
        // Behind the last page of all there is none.
        let next = match start.0.checked_add(mask) {
            Some(next) => next & !mask,
            None => end.0,
        };
        Self {
            page_size,
            pool: FreeRun { next, end: end.0 },
            ram: FreeRun { next: 0, end: 0 },
            ram_end: 0,
            end: end.0,
            freed: FreeList::new(memory, page_size),
        }
    }

    /// The number of pages that can be allocated now.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.freed.available() + self.pool.pages(self.page_size) + self.ram.pages(self.page_size)
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size. None of it is mapped yet, and
    /// none of it is allocated before [`create`] maps it.
    ///
    /// # Safety
    ///
    /// The caller owns the RAM exclusively. If tables take pages from the arena already, it lies
    /// below the physical address size of their geometry.
    pub const unsafe fn extend(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        self.ram = FreeRun {
            next: start.0,
            end: start.0,
        };
        self.ram_end = end.0;
        if self.end < end.0 {
            self.end = end.0;
        }
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size. All of it is mapped. The
    /// rest of RAM that was added before is not allocated any more.
    ///
    /// # Safety
    ///
    /// As for [`extend`](Self::extend), and the arena's `memory` reaches the RAM now.
    pub const unsafe fn extend_mapped(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        // SAFETY: the caller keeps the conditions.
        unsafe { self.extend(start, end) };
        self.mapped_to(end.0);
    }

    /// The part of the pool that was never allocated: from its first byte to the end.
    #[must_use]
    pub const fn unused_pool(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            PhysicalAddress(self.pool.next),
            PhysicalAddress(self.pool.end),
        )
    }

    /// The unused part of the added RAM.
    const fn unused_ram(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            PhysicalAddress(self.ram.next),
            PhysicalAddress(self.ram_end),
        )
    }

    const fn mapped_to(&mut self, end: u64) {
        self.ram.end = if end < self.ram_end {
            end
        } else {
            self.ram_end
        };
    }
}

// Each page is allocated once, because the private extents only shrink, and freed pages are in the private
// `freed`.
impl<R: PhysToVirt> Arena<R> {
    /// See [`TableEnvironment::reach`].
    #[inline(always)]
    pub fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.freed.reach(table)
    }

    /// See [`TableEnvironment::pages`].
    pub const fn pages(&self) -> Option<TablePages> {
        Some(TablePages {
            page_size: self.page_size,
            end: PhysicalAddress(self.end),
        })
    }

    /// See [`TableEnvironment::reserve`].
    pub fn reserve(&self, tables: usize) -> Reservation {
        (self.available() >= tables as u64).into()
    }

    /// See [`TableEnvironment::allocate`].
    pub fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    /// See [`TableEnvironment::allocate_run`].
    pub fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        if self.freed.available() > 0 {
            return self.freed.allocate_run(most);
        }
        let page_size = self.page_size;
        let mut extents = [&mut self.pool, &mut self.ram].into_iter();
        let extent = extents.find(|extent| extent.pages(page_size) > 0)?;
        let count = extent.pages(page_size).min(most as u64);
        let first = PhysicalAddress(extent.next);
        extent.next += count << page_size.shift();
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    /// See [`TableEnvironment::allocate_aligned`].
    pub fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let page = self.page_size.bytes();
        let bytes = page * count as u64;
        let aligned = |extent: &FreeRun| {
            let first = extent.next.checked_next_multiple_of(bytes)?;
            (first.checked_add(bytes)? <= extent.end).then_some(first)
        };
        let take = |extent: &mut FreeRun| {
            let first = aligned(extent)?;
            let skipped = extent.next..first;
            extent.next = first + bytes;
            Some((skipped, first))
        };
        let Some((skipped, first)) = take(&mut self.pool).or_else(|| take(&mut self.ram)) else {
            return self.freed.allocate_aligned(count);
        };
        for table in skipped.step_by(page as usize) {
            // SAFETY: the page lay between `next` and `end` of `pool` or `ram`, which only `new`,
            // `extend` and this type set: it belongs to the arena, can be accessed, and was
            // never allocated. So no entry and no TTBR leads to it.
            self.free(unsafe { FreedTable::unreachable(PhysicalAddress(table)) });
        }
        Some(PhysicalAddress(first))
    }

    /// See [`TableEnvironment::free`].
    pub fn free(&mut self, table: FreedTable) {
        self.freed.free(table);
    }
}

/// Makes the linear map of `pieces`, which ascend, in the live `tables`.
///
/// If the map has more tables ([`tables`](super::LeafStats::tables)) than the arena has [pages](Arena::available),
/// the arena must have been extended by as many as are missing, all of them in one of the pieces.
///
/// Tables that come from the arena are written through the new map, so the caller vouches for its
/// place:
///
/// ```compile_fail,E0133
/// use granule::arch::Page4K;
/// use granule::linear::{Arena, create};
/// use granule::table::{Offset, PageTables, Piece, TableEnvironment, TableError};
///
/// fn anywhere<E: TableEnvironment>(
///     tables: &mut PageTables<Page4K, E>,
///     elsewhere: &[Piece],
///     arena: fn(&mut E) -> Option<&mut Arena<Offset>>,
/// ) -> Result<(), TableError> {
///     create(tables, elsewhere, arena)
/// }
/// ```
///
/// # Errors
///
/// Those of [`PageTables::map_pieces`]. Part of the map may exist then.
///
/// # Safety
///
/// `arena` returns the arena that all pages of the environment come from, always the same one, or always `None`,
/// and leaves the environment in place.
/// If the arena has RAM from [`Arena::extend`] and one of the `pieces` covers it, the arena's memory
/// and the environment of `tables` reach that RAM once the piece is mapped: this CPU walks the tables,
/// and the piece maps the RAM, readable and writable, to where both look for it.
pub unsafe fn create<P, E, R>(
    tables: &mut PageTables<P, E>,
    pieces: &[Piece],
    arena: impl Fn(&mut E) -> Option<&mut Arena<R>>,
) -> Result<(), TableError>
where
    P: PageChoice,
    E: TableEnvironment,
    R: PhysToVirt,
{
    let span = tables.geometry().span();
    let ram = arena(tables.own_environment()).map(|arena| arena.unused_ram());
    let home = ram
        .filter(|(first, end)| first < end)
        .and_then(|(first, end)| {
            let holds = |piece: &&Piece| piece.output <= first && end <= piece.output_end();
            Some((pieces.iter().find(holds)?, first, end))
        });
    let Some((home, first, end)) = home else {
        let mapped = tables.map_unpublished(pieces, (0, span));
        tables.publish();
        return mapped;
    };
    let (low, high) = map_arena(tables, pieces, arena, home, (first.0, end.0))?;
    let below = tables.map_unpublished(pieces, (0, low));
    let mapped = below.and_then(|()| tables.map_unpublished(pieces, (high, span)));
    tables.publish();
    mapped
}

/// Maps the part of the linear map that covers the arena, whose physical addresses are `first` to
/// `end`. Each round uses the tables that the round before made reachable. Returns the range of
/// offsets mapped.
fn map_arena<P, E, R>(
    tables: &mut PageTables<P, E>,
    pieces: &[Piece],
    arena: impl Fn(&mut E) -> Option<&mut Arena<R>>,
    home: &Piece,
    (first, end): (u64, u64),
) -> Result<(u64, u64), TableError>
where
    P: PageChoice,
    E: TableEnvironment,
    R: PhysToVirt,
{
    let outside = TableError::OutsideSpace {
        start: home.start,
        bytes: home.bytes,
        va_bits: tables.geometry().va_bits(),
    };
    let home_start = tables.geometry().offset(home.start).ok_or(outside)?;
    let distance = home_start.wrapping_sub(home.output.0);
    let (first, end) = (first.wrapping_add(distance), end.wrapping_add(distance));
    // The cuts lie on the span of a last-level table, so that no table is written in two rounds.
    // Blocks need so few tables that the pool maps the whole piece at once.
    let span = tables.size().entry_bytes(Level::L2);
    let blocks = home.leaves.top < Level::L3;
    let low = if blocks {
        home_start
    } else {
        first & !(span - 1)
    };
    let last = if blocks {
        home_start + home.bytes
    } else {
        end.next_multiple_of(span)
    };
    let mut high = low;
    while high < end {
        let next = if blocks {
            last
        } else if high == low {
            low + span
        } else {
            // A table for each span, one more for each table's worth of those, and one a level.
            let available = arena(tables.own_environment()).map_or(0, |arena| arena.available());
            let upper = available / tables.size().entries() as u64 + Level::ALL.len() as u64;
            let spans = available.saturating_sub(upper).max(1);
            spans
                .checked_mul(span)
                .and_then(|bytes| high.checked_add(bytes))
                .map_or(last, |next| next.min(last))
        };
        tables.map_unpublished(pieces, (high, next))?;
        // The next round and later callers write tables through this mapping.
        tables.publish();
        high = next;
        if let Some(arena) = arena(tables.own_environment()) {
            arena.mapped_to(high.wrapping_sub(distance));
        }
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::table::Offset;
    use std::collections::BTreeSet;
    use std::vec;

    const PAGE: u64 = 0x4000;

    /// The addresses of all pages of a run.
    fn pages(run: TableRun) -> impl Iterator<Item = u64> {
        (0..run.count as u64).map(move |page| run.first.0 + page * PAGE)
    }

    #[test]
    fn no_freed_page_is_lost_however_scattered_and_the_pool_is_not_touched() {
        let mut memory = vec![7u64; 32 * PAGE as usize / 8];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let end = start + 32 * PAGE;
        // SAFETY: the vector lives longer than the arena, and only the arena uses it.
        let mut arena = unsafe {
            let memory = Offset::new(0);
            Arena::new(
                memory,
                PhysicalAddress(start),
                PhysicalAddress(end),
                PageSize::K16,
            )
        };
        let all = arena.available();
        assert!(all >= 31);
        assert_eq!(arena.unused_pool().0.0, start.next_multiple_of(PAGE));
        let mut out = BTreeSet::new();
        for _ in 0..12 {
            out.extend(arena.allocate_run(2).into_iter().flat_map(pages));
        }
        assert_eq!((out.len(), arena.available()), (24, all - 24));
        // Every other page: twelve runs of one page each.
        let back: BTreeSet<u64> = out.iter().copied().step_by(2).collect();
        for &page in &back {
            // SAFETY: no page of this arena is ever a table.
            arena.free(unsafe { FreedTable::unreachable(PhysicalAddress(page)) });
        }
        assert_eq!(arena.available(), all - 12);
        assert!(
            arena.reserve(all as usize - 12) == Reservation::Granted
                && arena.reserve(all as usize - 11) == Reservation::Refused
        );
        let mut again = BTreeSet::new();
        for _ in 0..12 {
            again.extend(arena.allocate_run(1).into_iter().flat_map(pages));
        }
        assert_eq!(again, back, "freed pages come first");
        let rest = arena.available();
        assert_eq!(
            arena
                .allocate_run(usize::MAX)
                .map(pages)
                .map_or(0, Iterator::count) as u64,
            rest
        );
        assert_eq!(arena.available(), 0);
        // The words of pages that were never freed are as they were. (Miri compares slices in one step.)
        let changed = memory.chunks(64).filter(|words| *words != [7; 64]);
        let touched = changed.flatten().filter(|word| **word != 7).count();
        assert!(touched <= 2 * back.len(), "{touched}");
    }
}
