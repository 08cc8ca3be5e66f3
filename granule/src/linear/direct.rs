//! The `direct` strategy: tables from memory that the map already covers.
//!
//! A small static pool starts it off. Tables come from one piece of RAM, the [`Arena`], which is
//! mapped first: the pool's tables map its beginning, the tables in there the next, far larger
//! part, and so on; two or three rounds reach a GiB of tables. Then everything else is mapped in
//! whole tables, each filled once while it is private. No TLBI at all: no entry changes that was
//! valid before.

use super::Census;
use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, Page, PageSize};
use crate::table::{
    FreedTable, Maintenance, PageTables, Parts, Piece, TableAllocator, TableError, TableMemory,
    TableRun,
};

/// Runs of pages that came back and are kept to be given out again.
const MOST_RETURNED: usize = 8;

/// Table memory for the boot: a static pool, then a piece of RAM as far as it is mapped.
///
/// # Pages that come back
///
/// Making a map returns none: all tables are counted before the first is taken. Who unmaps through
/// an arena returns some, and the arena, which cannot write to the memory it gives out, has room to
/// remember eight runs of them. Pages that follow each other are one run, so what was given out
/// together and comes back together is one. A page for which there is no room is not given out
/// again and is counted in [`stranded`](Self::stranded): nothing is given out twice and nothing goes
/// unnoticed. Who unmaps at will should use an allocator that keeps its list in the pages themselves.
#[derive(Debug)]
pub struct Arena {
    page_shift: u32,
    pool: Extent,
    ram: Extent,
    /// The end of the piece of RAM; its extent ends where the map ends.
    ram_end: u64,
    returned: [Extent; MOST_RETURNED],
    stranded: u64,
}

/// Pages not yet given out.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    next: u64,
    end: u64,
}

impl Extent {
    const fn pages(self, page_shift: u32) -> u64 {
        self.end.saturating_sub(self.next) >> page_shift
    }
}

impl Arena {
    /// An arena that has only the pool from `start` to `end`, physical addresses, which are
    /// rounded inward to pages of `page_size`.
    ///
    /// # Safety
    ///
    /// The pool must be memory that nobody else uses and that the environment of the tables
    /// reaches; so must be the RAM that [`extend`](Self::extend) adds, once it is mapped.
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
            pool: Extent { next, end: end.0 },
            ram: Extent { next: 0, end: 0 },
            ram_end: 0,
            returned: [Extent { next: 0, end: 0 }; MOST_RETURNED],
            stranded: 0,
        }
    }

    /// Pages that can be given out now.
    #[must_use]
    pub fn available(&self) -> u64 {
        let extents = [self.pool, self.ram].into_iter().chain(self.returned);
        extents.map(|extent| extent.pages(self.page_shift)).sum()
    }

    /// Pages that came back and are not given out again, for want of room to remember them.
    #[must_use]
    pub const fn stranded(&self) -> u64 {
        self.stranded
    }

    /// The pages that came back and were not given out again, in runs: first address and the one
    /// behind the last. They are neither in [`unused_pool`](Self::unused_pool) nor in
    /// [`unused_ram`](Self::unused_ram), so who hands an arena's memory on asks for them too.
    pub fn returned(&self) -> impl Iterator<Item = (PhysicalAddress, PhysicalAddress)> {
        let runs = self.returned.iter().filter(|run| run.next < run.end);
        runs.map(|run| (PhysicalAddress(run.next), PhysicalAddress(run.end)))
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size, none of which is mapped
    /// yet.
    pub const fn extend(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        self.ram = Extent {
            next: start.0,
            end: start.0,
        };
        self.ram_end = end.0;
    }

    /// Adds RAM from `start` to `end`, both multiples of the page size, all of which is mapped. What
    /// is left of RAM that was added before is not given out any more.
    pub const fn extend_mapped(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        self.extend(start, end);
        self.mapped_to(end.0);
    }

    /// The part of the pool that was not used: from the first free byte to its end.
    #[must_use]
    pub const fn unused_pool(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            PhysicalAddress(self.pool.next),
            PhysicalAddress(self.pool.end),
        )
    }

    /// The part of the added RAM that was not used.
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

