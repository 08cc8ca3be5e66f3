//! Fixmap slots: pages of address space that each map one table at a time.
//!
//! This module defines a slot and the operations on it. The builder decides the order in which
//! tables are mapped. The kernel places the slots and owns the table that translates them.

use crate::arch::page_size::Level;
use crate::arch::{Descriptor, Geometry, PhysicalAddress, VirtualAddress};
use crate::table::{Maintenance, Reservation, TablePages, publish};

/// A page of address space through which a table is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Slot {
    /// The slot for tables of this level.
    Level(Level),
    /// One of a series of slots for last-level tables: 0 to [`SERIES`](Self::SERIES) - 1. Their
    /// pages are adjacent, so that one invalidation covers all of them.
    Series(usize),
}

impl Slot {
    /// The number of slots in the series, as published.
    pub const SERIES: usize = 16;
    /// The number of slots.
    pub const COUNT: usize = Level::ALL.len() + Self::SERIES;

    /// The slot's index: 0 to [`COUNT`](Self::COUNT) - 1, the slots of the levels first.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::Level(level) => (level.number() + 1) as usize,
            Self::Series(index) => Level::ALL.len() + index % Self::SERIES,
        }
    }
}

/// A run of entries of one table, written in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The index of the first entry.
    pub first: usize,
    /// The number of entries.
    pub count: usize,
    /// The first descriptor.
    pub descriptor: Descriptor,
    /// The number added to the descriptor for each next entry.
    pub step: u64,
    /// Whether each entry gets its own DSB and ISB.
    pub barriers: bool,
}

/// Fixmap slots that each map one table.
///
/// # Safety
///
/// From [`open`](Self::open) until [`close`](Self::close) or [`close_series`](Self::close_series),
/// the slot's loads and stores must reach exactly the table it was opened for. Allocated pages are as
/// [`TableEnvironment`](crate::table::TableEnvironment) requires.
/// [`geometry`](Self::geometry) always returns the same.
pub unsafe trait FixmapSlots {
    /// The geometry of the tables that the slots map, and that translate the slots.
    fn geometry(&self) -> &Geometry;

    /// As [`TableEnvironment::pages`](crate::table::TableEnvironment::pages).
    fn pages(&self) -> Option<TablePages>;

    /// As [`TableEnvironment::reserve`](crate::table::TableEnvironment::reserve). It grants or refuses.
    fn reserve(&mut self, tables: usize) -> Reservation;

    /// As [`TableEnvironment::allocate`](crate::table::TableEnvironment::allocate).
    fn allocate(&mut self) -> Option<PhysicalAddress>;

    /// Issues one instruction.
    fn issue(&mut self, instruction: Maintenance);

    /// The virtual address of `slot`.
    fn address(&self, slot: Slot) -> VirtualAddress;

    /// Maps `table` in the empty `slot`, with the barriers that make the mapping usable.
    ///
    /// A slot in use would change its output without break-before-make (RWHZWS), and a CPU could then
    /// access memory that is neither table:
    ///
    /// ```compile_fail,E0133
    /// use granule::arch::PhysicalAddress;
    /// use granule::linear::fixmap::{FixmapSlots, Slot};
    ///
    /// fn over(slots: &mut impl FixmapSlots, first: PhysicalAddress, second: PhysicalAddress) {
    ///     slots.open(Slot::Series(0), first);
    ///     slots.open(Slot::Series(0), second);
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// The slot was never opened, or was closed since. `table` is a page that nothing uses but as a
    /// table, until the slot is closed.
    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress);

    /// Unmaps the slot and invalidates the TLB for it, completely.
    fn close(&mut self, slot: Slot);

    /// Unmaps the first `count` slots of the series, then invalidates the TLB for all of them with
    /// one wait.
    fn close_series(&mut self, count: usize);

    /// Loads an entry of the table in `slot`.
    ///
    /// # Safety
    ///
    /// The slot must be open, and `index` must lie inside a table.
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor;

    /// Stores an entry of the table in `slot`.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and the caller must be the only writer of the table.
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor);

    /// Makes all entries of the table in `slot` invalid.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for every entry.
    unsafe fn zero(&mut self, slot: Slot) {
        for index in 0..self.geometry().page_size().entries() {
            // SAFETY: the caller vouches for every entry.
            unsafe { self.store(slot, index, Descriptor::INVALID) };
        }
    }

    /// Writes entries, each after checking that the old one is invalid. At the first valid entry it
    /// stops. Returns the number of entries written.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each entry.
    #[inline(always)]
    unsafe fn write(&mut self, slot: Slot, entries: &Entries) -> usize
    where
        Self: Sized,
    {
        let mut descriptor = entries.descriptor;
        let mut index = entries.first;
        let end = entries.first + entries.count;
        while index < end {
            // SAFETY: the caller vouches for each entry.
            unsafe {
                if self.load(slot, index).is_valid() {
                    break;
                }
                self.store(slot, index, descriptor);
            }
            if entries.barriers {
                publish(|instruction| self.issue(instruction));
            }
            descriptor.0 = descriptor.0.wrapping_add(entries.step);
            index += 1;
        }
        index - entries.first
    }
}
