//! A table allocator for any memory: a list of free pages that is kept in the free pages themselves.
//!
//! The list has no limit and needs no memory besides the pages, so a freed page always finds a
//! place. The first words of a free run of pages hold the run's end and the address of the next
//! run. The run that pages are taken from is kept in the value, so most calls access no memory.

#![allow(unsafe_code, reason = "free pages through pointers")]

use super::entries::PhysToVirt;
use super::environment::{Maintenance, Reservation, TableEnvironment, TablePages, TableRun};
use super::pending::FreedTable;
use crate::arch::{PageSize, PhysicalAddress};
use crate::forward;

/// The word of a free run's first page with the address of the next run.
const NEXT: usize = 0;
/// The word with the run's end.
const END: usize = 1;
/// The value of `NEXT` in the last run: no page begins there.
const NONE: u64 = u64::MAX;

/// Free pages from `start` to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    const EMPTY: Self = Self { start: 0, end: 0 };

    const fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// Pages for tables, linked through their own first entries.
///
/// It begins empty. [`add`](Self::add) gives it ranges of memory, at any time. Freed pages that
/// adjoin the run in use or the last freed run join it; every other page becomes a run of its own.
/// So no page is ever lost, [`available`](Self::available) is exact, and a reservation never fails
/// because free pages are scattered.
///
/// The environment of live tables has a list, [forwards](crate::forward) what concerns pages to it, and issues
/// instructions. For tables that no CPU walks [`environment`](Self::environment) is enough.
///
/// ```
/// use granule::arch::{PageSize, PhysicalAddress};
/// use granule::table::{FreeList, Offset};
///
/// let mut memory = vec![0u64; 4 * 512];
/// let start = memory.as_mut_ptr().expose_provenance() as u64;
/// let end = start + 4 * 4096;
/// // SAFETY: the vector is used by nothing else, and outlives the list.
/// let mut list = unsafe {
///     let mut list = FreeList::new(Offset::new(0), PageSize::K4);
///     list.add(PhysicalAddress(start), PhysicalAddress(end));
///     list
/// };
/// // The vector need not begin at a page.
/// assert!(list.available() >= 3);
/// let tables = list.allocate_run(2).ok_or("no page")?;
/// assert_eq!(tables.count, 2);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct FreeList<R> {
    memory: R,
    page_size: PageSize,
    /// The run that pages are taken from.
    current: Run,
    /// The address of the first run of the list, or `NONE`.
    first: u64,
    /// The free pages in all runs.
    available: u64,
    /// The highest end of the memory that was added.
    end: u64,
}

impl<R> FreeList<R> {
    /// An empty list for pages of `page_size`, which it reaches through `memory`.
    #[must_use]
    pub const fn new(memory: R, page_size: PageSize) -> Self {
        Self {
            memory,
            page_size,
            current: Run::EMPTY,
            first: NONE,
            available: 0,
            end: 0,
        }
    }

    /// The number of pages that can be allocated now.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.available
    }

    /// The first address in `run` of `count` pages that are aligned to their bytes.
    fn aligned(&self, run: Run, count: usize) -> Option<u64> {
        let bytes = (count as u64) << self.page_size.shift();
        let start = run.start.checked_next_multiple_of(bytes)?;
        (start.checked_add(bytes)? <= run.end).then_some(start)
    }
}

impl<R: PhysToVirt> FreeList<R> {
    /// Adds the memory from `start` to `end`, rounded inward to whole pages. A range without a
    /// whole page adds nothing.
    ///
    /// # Safety
    ///
    /// The caller owns the range exclusively and gives it up. The list's [`PhysToVirt`] reaches all
    /// of it, as long as the list or any of its tables exist. If tables take pages from the list
    /// already, the range lies below the physical address size of their geometry.
    pub unsafe fn add(&mut self, start: PhysicalAddress, end: PhysicalAddress) {
        let mask = self.page_size.bytes() - 1;
        let Some(start) = start.0.checked_add(mask) else {
            return;
        };
        let (start, end) = (start & !mask, end.0 & !mask);
        if start < end {
            self.end = self.end.max(end);
            self.put(Run { start, end });
        }
    }

    /// Makes the pages of `run` free.
    fn put(&mut self, run: Run) {
        self.available += (run.end - run.start) >> self.page_size.shift();
        if self.current.is_empty() {
            self.current = run;
        } else if run.start == self.current.end {
            self.current.end = run.end;
        } else if run.end == self.current.start {
            self.current.start = run.start;
        } else {
            self.link(run);
        }
    }

