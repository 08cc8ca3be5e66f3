//! Runs the strategy `direct` on no machine, for tests of the arithmetic: the library's own code on
//! tables that store only what it reads again, so that some gigabytes take milliseconds.

#![allow(unsafe_code, reason = "tables in a vector, which no CPU walks")]

use std::collections::HashMap;

use granule::arch::{Descriptor, Dispatch, Page, PhysicalAddress};
use granule::linear::{self, Arena, Expected};
use granule::table::{
    BitChange, Counted, Counters, Environment, Live, NoCpu, PageTables, TableError, TableMemory,
    Visibility,
};

use granule_testing::host::NothingFreed;

use super::Job;
use super::job::direct::pages;

/// The assumed address of the static pool and the root, outside of RAM.
const POOL: u64 = 0x1000_0000;

/// The counts of `direct` for this job.
pub(super) fn direct(job: &Job) -> Result<Expected, TableError> {
    job.geometry.page_size().dispatch(Direct { job })
}

struct Direct<'a> {
    job: &'a Job,
}

impl Dispatch for Direct<'_> {
    type Output = Result<Expected, TableError>;

    fn run<P: Page>(self) -> Self::Output {
        let Self { job } = self;
        let page = P::SIZE.bytes();
        let root = PhysicalAddress(POOL);
        let first = PhysicalAddress(POOL + page);
        let end = PhysicalAddress(first.0 + job.pool_pages * page);
        // SAFETY: nothing is ever stored at these addresses: the tables are in `Tables`.
        let mut arena = unsafe { Arena::new(NothingFreed, first, end, P::SIZE) };
        let pages = pages(job);
        let top = job.pieces.last().map_or(0, |piece| piece.output_end().0);
        if pages > 0 {
            let start = top.saturating_sub(pages * page);
            // SAFETY: as above.
            unsafe { arena.extend(PhysicalAddress(start), PhysicalAddress(top)) };
        }
        let counters = Counters::new();
        let parts = Environment {
            memory: Counted::new(Tables::new(root, P::SIZE.entries()), &counters),
            allocator: Counted::new(arena, &counters),
            tlb: Counted::new(NoCpu(job.capabilities), &counters),
        };
        // SAFETY: the root is an empty table of `Tables`, as are all that follow; no CPU walks
        // them, they count as live only so that barriers are counted.
        let mut tables = unsafe { Live::<PageTables<P, _>>::from_root(root, job.geometry, parts)? };
        // SAFETY: no CPU walks the tables.
        linear::create(unsafe { tables.changes() }, &job.pieces)?;
        Ok(Expected {
            counts: counters.get(),
            zeroed: 0,
            waits: 0,
        })
    }
}

/// The contents of a table.
#[derive(Default)]
struct Table {
    /// The first entry and the step from each to the next, if all entries follow from those.
    run: Option<(u64, u64)>,
    /// Otherwise each entry.
    entries: Vec<u64>,
}

struct Tables {
    entries: usize,
    tables: HashMap<u64, Table>,
}

impl Tables {
    fn new(root: PhysicalAddress, entries: usize) -> Self {
        let empty = Table::default();
        Self {
            entries,
            tables: HashMap::from([(root.0, empty)]),
        }
    }

    fn single(&mut self, table: PhysicalAddress) -> &mut Vec<u64> {
        let entries = self.entries;
        let table = self.tables.entry(table.0).or_default();
        if let Some((first, step)) = table.run.take() {
            let value = |index| first.wrapping_add(step.wrapping_mul(index as u64));
            table.entries = (0..entries).map(value).collect();
        }
        table.entries.resize(entries, 0);
        &mut table.entries
    }
}

// SAFETY: no memory is touched but the map's own.
unsafe impl TableMemory for Tables {
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        let Some(table) = self.tables.get(&table.0) else {
            return Descriptor::INVALID;
        };
        Descriptor(match table.run {
            Some((first, step)) => first.wrapping_add(step.wrapping_mul(index as u64)),
            None => table.entries.get(index).copied().unwrap_or_default(),
        })
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        _visibility: Visibility,
    ) {
        if let Some(entry) = self.single(table).get_mut(index) {
            *entry = descriptor.0;
        }
    }

    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller keeps the contract of this function; no CPU walks these tables.
        unsafe {
            let old = self.load(table, index);
            self.store(table, index, descriptor, visibility);
            old
        }
    }

    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        _visibility: Visibility,
    ) {
        if first == 0 && count == self.entries {
            let run = Some((descriptor.0, step));
            let entries = Vec::new();
            self.tables.insert(table.0, Table { run, entries });
            return;
        }
        let mut value = descriptor.0;
        for entry in self.single(table).iter_mut().skip(first).take(count) {
            *entry = value;
            value = value.wrapping_add(step);
        }
    }

    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        _visibility: Visibility,
    ) -> usize {
        let mut changed = 0;
        for entry in self.single(table).iter_mut().skip(first).take(count) {
            if change.concerns(Descriptor(*entry)) {
                *entry = change.apply(Descriptor(*entry)).0;
                changed += 1;
            }
        }
        changed
    }
}
