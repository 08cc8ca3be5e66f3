//! The `direct` strategy: tables come from memory that the map already covers.
//!
//! A small static pool provides the first tables. All others come from one piece of RAM, the
//! [`Arena`], which is mapped first: the pool's tables map the start of the arena, the tables in
//! that part map the next, far larger part, and so on. Two or three rounds reach a GiB of tables.
//! The rest of RAM is then mapped in whole tables, each filled while it is still private. No valid
//! entry ever changes, so no TLBI is needed.

use super::LeafStats;
use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, Page, PageSize};
use crate::table::{
    Environment, FreedTable, PageTables, Piece, TableAllocator, TableError, TableMemory, TableRun,
    TlbOps,
};

/// The number of runs of freed pages that an arena can keep for reuse.
const MOST_RETURNED: usize = 8;

/// Table memory for the boot: a static pool, then the mapped part of a piece of RAM.
///
/// # Freed pages
///
/// Making a map frees no page, because all tables are counted before the first is taken. Unmapping
/// through an arena does. The arena cannot write to its memory, so it keeps a list of at most eight
/// runs of freed pages. Adjacent pages form one run, so pages allocated together and freed together
/// take one place in the list. A page that finds no place is not reused and is counted in
/// [`stranded`](Self::stranded): no page is allocated twice, and no loss goes unnoticed. Frequent
/// unmapping needs an allocator that keeps its list in the free pages themselves.
#[derive(Debug)]
pub struct Arena {
    page_shift: u32,
    pool: FreeRun,
    ram: FreeRun,
    /// The end of the piece of RAM. `ram.end` is the end of its mapped part.
    ram_end: u64,
    returned: [FreeRun; MOST_RETURNED],
    stranded: u64,
}

/// Pages not yet allocated.
#[derive(Clone, Copy, Debug, Default)]
struct FreeRun {
    next: u64,
    end: u64,
}

impl FreeRun {
    const fn pages(self, page_shift: u32) -> u64 {
        self.end.saturating_sub(self.next) >> page_shift
    }
}

impl Arena {
    /// An arena that has only the pool from `start` to `end`. Both are physical addresses and are
    /// rounded inward to pages of `page_size`.
    ///
    /// # Safety
    ///
    /// The caller owns the pool exclusively, and the environment of the tables can access it. The
    /// same holds for the RAM that [`extend`](Self::extend) adds, once it is mapped.
    #[must_use]
    pub const unsafe fn new(
        start: PhysicalAddress,
        end: PhysicalAddress,
        page_size: PageSize,
    ) -> Self {
        let mask = page_size.bytes() - 1;
        let next = start.0.wrapping_add(mask) & !mask;
        Self {
            page_shift: page_size.shift(),
            pool: FreeRun { next, end: end.0 },
            ram: FreeRun { next: 0, end: 0 },
            ram_end: 0,
            returned: [FreeRun { next: 0, end: 0 }; MOST_RETURNED],
            stranded: 0,
        }
    }

    /// The number of pages that can be allocated now.
    #[must_use]
    pub fn available(&self) -> u64 {
        let extents = [self.pool, self.ram].into_iter().chain(self.returned);
        extents.map(|extent| extent.pages(self.page_shift)).sum()
    }

    /// The number of freed pages that were lost because the list of runs was full.
    #[must_use]
    pub const fn stranded(&self) -> u64 {
        self.stranded
    }

