//! The library's environment of page tables over host allocations that stand for physical memory.
//!
//! Each allocated page is a host allocation of its own, reached through a table of pointers. So no
//! address becomes a pointer, and Miri sees every stray access. A new page holds garbage (a pattern
//! that decodes as a valid table). Every access is checked against the pages allocated at that
//! moment, and every action is recorded. Judging the record does not belong here.

#![allow(unsafe_code, reason = "tables in the host's memory")]

use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
use granule::arch::{Descriptor, Geometry, PhysicalAddress, Regime};
use granule::forward;
use granule::table::{
    BitChange, FreedTable, Maintenance, PhysToVirt, Reservation, TableEnvironment, TableRun,
    Visibility,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One recorded action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Entries were stored: `descriptor`, `descriptor + step`, ...
    Store {
        table: u64,
        first: usize,
        count: usize,
        descriptor: u64,
        step: u64,
        visibility: Visibility,
    },
    /// An update changed one existing entry in place. Each entry is one event.
    Change {
        table: u64,
        index: usize,
        descriptor: u64,
        visibility: Visibility,
    },
    Reserve(usize),
    Allocate {
        first: u64,
        count: usize,
    },
    Free(u64),
    DsbIshst,
    DsbIsh,
    Isb,
    /// A TLBI of the tables' own regime.
    Tlbi(TlbiOp),
    /// A TLBI of another regime.
    OtherTlbi(Regime, TlbiOp),
}

/// The way in which pages are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// As many consecutive pages as requested.
    Long,
    /// Single pages from all over the memory.
    Scattered,
    /// Runs of one to five.
    Short,
}

/// The memory of an arena whose addresses are numbers only, in a test that frees no page: any
/// access panics.
#[derive(Clone, Copy, Debug)]
pub struct NothingFreed;

// SAFETY: returns no pointer.
unsafe impl PhysToVirt for NothingFreed {
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        panic!("{table} was freed, and has no memory")
    }
}

/// Physical memory for tables, and the record of actions on it.
pub struct Host {
    first: u64,
    page: u64,
    /// The regime of the tables.
    regime: Regime,
    /// The memory of each allocated page; null for the others.
    pages: Vec<Cell<*mut u64>>,
    runs: Cell<Runs>,
    random: Cell<u64>,
    /// Pages that may still be allocated.
    budget: Cell<usize>,
    /// Pages reserved but not yet allocated.
    reserved: Cell<usize>,
    /// Whether pages can be reserved.
    reserves: Cell<bool>,
    events: RefCell<Vec<Event>>,
    /// The number of calls of bulk operations and single stores.
    calls: Cell<usize>,
}

impl Host {
    /// Memory of `pages` pages of the geometry's size, from the physical address `first` on.
    pub fn new(geometry: &Geometry, first: u64, pages: usize) -> Rc<Self> {
        let page = geometry.page_size().bytes();
        assert_eq!(first % page, 0, "the memory must begin at a page");
        Rc::new(Self {
            first,
            page,
            regime: geometry.regime(),
            pages: vec![Cell::new(core::ptr::null_mut()); pages],
            runs: Cell::new(Runs::Long),
            random: Cell::new(0x9e37_79b9_7f4a_7c15),
            budget: Cell::new(usize::MAX),
            reserved: Cell::new(0),
            reserves: Cell::new(true),
            events: RefCell::new(Vec::new()),
            calls: Cell::new(0),
        })
    }

    pub fn set_runs(&self, runs: Runs) {
        self.runs.set(runs);
    }

    /// From now on pages cannot be reserved, so that trees hold pages.
    pub fn without_reservations(&self) {
        self.reserves.set(false);
    }

    /// From now on only `pages` pages can be allocated.
    pub fn set_budget(&self, pages: usize) {
        self.budget.set(pages);
    }

    /// The number of allocated pages.
    pub fn given_out(&self) -> usize {
        self.pages
            .iter()
            .filter(|page| !page.get().is_null())
            .count()
    }

    /// The memory of a table; panics if the page is not allocated.
    fn memory(&self, table: u64) -> *mut u64 {
        // Under Miri this function takes most of the time, so it is kept short.
        let offset = table.wrapping_sub(self.first);
        let page = (offset >> self.page.trailing_zeros()) as usize;
        match self.pages.get(page) {
            Some(memory) if !memory.get().is_null() && offset & (self.page - 1) == 0 => {
                memory.get()
            }
            _ => panic!("{table:#x} is used, but no page that is given out"),
        }
    }

    const fn words(&self) -> usize {
        (self.page / 8) as usize
    }

