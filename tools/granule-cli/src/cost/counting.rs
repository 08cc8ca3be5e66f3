//! Runs the library's own code on tables that nobody walks and that hold only what that code reads again, so that
//! a gigabyte takes microseconds.

#![allow(unsafe_code, reason = "tables in a map, which no CPU walks")]

use std::collections::HashMap;

use granule::arch::tlbi::{Invalidation, TlbCapabilities, TlbiScope};
use granule::arch::{Descriptor, Dispatch, Geometry, Level, Page, PhysicalAddress, VirtualAddress};
use granule::forward;
use granule::linear::fixmap::{self, Entries, FixmapSlots, Slot};
use granule::linear::{self, Arena, Barriers, Strategy};
use granule::table::{
    Live, Maintenance, Offset, PageTables, Piece, Reservation, TableEnvironment, TableError,
    TablePages, Visibility, invalidate, publish,
};
use granule_trace::recorder::{Counted, Counters};

use super::Cost;

/// The assumed address of the static pool and the root, outside of RAM.
const POOL: u64 = 0x1000_0000;
/// The assumed address of the fixmap slots.
const SLOTS: u64 = 0xffff_ffff_e010_0000;

/// A map that `direct` builds with `pool` table pages and an arena of `arena` pages at the end of RAM.
pub(super) struct Direct<'a> {
    pub(super) geometry: Geometry,
    pub(super) capabilities: TlbCapabilities,
    pub(super) pieces: &'a [Piece],
    pub(super) pool: u64,
    pub(super) arena: u64,
}

impl Dispatch for Direct<'_> {
    type Output = Result<Cost, TableError>;

    fn run<P: Page>(self) -> Self::Output {
        let page = P::SIZE.bytes();
        let root = PhysicalAddress(POOL);
        let first = PhysicalAddress(POOL + page);
        let end = PhysicalAddress(first.0 + self.pool * page);
        // SAFETY: nothing is stored at any address: the tables are in `Tables`, and none is freed.
        let mut arena = unsafe { Arena::new(Offset::new(0), first, end, P::SIZE) };
        if self.arena > 0 {
            let top = self.pieces.last().map_or(0, |piece| piece.output_end().0);
            let start = PhysicalAddress(top.saturating_sub(self.arena * page));
            // SAFETY: as above.
            unsafe { arena.extend(start, PhysicalAddress(top)) };
        }
        let counters = Counters::new();
        let tables = Tables {
            entries: P::SIZE.entries(),
            tables: HashMap::from([(root.0, Table::Run(0, 0))]),
            arena,
            capabilities: self.capabilities,
        };
        let environment = Counted::new(tables, &counters);
        // SAFETY: the root is an empty table of `Tables`, as are all that follow; no CPU walks them. They count as
        // live only so that barriers are counted.
        let mut tables =
            unsafe { Live::<PageTables<P, _>>::from_root(root, self.geometry, environment)? };
        // SAFETY: no CPU walks the tables, and `Tables` reaches every one of them, mapped or not.
        unsafe {
            linear::create(tables.changes(), self.pieces, |counted| {
                Some(&mut counted.inner_mut().arena)
            })?;
        }
        Ok(Cost {
            counts: counters.get(),
            zeroed: 0,
            waits: 0,
        })
    }
}

/// The contents of a table.
enum Table {
    /// All entries follow from the first one and the step from each to the next.
    Run(u64, u64),
    Entries(Box<[u64]>),
}

struct Tables {
    entries: usize,
    tables: HashMap<u64, Table>,
    arena: Arena<Offset>,
    capabilities: TlbCapabilities,
}

impl Tables {
    fn each(&mut self, table: PhysicalAddress) -> &mut [u64] {
        let entries = self.entries as u64;
        let table = self.tables.entry(table.0).or_insert(Table::Run(0, 0));
        if let Table::Run(first, step) = *table {
            let all = (0..entries).map(|index| first.wrapping_add(step.wrapping_mul(index)));
            *table = Table::Entries(all.collect());
        }
        match table {
            Table::Entries(entries) => entries,
            Table::Run(..) => &mut [],
        }
    }
}

// SAFETY: no memory is touched but the map's own, and no CPU walks the tables.
unsafe impl TableEnvironment for Tables {
    const BY_POINTER: bool = false;

    forward!(self.arena: reach allocate free pages reserve allocate_run allocate_aligned);

    fn invalidate(&mut self, _instruction: Maintenance) {}