// SAFETY: the caller of `new` vouched for the memory; each page is given out once, because the
// extents only shrink and returned pages are kept apart.
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
            Some(empty) => *empty = Extent { next: start, end },
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

impl<M, A: HasArena, T> HasArena for Parts<M, A, T> {
    fn arena(&mut self) -> Option<&mut Arena> {
        self.allocator.arena()
    }
}

/// The pages of RAM that the arena needs besides what its pool has left, for a map with this
/// census; 0 when the pool suffices.
#[must_use]
pub fn arena_pages(census: &Census, arena: &Arena) -> u64 {
    census.tables().saturating_sub(arena.available())
}

/// Makes the linear map of `pieces`, which ascend, in `tables`, which are live.
///
/// If [`arena_pages`] is not 0, the arena must have been extended by that many pages, all of
/// them in one of the pieces.
///
/// # Errors
///
/// Those of [`PageTables::map_pieces`]; part of the map may be made then.
pub fn create<P, M, A, T>(
    tables: &mut PageTables<P, Parts<M, A, T>>,
    pieces: &[Piece],
) -> Result<(), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: Maintenance,
{
    let span = tables.geometry().span();
    let ram = tables.environment().arena().map(|arena| arena.unused_ram());
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

/// Maps the part of the space that shows the arena, whose physical addresses are `first` to
/// `end`, in rounds that each use the tables the round before made reachable. Gives the offsets
/// that are mapped then.
fn map_arena<P, M, A, T>(
    tables: &mut PageTables<P, Parts<M, A, T>>,
    pieces: &[Piece],
    home: &Piece,
    first: u64,
    end: u64,
) -> Result<(u64, u64), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: Maintenance,
{
    let outside = TableError::OutsideSpace {
        start: home.start,
        bytes: home.bytes,
        va_bits: tables.geometry().va_bits(),
    };
    let home_start = tables.geometry().offset(home.start).ok_or(outside)?;
    let distance = home_start.wrapping_sub(home.output.0);
    let (first, end) = (first.wrapping_add(distance), end.wrapping_add(distance));
    // Cut where tables are cut, so that none is written in two parts: what one table of pages
    // translates. Blocks need so few tables that the pool maps the whole piece at once.
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
            let arena = tables.environment().arena();
            let available = arena.map_or(0, |arena| arena.available());
            let upper = available / P::SIZE.entries() as u64 + Level::ALL.len() as u64;
            let spans = available.saturating_sub(upper).max(1);
            spans
                .checked_mul(span)
                .and_then(|bytes| high.checked_add(bytes))
                .map_or(last, |next| next.min(last))
        };
        tables.map_unpublished(pieces, (high, next))?;
        // The next round, or whoever comes next, writes tables through this mapping.
        tables.publish();
        high = next;
        if let Some(arena) = tables.environment().arena() {
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

    /// An arena with `pages` pages in its pool, all given out, in order.
    fn given_out(pages: u64) -> (Arena, Vec<PhysicalAddress>) {
        let (start, end) = (PhysicalAddress(POOL), PhysicalAddress(POOL + pages * PAGE));
        // SAFETY: nobody touches the memory.
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

    /// Takes everything there is, and sees that nothing comes twice.
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
        // Those between join the runs that are kept, so that no more are stranded than must be.
        for page in out.iter().skip(1).step_by(2) {
            give_back(&mut arena, *page);
        }
        assert_eq!(arena.available() + arena.stranded(), 24);
        let first = u64::try_from(drain(&mut arena).len()).unwrap();
        assert_eq!(first + arena.stranded(), 24);
        // Room again: nothing more is stranded.
        let before = arena.stranded();
        give_back(&mut arena, out[0]);
        assert_eq!((arena.available(), arena.stranded()), (1, before));
    }
}