    /// The number of pages reserved but never allocated: nonzero means that a count was too large.
    pub fn reserved_in_vain(&self) -> usize {
        self.reserved.get()
    }

    /// The events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.calls.set(0);
        self.events.take()
    }

    /// Calls of the memory's storing methods since the last [`take_events`](Self::take_events).
    pub fn calls(&self) -> usize {
        self.calls.get()
    }

    /// An entry as the MMU would read it; panics if the page is not a table.
    pub fn word(&self, table: u64, index: usize) -> u64 {
        assert!(index < self.words());
        // SAFETY: the index is inside the page's memory.
        unsafe { self.memory(table).add(index).read() }
    }

    /// Writes an entry unrecorded, as part of tables that existed before the walker.
    pub fn set_word(&self, table: u64, index: usize, word: u64) {
        assert!(index < self.words());
        // SAFETY: the index is inside the page's memory, and no reference into it exists.
        unsafe { self.memory(table).add(index).write(word) }
    }

    /// Allocates a zeroed page unrecorded, as a table made earlier.
    pub fn take_page(&self) -> u64 {
        let free = self.pages.iter().position(|page| page.get().is_null());
        let page = free.unwrap();
        self.give(page, 0);
        self.first + page as u64 * self.page
    }

    /// The words of a whole table as the MMU would read them; panics if the page is not allocated.
    pub fn table(&self, table: u64) -> Vec<u64> {
        let memory = self.memory(table);
        // SAFETY: the page's memory has this length, and no code writes it while the slice exists.
        unsafe { core::slice::from_raw_parts(memory, self.words()).to_vec() }
    }

    /// Allocates a page with all bytes set to `contents`.
    fn give(&self, page: usize, contents: u8) {
        let memory = vec![0_u64; self.words()].into_boxed_slice();
        let memory: *mut u64 = Box::into_raw(memory).cast();
        // SAFETY: the allocation has this length. (Miri does `write_bytes` in one step.)
        unsafe {
            memory
                .cast::<u8>()
                .write_bytes(contents, self.page as usize)
        };
        let before = self.pages[page].replace(memory);
        assert!(before.is_null(), "page {page} is given out twice");
    }

    /// Frees a page; panics if it is not allocated.
    fn take_back(&self, page: usize) {
        let memory = self.pages[page].replace(core::ptr::null_mut());
        assert!(!memory.is_null(), "page {page} is freed twice");
        let slice = core::ptr::slice_from_raw_parts_mut(memory, self.words());
        // SAFETY: pointer and length are those that `Box::into_raw` returned in `give`.
        drop(unsafe { Box::from_raw(slice) });
    }

    fn note(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    fn page_of(&self, table: u64) -> usize {
        assert!(
            table >= self.first && table % self.page == 0,
            "{table:#x} is not a page of the table memory"
        );
        let page = ((table - self.first) / self.page) as usize;
        assert!(
            page < self.pages.len(),
            "{table:#x} lies outside the table memory"
        );
        page
    }

    /// Checks the indexes only: the lookup of the pointer checks that the page is a table.
    fn check(&self, first: usize, count: usize) {
        assert!(
            first + count <= self.words(),
            "entries {first}+{count} lie outside a table"
        );
    }

    /// Checks and records stores of `descriptor`, `descriptor + step`, ...
    fn stored(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        self.check(first, count);
        self.calls.set(self.calls.get() + 1);
        self.note(Event::Store {
            table: table.0,
            first,
            count,
            descriptor: descriptor.0,
            step,
            visibility,
        });
    }

    /// Checks and records an update, before it.
    fn updated(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) {
        self.check(first, count);
        self.calls.set(self.calls.get() + 1);
        for index in first..first + count {
            let old = self.word(table.0, index);
            if old & change.of != 0 {
                self.note(Event::Change {
                    table: table.0,
                    index,
                    descriptor: old & !change.clear | change.set,
                    visibility,
                });
            }
        }
    }

    fn next_random(&self, below: usize) -> usize {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x % below as u64) as usize
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for page in 0..self.pages.len() {
            if !self.pages[page].get().is_null() {
                self.take_back(page);
            }
        }
    }
}

/// The pages of a host, reached through pointers as in a kernel.
struct Pages {
    host: Rc<Host>,
    capabilities: TlbCapabilities,
}