    /// The freed pages that were not reused, as runs: the first address and the first address
    /// beyond. They are neither in [`unused_pool`](Self::unused_pool) nor in
    /// [`unused_ram`](Self::unused_ram), so a caller that hands on the arena's memory must ask for
    /// them too.
    pub fn returned(&self) -> impl Iterator<Item = (PhysicalAddress, PhysicalAddress)> {
        let runs = self.returned.iter().filter(|run| run.next < run.end);
        runs.map(|run| (PhysicalAddress(run.next), PhysicalAddress(run.end)))
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size. None of it is mapped yet.
    pub const fn extend(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        self.ram = FreeRun {
            next: start.0,
            end: start.0,
        };
        self.ram_end = end.0;
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size. All of it is mapped. The
    /// rest of RAM that was added before is not allocated any more.
    pub const fn extend_mapped(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        self.extend(start, end);
        self.mapped_to(end.0);
    }

    /// The unused part of the pool: from the first free byte to its end.
    #[must_use]
    pub const fn unused_pool(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            PhysicalAddress(self.pool.next),
            PhysicalAddress(self.pool.end),
        )
    }

    /// The unused part of the added RAM.
    #[must_use]
    pub const fn unused_ram(&self) -> (PhysicalAddress, PhysicalAddress) {
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

// SAFETY: the caller of `new` vouched for the memory. Each page is allocated once, because the
// extents only shrink and freed pages are kept apart.
unsafe impl TableAllocator for Arena {
    fn reserve(&mut self, tables: usize) -> bool {
        self.available() >= tables as u64
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let page_shift = self.page_shift;
        let returned = self.returned.iter_mut();
        let mut extents = returned.chain([&mut self.pool, &mut self.ram]);
        let extent = extents.find(|extent| extent.pages(page_shift) > 0)?;
        let count = extent.pages(page_shift).min(most as u64);
        let first = PhysicalAddress(extent.next);
        extent.next += count << page_shift;
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    fn free(&mut self, table: FreedTable) {
        let start = table.address().0;
        let end = start + (1 << self.page_shift);
        for run in &mut self.returned {
            if run.next < run.end && run.end == start {
                run.end = end;
                return;
            }
            if run.next < run.end && run.next == end {
                run.next = start;
                return;
            }
        }
        match self.returned.iter_mut().find(|run| run.next >= run.end) {
            Some(empty) => *empty = FreeRun { next: start, end },
            None => self.stranded += 1,
        }
    }
}

/// An allocator that may be, or wrap, an [`Arena`].
pub trait HasArena {
    /// The arena, if tables come from one.
    fn arena(&mut self) -> Option<&mut Arena>;
}

impl HasArena for Arena {
    fn arena(&mut self) -> Option<&mut Arena> {
        Some(self)
    }
}

impl<A: HasArena> HasArena for crate::table::Counted<'_, A> {
    fn arena(&mut self) -> Option<&mut Arena> {
        self.inner().arena()
    }
}

impl<M, A: HasArena, T> HasArena for Environment<M, A, T> {
    fn arena(&mut self) -> Option<&mut Arena> {
        self.allocator.arena()
    }
}

/// The number of pages of RAM that the arena needs besides the rest of its pool, for a map with
/// this leaf_stats; 0 when the pool suffices.
#[must_use]
pub fn arena_pages(stats: &LeafStats, arena: &Arena) -> u64 {
    stats.tables().saturating_sub(arena.available())
}

/// Makes the linear map of `pieces`, which ascend, in the live `tables`.
///
/// If [`arena_pages`] is not 0, the arena must have been extended by that many pages, all of
/// them in one of the pieces.
///
/// # Errors
///
/// Those of [`PageTables::map_pieces`]. Part of the map may exist then.
pub fn create<P, M, A, T>(
    tables: &mut PageTables<P, Environment<M, A, T>>,
    pieces: &[Piece],
) -> Result<(), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: TlbOps,
{
    let span = tables.geometry().span();
    let ram = tables
        .own_environment()
        .arena()
        .map(|arena| arena.unused_ram());
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
    let (low, high) = map_arena(tables, pieces, home, first.0, end.0)?;
    let below = tables.map_unpublished(pieces, (0, low));
    let mapped = below.and_then(|()| tables.map_unpublished(pieces, (high, span)));
    tables.publish();
    mapped
}

/// Maps the part of the linear map that covers the arena, whose physical addresses are `first` to
/// `end`. Each round uses the tables that the round before made reachable. Returns the range of
/// offsets mapped.
fn map_arena<P, M, A, T>(
    tables: &mut PageTables<P, Environment<M, A, T>>,
    pieces: &[Piece],
    home: &Piece,
    first: u64,
    end: u64,
) -> Result<(u64, u64), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: TlbOps,
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
    let span = P::SIZE.entry_bytes(Level::L2);
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
            let arena = tables.own_environment().arena();
            let available = arena.map_or(0, |arena| arena.available());
            let upper = available / P::SIZE.entries() as u64 + Level::ALL.len() as u64;
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
        if let Some(arena) = tables.own_environment().arena() {
            arena.mapped_to(high.wrapping_sub(distance));
        }
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    const PAGE: u64 = 0x4000;
    const POOL: u64 = 0x10_0000;

    /// An arena with `pages` pages in its pool, all allocated, in order.
    fn given_out(pages: u64) -> (Arena, Vec<PhysicalAddress>) {
        let (start, end) = (PhysicalAddress(POOL), PhysicalAddress(POOL + pages * PAGE));
        // SAFETY: no code accesses the memory.
        let mut arena = unsafe { Arena::new(start, end, PageSize::K16) };
        let mut out = Vec::new();
        while let Some(run) = arena.allocate(3) {
            for page in 0..run.count as u64 {
                out.push(PhysicalAddress(run.first.0 + page * PAGE));
            }
        }
        assert_eq!((out.len() as u64, arena.available()), (pages, 0));
        (arena, out)
    }

    /// Allocates every page, and checks that none comes twice.
    fn drain(arena: &mut Arena) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        while let Some(run) = arena.allocate(usize::MAX) {
            for page in 0..run.count as u64 {
                assert!(seen.insert(run.first.0 + page * PAGE), "given out twice");
            }
        }
        seen
    }

    fn give_back(arena: &mut Arena, page: PhysicalAddress) {
        // SAFETY: no page of this arena is ever a table.
        arena.free(unsafe { FreedTable::unreachable(page) });
    }

    #[test]
    fn a_run_that_comes_back_whole_is_given_out_whole_again() {
        for backward in [false, true] {
            let (mut arena, mut out) = given_out(100);
            if backward {
                out.reverse();
            }
            for page in &out {
                give_back(&mut arena, *page);
            }
            assert_eq!((arena.available(), arena.stranded()), (100, 0));
            let all = (PhysicalAddress(POOL), PhysicalAddress(POOL + 100 * PAGE));
            assert_eq!(arena.returned().collect::<Vec<_>>(), [all]);
            assert!(arena.reserve(100) && !arena.reserve(101));
            assert_eq!(drain(&mut arena).len(), 100);
            assert_eq!(arena.returned().count(), 0);
        }
    }

    #[test]
    fn a_page_that_cannot_be_remembered_is_counted() {
        let (mut arena, out) = given_out(24);
        // Every other page: twelve runs of one page each.
        for page in out.iter().step_by(2) {
            give_back(&mut arena, *page);
        }
        assert_eq!((arena.available(), arena.stranded()), (8, 4));
        assert_eq!(arena.returned().count(), MOST_RETURNED);
        // The pages between join the kept runs, so that no more pages are stranded than must be.
        for page in out.iter().skip(1).step_by(2) {
            give_back(&mut arena, *page);
        }
        assert_eq!(arena.available() + arena.stranded(), 24);
        let first = u64::try_from(drain(&mut arena).len()).unwrap();
        assert_eq!(first + arena.stranded(), 24);
        // The list has room again: no further page is stranded.
        let before = arena.stranded();
        give_back(&mut arena, out[0]);
        assert_eq!((arena.available(), arena.stranded()), (1, before));
    }
}
