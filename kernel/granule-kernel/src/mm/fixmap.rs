//! Accesses tables through fixmap slots, for the published strategies of the linear map.
//!
//! There is one slot for each level and a series of slots for last-level tables. Each is a page of the
//! fixmap. Opening a slot stores its descriptor with the barriers of a kernel mapping; closing clears the
//! descriptor and invalidates the TLB for the page. The descriptors and the instructions that store them are
//! in [`Fixmap`]; the library chooses the order.

#![allow(unsafe_code, reason = "tables through slots")]

use super::environment::KernelEnvironment;
use super::walker::Tree;
use crate::trace::recorder::Recorder;
use core::hint::black_box;
use core::mem::MaybeUninit;
use granule::arch::tlbi::{Invalidation, TlbiScope};
use granule::arch::{
    Attributes, Descriptor, Geometry, Kind, Permissions, PhysicalAddress, VirtualAddress,
};
use granule::arch::{Level, VaRange};
use granule::hw;
use granule::linear::fixmap::{Entries, FixmapSlots, Slot};
use granule::table::{
    Leaves, Maintenance, Reservation, TableEnvironment, TableError, TablePages, Visibility, Visit,
    invalidate, publish,
};
use granule_kcore::layout;
use granule_trace::recorder::{Counters, Sink};

/// The fixmap's slots. `environment` provides the table that translates them, table pages (from early memory,
/// mapped or not), and the TLB maintenance.
pub(crate) struct Fixmap<'c> {
    environment: KernelEnvironment<'c>,
    /// Whether a trace is recorded. Read once for each opening and closing: a read for each store, barrier
    /// and TLBI would show in the measured cost.
    recorded: bool,
    counters: &'c Counters,
    place: FixmapPlace,
    attributes: u64,
    /// The tables in the slots, and the barriers between the entries of a run. Barriers are counted once for
    /// each run, from the number of entries written, because counting each would be a large part of the
    /// measured cost. A test compares the instructions, two an entry, with the form without barriers to see
    /// that they are issued.
    shown: Shown,
}

/// The location of the slots' own entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixmapPlace {
    /// The last-level table that translates the slots.
    table: PhysicalAddress,
    page_shift: u32,
}

impl FixmapPlace {
    /// Finds the table that translates the slots, and allocates it if the console's slot did not. This
    /// belongs to the fixmap's setup, not to the cost of a linear map. `constant` is a page that is never
    /// written.
    pub(crate) fn find(
        tables: &mut Tree<'_>,
        constant: PhysicalAddress,
    ) -> Result<Self, TableError> {
        debug_assert!(tables.geometry().va_range() == VaRange::Upper);
        let attributes = Attributes::normal(Permissions::READ);
        let start = VirtualAddress(layout::FIXMAP_ANCHOR_VADDR);
        let size = tables.geometry().page_size();
        let page = size.bytes();
        // The page stays mapped, so that the table is kept.
        tables.map(start, constant, page, attributes, Leaves::PAGES)?;
        let mut table = None;
        tables.visit(start, page, |entry| {
            if entry.kind == Kind::Leaf {
                table = Some(entry.table);
            }
            Visit::EVERYTHING
        })?;
        let table = table.ok_or(TableError::NotMapped { address: start })?;
        let page_shift = size.shift();
        Ok(Self { table, page_shift })
    }

    fn address(self, slot: Slot) -> VirtualAddress {
        VirtualAddress(match slot {
            Slot::Series(index) => {
                layout::FIXMAP_SERIES_VADDR + ((index % Slot::SERIES) << self.page_shift) as u64
            }
            // The other slots by number. The console's slot is first.
            _ => layout::FIXMAP_VADDR + (slot.number() as u64 + 1) * layout::FIXMAP_SLOT_BYTES,
        })
    }

    /// The index of the slot's own entry. Masking is enough: the fixmap begins at a last-level table of every
    /// page size, or after a whole number of slots.
    fn index(self, slot: Slot) -> usize {
        let entries = 1usize << (self.page_shift - 3);
        (self.address(slot).0 >> self.page_shift) as usize & (entries - 1)
    }
}

impl<'c> Fixmap<'c> {
    pub(crate) fn new(
        place: FixmapPlace,
        counters: &'c Counters,
        geometry: Geometry,
        environment: KernelEnvironment<'c>,
        sink: Recorder,
    ) -> Self {
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        Self {
            environment,
            recorded: sink.is_active(),
            counters,
            place,
            attributes: attributes.encode(&geometry),
            shown: Shown { place, geometry },
        }
    }

    /// Closes `count` consecutive slots from `first`.
    fn close_all(&mut self, first: Slot, count: usize) {
        let place = self.place;
        let stride = 1 << place.page_shift;
        let what = Invalidation {
            start: place.address(first),
            bytes: count as u64 * stride,
            stride,
            scope: TlbiScope::LastLevel,
            asid: None,
            level: Some(Level::L3),
        };
        let geometry = &self.shown.geometry;
        if self.recorded {
            clear(
                &mut self.environment,
                place,
                (first, count),
                &what,
                geometry,
            );
        } else {
            clear(
                self.environment.unrecorded(),
                place,
                (first, count),
                &what,
                geometry,
            );
        }
    }
}

#[inline(always)]
fn show(to: &mut impl TableEnvironment, place: FixmapPlace, slot: Slot, shown: Descriptor) {
    set(to, place, slot, shown);
    publish(|instruction| to.invalidate(instruction));
}