    /// Puts `run` at the front of the list, joined with the first run there if they adjoin.
    fn link(&mut self, run: Run) {
        if self.first == NONE {
            self.write(run, NONE);
            return;
        }
        let (first, next) = self.read(self.first);
        if run.start == first.end {
            self.write(
                Run {
                    start: first.start,
                    ..run
                },
                next,
            );
        } else if run.end == first.start {
            self.write(
                Run {
                    end: first.end,
                    ..run
                },
                next,
            );
        } else {
            self.write(run, first.start);
        }
    }

    /// Makes `run` the first of the list, with `next` behind it.
    fn write(&mut self, run: Run, next: u64) {
        let page = self.memory.pointer(PhysicalAddress(run.start));
        // SAFETY: the page is free. The caller of `add` gave it to the list and promised that
        // `memory` reaches it, and every page is larger than two words.
        unsafe {
            page.wrapping_add(NEXT).write(next);
            page.wrapping_add(END).write(run.end);
        }
        self.first = run.start;
    }

    /// The run that begins at `start`, and the address of the next.
    fn read(&self, start: u64) -> (Run, u64) {
        let page = self.memory.pointer(PhysicalAddress(start));
        // SAFETY: as in `write`, which wrote both words of every run in the list. A free page
        // belongs to nobody else, so they are unchanged.
        let (next, end) = unsafe {
            (
                page.wrapping_add(NEXT).read(),
                page.wrapping_add(END).read(),
            )
        };
        (Run { start, end }, next)
    }

    /// Takes the first run of the list out that holds `count` pages aligned to their bytes, and
    /// returns it with the address of those pages.
    fn unlink_aligned(&mut self, count: usize) -> Option<(Run, u64)> {
        let (head, mut before, mut at) = (self.first, None, self.first);
        while at != NONE {
            let (run, next) = self.read(at);
            if let Some(start) = self.aligned(run, count) {
                match before {
                    None => self.first = next,
                    Some(before) => {
                        self.write(before, next);
                        self.first = head;
                    }
                }
                return Some((run, start));
            }
            before = Some(run);
            at = next;
        }
        None
    }
}

impl<R: PhysToVirt> FreeList<R> {
    /// The environment of tables that take their pages from the list, and that no CPU walks: it issues no
    /// instruction.
    pub fn environment(self) -> impl TableEnvironment {
        NotWalked(self)
    }

    /// See [`TableEnvironment::reach`].
    #[inline(always)]
    pub fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.memory.pointer(table)
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
        (self.available >= tables as u64).into()
    }

    /// See [`TableEnvironment::allocate`].
    pub fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    /// See [`TableEnvironment::allocate_run`].
    pub fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        if self.current.is_empty() {
            if self.first == NONE {
                return None;
            }
            (self.current, self.first) = self.read(self.first);
        }
        let shift = self.page_size.shift();
        let count = ((self.current.end - self.current.start) >> shift).min(most as u64);
        if count == 0 {
            return None;
        }
        let first = PhysicalAddress(self.current.start);
        self.current.start += count << shift;
        self.available -= count;
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    /// See [`TableEnvironment::allocate_aligned`].
    pub fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let (run, start) = match self.aligned(self.current, count) {
            Some(start) => (core::mem::replace(&mut self.current, Run::EMPTY), start),
            None => self.unlink_aligned(count)?,
        };
        let shift = self.page_size.shift();
        self.available -= (run.end - run.start) >> shift;
        let behind = start + ((count as u64) << shift);
        for (start, end) in [(run.start, start), (behind, run.end)] {
            if start < end {
                self.put(Run { start, end });
            }
        }
        Some(PhysicalAddress(start))
    }

    /// See [`TableEnvironment::free`]. The page was allocated here, or is of memory that the list reaches.
    pub fn free(&mut self, table: FreedTable) {
        let start = table.address().0;
        let end = start + self.page_size.bytes();
        self.put(Run { start, end });
    }
}

/// The environment of tables that no CPU walks.
struct NotWalked<R>(FreeList<R>);

// SAFETY: the caller of `add` vouched for the memory. A page is in one run at a time: `allocate_run`
// takes it out, and `free` gets only pages that were allocated and that no walker reaches.
unsafe impl<R: PhysToVirt> TableEnvironment for NotWalked<R> {
    forward!(self.0: reach allocate free pages reserve allocate_run allocate_aligned);

    #[inline(always)]
    fn invalidate(&mut self, _instruction: Maintenance) {}
}