// SAFETY: `memory` returns the pointer from the page's allocation, aligned for `u64`. It panics
// unless the page is allocated, and the allocation lives as long as that. A page is allocated once
// until it is freed, from the host's own memory.
unsafe impl TableEnvironment for Pages {
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.host.memory(table.0)
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        let host = &self.host;
        if !host.reserves.get() {
            return Reservation::Unsupported;
        }
        host.note(Event::Reserve(tables));
        let free = host.pages.len() - host.given_out();
        if tables > host.budget.get().min(free) {
            return Reservation::Refused;
        }
        host.reserved.set(tables);
        Reservation::Granted
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let host = &self.host;
        assert!(most > 0, "nothing was asked for");
        let reserved = host.reserved.get();
        assert!(
            reserved > 0 || !host.reserves.get(),
            "a table is allocated that was not reserved"
        );
        if host.budget.get() == 0 {
            return None;
        }
        let pages = host.pages.len();
        let start = match host.runs.get() {
            Runs::Long => 0,
            Runs::Scattered | Runs::Short => host.next_random(pages),
        };
        let most = most.min(host.budget.get()).min(match host.runs.get() {
            Runs::Long => most,
            Runs::Scattered => 1,
            Runs::Short => 1 + host.next_random(5),
        });
        let is_free = |page: usize| host.pages[page].get().is_null();
        let first = (start..pages).chain(0..start).find(|&page| is_free(page))?;
        let count = (first..pages.min(first + most))
            .take_while(|&page| is_free(page))
            .count();
        assert!(
            count <= reserved || !host.reserves.get(),
            "more tables are allocated than were reserved"
        );
        for page in first..first + count {
            // All ones: valid, and a table at every level except the last.
            host.give(page, 0xff);
        }
        host.reserved.set(reserved.saturating_sub(count));
        host.budget.set(host.budget.get() - count);
        let first = host.first + first as u64 * host.page;
        host.note(Event::Allocate { first, count });
        Some(TableRun {
            first: PhysicalAddress(first),
            count,
        })
    }

    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let host = &self.host;
        let bytes = count as u64 * host.page;
        let is_free = |page: usize| host.pages[page].get().is_null();
        let aligned = |page: usize| (host.first + page as u64 * host.page) % bytes == 0;
        let first = (0..(host.pages.len() + 1).saturating_sub(count))
            .rev()
            .find(|&page| aligned(page) && (page..page + count).all(is_free))?;
        let left = host.budget.get().checked_sub(count)?;
        host.budget.set(left);
        for page in first..first + count {
            host.give(page, 0xff);
        }
        let first = host.first + first as u64 * host.page;
        host.note(Event::Allocate { first, count });
        Some(PhysicalAddress(first))
    }

    fn free(&mut self, table: FreedTable) {
        let host = &self.host;
        host.take_back(host.page_of(table.address().0));
        host.budget.set(host.budget.get().saturating_add(1));
        host.note(Event::Free(table.address().0));
    }

    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }

    fn invalidate(&mut self, instruction: Maintenance) {
        self.host.note(match instruction {
            Maintenance::DsbIshst => Event::DsbIshst,
            Maintenance::DsbIsh => Event::DsbIsh,
            Maintenance::Isb => Event::Isb,
            Maintenance::Tlbi(regime, op) if regime == self.host.regime => Event::Tlbi(op),
            Maintenance::Tlbi(regime, op) => Event::OtherTlbi(regime, op),
        });
    }
}

/// The environment of [`PageTables`](granule::table::PageTables) over a host. It checks and records
/// each access, which then goes through a pointer, as in a kernel.
pub struct HostEnvironment(Pages);

// SAFETY: each call is checked and forwarded to `Pages`.
unsafe impl TableEnvironment for HostEnvironment {
    // `update_alike` is recorded as the update that it makes.
    const BY_POINTER: bool = false;

    forward!(self.0: reach reserve allocate allocate_run allocate_aligned free);
    forward!(self.0: capabilities invalidate);
    forward!(self.0 after |(_, index)| { self.0.host.check(index, 1) }: load);
    forward!(self.0 after |(_, first, count, ..)| { self.0.host.check(first, count) }: find_unlike);
    forward!(self.0 after |(table, index, descriptor, visibility)| {
        self.0.host.stored(table, index, 1, descriptor, 0, visibility);
    }: store exchange);
    forward!(self.0 after |(table, first, count, descriptor, step, visibility)| {
        self.0.host.stored(table, first, count, descriptor, step, visibility);
    }: fill);
    forward!(self.0 after |(table, first, count, change, visibility)| {
        self.0.host.updated(table, first, count, change, visibility);
    }: update);
}

pub fn environment(host: &Rc<Host>, capabilities: TlbCapabilities) -> HostEnvironment {
    HostEnvironment(Pages {
        host: Rc::clone(host),
        capabilities,
    })
}