    fn capabilities(&self) -> TlbCapabilities {
        self.capabilities
    }

    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        Descriptor(match self.tables.get(&table.0) {
            Some(Table::Run(first, step)) => first.wrapping_add(step.wrapping_mul(index as u64)),
            Some(Table::Entries(entries)) => entries.get(index).copied().unwrap_or_default(),
            None => 0,
        })
    }

    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        _visibility: Visibility,
    ) {
        if let Some(entry) = self.each(table).get_mut(index) {
            *entry = descriptor.0;
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
            self.tables.insert(table.0, Table::Run(descriptor.0, step));
            return;
        }
        let mut value = descriptor.0;
        for entry in self.each(table).iter_mut().skip(first).take(count) {
            *entry = value;
            value = value.wrapping_add(step);
        }
    }
}

/// A map that a published strategy builds.
pub(super) struct ByFixmap<'a> {
    pub(super) geometry: Geometry,
    pub(super) capabilities: TlbCapabilities,
    pub(super) pieces: &'a [Piece],
    pub(super) strategy: Strategy,
    pub(super) barriers: Barriers,
}

impl Dispatch for ByFixmap<'_> {
    type Output = Result<Cost, TableError>;

    fn run<P: Page>(self) -> Self::Output {
        let root = PhysicalAddress(POOL);
        let mut slots = Slots {
            geometry: self.geometry,
            capabilities: self.capabilities,
            mapped: [root; Slot::COUNT],
            links: HashMap::new(),
            next: POOL + P::SIZE.bytes(),
            cost: Cost::default(),
            in_flight: false,
        };
        let (pieces, strategy, barriers) = (self.pieces, self.strategy, self.barriers);
        // SAFETY: no CPU walks the tables, nothing else changes them, and the slots are new.
        unsafe { fixmap::create::<P, _>(&mut slots, root, pieces, strategy, barriers)? };
        Ok(slots.cost)
    }
}

/// Slots that keep the links between tables and count everything else.
struct Slots {
    geometry: Geometry,
    capabilities: TlbCapabilities,
    /// The table that each slot maps.
    mapped: [PhysicalAddress; Slot::COUNT],
    /// The links, by table and index.
    links: HashMap<(u64, usize), Descriptor>,
    /// The next free table page.
    next: u64,
    cost: Cost,
    /// Whether a TLBI was not waited for.
    in_flight: bool,
}

impl Slots {
    fn table(&self, slot: Slot) -> u64 {
        self.mapped.get(slot.number()).map_or(0, |table| table.0)
    }

    fn invalidate(&mut self, slots: usize) {
        self.cost.counts.stores += slots as u64;
        let geometry = self.geometry;
        let page = geometry.page_size().bytes();
        let what = Invalidation {
            start: VirtualAddress(SLOTS),
            bytes: slots as u64 * page,
            stride: page,
            scope: TlbiScope::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        let can = self.capabilities;
        invalidate(&what, &geometry, can, |instruction| self.issue(instruction));
    }
}

// SAFETY: no memory is touched; loads and stores reach the links of the table in the slot.
unsafe impl FixmapSlots for Slots {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn pages(&self) -> Option<TablePages> {
        None
    }

    fn reserve(&mut self, _tables: usize) -> Reservation {
        Reservation::Granted
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        let page = PhysicalAddress(self.next);
        self.next += self.geometry.page_size().bytes();
        self.cost.counts.tables += 1;
        Some(page)
    }

    fn issue(&mut self, instruction: Maintenance) {
        let Cost { counts, waits, .. } = &mut self.cost;
        match instruction {
            Maintenance::DsbIshst => counts.dsb += 1,
            Maintenance::DsbIsh => {
                counts.dsb += 1;
                *waits += u64::from(self.in_flight);
                self.in_flight = false;
            }
            Maintenance::Isb => counts.isb += 1,
            Maintenance::Tlbi(..) => {
                counts.tlbi += 1;
                self.in_flight = true;
            }
        }
    }

    fn address(&self, _slot: Slot) -> VirtualAddress {
        VirtualAddress(SLOTS)
    }

    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        if let Some(mapped) = self.mapped.get_mut(slot.number()) {
            *mapped = table;
        }
        self.cost.counts.stores += 1;
        publish(|instruction| self.issue(instruction));
    }

    fn close(&mut self, _slot: Slot) {
        self.invalidate(1);
    }

    fn close_series(&mut self, count: usize) {
        self.invalidate(count);
    }

    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        let link = self.links.get(&(self.table(slot), index));
        link.copied().unwrap_or(Descriptor::INVALID)
    }

    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        self.cost.counts.stores += 1;
        self.links.insert((self.table(slot), index), descriptor);
    }

    unsafe fn zero(&mut self, _slot: Slot) {
        let entries = self.geometry.page_size().entries() as u64;
        self.cost.counts.stores += entries;
        self.cost.zeroed += entries;
    }

    unsafe fn write(&mut self, _slot: Slot, entries: &Entries) -> usize {
        self.cost.counts.stores += entries.count as u64;
        if entries.barriers {
            (0..entries.count).for_each(|_| publish(|instruction| self.issue(instruction)));
        }
        entries.count
    }
}
