//! The `direct` strategy: tables from memory that the map already covers.
//!
//! A small static pool starts it off. Tables come from one piece of RAM, the [`Arena`], which is
//! mapped first: the pool's tables map its beginning, the tables in there the next, far larger
//! part, and so on; two or three rounds reach a GiB of tables. Then everything else is mapped in
//! whole tables, each filled once while it is private. No TLBI at all: no entry changes that was
//! valid before.

use super::{Census, Placement, Region};
use crate::arch::page_size::{Level, Page};
use crate::arch::{PhysicalAddress, VirtualAddress};
use crate::table::{
    Environment, Maintenance, PageTables, Parts, TableAllocator, TableError, TableMemory, TableRun,
};

/// Pages that came back before the arena is handed over: a map that only grows returns none.
const MOST_RETURNED: usize = 8;

/// Table memory for the boot: a static pool, then a piece of RAM as far as it is mapped.
#[derive(Debug)]
pub struct Arena {
    page_bytes: u64,
    pool: Extent,
    ram: Extent,
    /// The end of the piece of RAM; its extent ends where the map ends.
    ram_end: u64,
    returned: [PhysicalAddress; MOST_RETURNED],
    returned_count: usize,
}

/// Pages not yet given out.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    next: u64,
    end: u64,
}

impl Extent {
    const fn pages(self, page_bytes: u64) -> u64 {
        self.end.saturating_sub(self.next) / page_bytes
    }
}

impl Arena {
    /// An arena that has only the pool from `start` to `end`, physical addresses, which are
    /// rounded inward to pages of `page_bytes`.
    ///
    /// # Safety
    ///
    /// The pool must be memory that nobody else uses and that the environment of the tables
    /// reaches; so must be the RAM that [`extend`](Self::extend) adds, once it is mapped.
    #[must_use]
    pub const unsafe fn new(start: PhysicalAddress, end: PhysicalAddress, page_bytes: u64) -> Self {
        let next = (start.0 + page_bytes - 1) & !(page_bytes - 1);
        Self {
            page_bytes,
            pool: Extent { next, end: end.0 },
            ram: Extent { next: 0, end: 0 },
            ram_end: 0,
            returned: [PhysicalAddress(0); MOST_RETURNED],
            returned_count: 0,
        }
    }

    /// Pages that can be given out now.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.pool.pages(self.page_bytes)
            + self.ram.pages(self.page_bytes)
            + self.returned_count as u64
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
        if let Some(last) = self.returned_count.checked_sub(1) {
            self.returned_count = last;
            return self
                .returned
                .get(last)
                .map(|&first| TableRun { first, count: 1 });
        }
        let page_bytes = self.page_bytes;
        let extent = if self.pool.pages(page_bytes) > 0 {
            &mut self.pool
        } else {
            &mut self.ram
        };
        let count = extent.pages(page_bytes).min(most as u64);
        if count == 0 {
            return None;
        }
        let first = PhysicalAddress(extent.next);
        extent.next += count * page_bytes;
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    fn free(&mut self, table: PhysicalAddress) {
        if let Some(slot) = self.returned.get_mut(self.returned_count) {
            *slot = table;
            self.returned_count += 1;
        }
    }
}

/// An allocator that is, or wraps, an [`Arena`].
pub trait HasArena {
    /// The arena.
    fn arena(&mut self) -> &mut Arena;
}

impl HasArena for Arena {
    fn arena(&mut self) -> &mut Arena {
        self
    }
}

impl HasArena for crate::table::Counted<'_, Arena> {
    fn arena(&mut self) -> &mut Arena {
        self.inner()
    }
}

impl<M, A: HasArena, T> HasArena for Parts<M, A, T> {
    fn arena(&mut self) -> &mut Arena {
        self.allocator.arena()
    }
}

/// The pages of RAM that the arena needs besides what its pool has left, for a map with this
/// census; 0 when the pool suffices.
#[must_use]
pub fn arena_pages(census: &Census, arena: &Arena) -> u64 {
    census.tables().saturating_sub(arena.available())
}

/// Makes the linear map of `regions` in `tables`, which are live.
///
/// If [`arena_pages`] is not 0, the arena must have been extended by that many pages of one
/// region.
///
/// # Errors
///
/// Those of [`PageTables::map`]. Regions before the failing one are mapped then.
pub fn create<P, M, A, T>(
    tables: &mut PageTables<P, Parts<M, A, T>>,
    placement: &Placement,
    regions: &[Region],
) -> Result<(), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: Maintenance,
{
    let arena = tables.environment().arena();
    let (first, end) = arena.unused_ram();
    let home = regions
        .iter()
        .find(|region| first < end && region.start <= first && end <= region.end());
    let mut done = (first.0, first.0);
    if let Some(home) = home {
        done = map_arena(tables, placement, home, first.0, end.0)?;
    }
    for region in regions {
        if Some(region) == home {
            map_part(tables, placement, region, region.start.0, done.0)?;
            map_part(tables, placement, region, done.1, region.end().0)?;
        } else {
            map_part(tables, placement, region, region.start.0, region.end().0)?;
        }
    }
    tables.publish();
    Ok(())
}

/// Maps the part of `home` that holds the arena, from `first` to `end`, in rounds that each use
/// the tables the round before made reachable. Gives what it mapped.
fn map_arena<P, M, A, T>(
    tables: &mut PageTables<P, Parts<M, A, T>>,
    placement: &Placement,
    home: &Region,
    first: u64,
    end: u64,
) -> Result<(u64, u64), TableError>
where
    P: Page,
    M: TableMemory,
    A: TableAllocator + HasArena,
    T: Maintenance,
{
    // Blocks need so few tables that the pool maps the whole region at once.
    let whole_leaves = home.leaves.top < Level::L3;
    // What one table of pages translates: cut there, no table is written in two parts.
    let span = P::SIZE.entry_bytes(Level::L2);
    let distance = placement.distance();
    let align_down =
        |address: u64| (address.wrapping_add(distance) & !(span - 1)).wrapping_sub(distance);
    let low = if whole_leaves {
        home.start.0
    } else {
        align_down(first).max(home.start.0)
    };
    let mut high = low;
    while high < end {
        let next = if whole_leaves {
            home.end().0
        } else if high == low {
            (align_down(first) + span).min(home.end().0)
        } else {
            // A table for each span, one more for each table's worth of those, and one a level.
            let available = tables.environment().arena().available();
            let upper = available / P::SIZE.entries() as u64 + Level::ALL.len() as u64;
            let spans = available.saturating_sub(upper).max(1);
            let last_needed = align_down(end - 1) + span;
            spans
                .checked_mul(span)
                .and_then(|bytes| high.checked_add(bytes))
                .map_or(last_needed, |next| next.min(last_needed))
                .min(home.end().0)
        };
        map_part(tables, placement, home, high, next)?;
        // The next round, or whoever comes next, writes tables through this mapping.
        tables.publish();
        high = next;
        tables.environment().arena().mapped_to(high);
    }
    Ok((low, high))
}

fn map_part<P: Page, E: Environment>(
    tables: &mut PageTables<P, E>,
    placement: &Placement,
    region: &Region,
    from: u64,
    to: u64,
) -> Result<(), TableError> {
    if from >= to {
        return Ok(());
    }
    let start = VirtualAddress(from.wrapping_add(placement.distance()));
    let output = PhysicalAddress(from);
    tables.map_unpublished(start, output, to - from, region.attributes, region.leaves)
}