/// Clears the entries of slots, `count` from the first on, and invalidates the TLB for them.
#[inline(always)]
fn clear(
    to: &mut impl TableEnvironment,
    place: FixmapPlace,
    (first, count): (Slot, usize),
    what: &Invalidation,
    geometry: &Geometry,
) {
    set(to, place, first, Descriptor::INVALID);
    for index in 1..count {
        set(to, place, Slot::Series(index), Descriptor::INVALID);
    }
    let can = to.capabilities();
    invalidate(what, geometry, can, |instruction| {
        to.invalidate(instruction)
    });
}

#[inline(always)]
fn set(to: &mut impl TableEnvironment, place: FixmapPlace, slot: Slot, descriptor: Descriptor) {
    // SAFETY: the entry is this slot's in the fixmap's table, which `find` found. Only this CPU runs.
    unsafe { to.store(place.table, place.index(slot), descriptor, Visibility::Live) };
}

/// Entries zeroed in each round, enough for paired stores.
const ZERO_CHUNK: usize = 64;

// SAFETY: a slot's address translates to the table that it was last opened for, because opening stores the
// descriptor over an invalid one, as its caller promises, and closing invalidates the TLB for it.
unsafe impl FixmapSlots for Fixmap<'_> {
    fn geometry(&self) -> &Geometry {
        &self.shown.geometry
    }

    fn pages(&self) -> Option<TablePages> {
        self.environment.pages()
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.environment.reserve(tables)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.environment.allocate()
    }

    #[inline(always)]
    fn issue(&mut self, instruction: Maintenance) {
        self.environment.invalidate(instruction);
    }

    fn address(&self, slot: Slot) -> VirtualAddress {
        self.place.address(slot)
    }

    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        let shown = Descriptor::leaf(&self.shown.geometry, Level::L3, table, self.attributes);
        if self.recorded {
            show(&mut self.environment, self.place, slot, shown);
        } else {
            show(self.environment.unrecorded(), self.place, slot, shown);
        }
    }

    fn close(&mut self, slot: Slot) {
        self.close_all(slot, 1);
    }

    fn close_series(&mut self, count: usize) {
        self.close_all(Slot::Series(0), count);
    }

    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { self.shown.load(slot, index) }
    }

    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        self.counters.stores.add(1);
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe { self.shown.store(slot, index, descriptor) };
    }

    unsafe fn zero(&mut self, slot: Slot) {
        let bytes = 1usize << self.place.page_shift;
        self.counters.stores.add((bytes / size_of::<u64>()) as u64);
        let mut chunk = self.place.address(slot).0 as *mut [MaybeUninit<u64>; ZERO_CHUNK];
        // Hides that the value is zero: the compiler would call `memset`, which without NEON takes six times
        // the instructions.
        let nothing = black_box(0);
        for _ in 0..bytes / size_of::<[u64; ZERO_CHUNK]>() {
            // SAFETY: the caller has the slot open, so a whole table is mapped there, and promises that
            // nothing else uses it.
            for entry in unsafe { &mut *chunk } {
                entry.write(nothing);
            }
            chunk = chunk.wrapping_add(1);
        }
    }

    unsafe fn write(&mut self, slot: Slot, entries: &Entries) -> usize {
        self.count(entries, entries.count);
        // SAFETY: the caller keeps the rules of the inner call.
        let written = unsafe { self.shown.write(slot, entries) };
        if written < entries.count {
            // A failed write stopped early, and the map fails. Entries that were not written are not counted.
            self.count(entries, written.wrapping_sub(entries.count));
        }
        written
    }
}

impl Fixmap<'_> {
    /// Adds `count` of these entries to the counters, wrapping.
    #[inline(always)]
    fn count(&self, entries: &Entries, count: usize) {
        let count = count as u64;
        self.counters.stores.add(count);
        if entries.barriers {
            self.counters.dsb.add(count);
            self.counters.isb.add(count);
        }
    }
}

/// Access to the tables in open slots, without counting.
#[derive(Clone, Copy, Debug)]
struct Shown {
    place: FixmapPlace,
    geometry: Geometry,
}

impl Shown {
    #[inline(always)]
    fn entry(&self, slot: Slot, index: usize) -> *mut u64 {
        (self.place.address(slot).0 as *mut u64).wrapping_add(index)
    }

    /// As [`FixmapSlots::load`].
    #[inline(always)]
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        // SAFETY: the caller has the slot open, so a whole table is mapped there.
        Descriptor(unsafe { self.entry(slot, index).read_volatile() })
    }

    /// As [`FixmapSlots::store`].
    #[inline(always)]
    unsafe fn store(&self, slot: Slot, index: usize, descriptor: Descriptor) {
        // SAFETY: as for `load`.
        unsafe { self.entry(slot, index).write_volatile(descriptor.0) };
    }

    /// As [`FixmapSlots::write`]. Loops over a pointer, from which the number of written entries follows. A count or an
    /// index beside it would cost one more instruction for each entry.
    #[inline(always)]
    unsafe fn write(&self, slot: Slot, entries: &Entries) -> usize {
        let start = self.entry(slot, entries.first);
        let end = start.wrapping_add(entries.count);
        let (mut entry, mut value) = (start, entries.descriptor.0);
        while entry != end {
            // SAFETY: as for `load` and `store`.
            unsafe {
                if Descriptor(entry.read_volatile()).is_valid() {
                    break;
                }
                entry.write_volatile(value);
            }
            if entries.barriers {
                publish(hw::issue);
            }
            value = value.wrapping_add(entries.step);
            entry = entry.wrapping_add(1);
        }
        (entry.addr() - start.addr()) / size_of::<u64>()
    }
}
