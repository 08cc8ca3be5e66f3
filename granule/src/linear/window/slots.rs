//! Slots of the fixmap: pages of address space that each show one table at a time.
//!
//! What a slot is and what can be done with one; in which order tables are shown is the
//! builder's. Where the slots lie, and the table that translates them, are the kernel's.

use crate::arch::page_size::Level;
use crate::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use crate::table::{Maintenance, publish};

/// A page of address space through which a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Slot {
    /// The one for tables of this level.
    Level(Level),
    /// One of a series for last-level tables, whose pages follow each other so that one
    /// invalidation reaches all of them: 0 to [`SERIES`](Self::SERIES) - 1.
    Series(usize),
}

impl Slot {
    /// How many slots the series has: as many as were published.
    pub const SERIES: usize = 16;
    /// How many slots there are.
    pub const COUNT: usize = Level::ALL.len() + Self::SERIES;

    /// The slot's number among all: 0 to [`COUNT`](Self::COUNT) - 1, those of the levels first.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::Level(level) => (level.number() + 1) as usize,
            Self::Series(index) => Level::ALL.len() + index % Self::SERIES,
        }
    }
}

/// Entries of one table that follow each other and are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The index of the first.
    pub first: usize,
    /// How many there are.
    pub count: usize,
    /// The first descriptor.
    pub descriptor: Descriptor,
    /// What is added for each that follows.
    pub step: u64,
    /// Whether each gets a DSB and an ISB of its own.
    pub barriers: bool,
}

/// Slots that show a table each.
///
/// # Safety
///
/// From [`open`](Self::open) until [`close`](Self::close) or
/// [`close_series`](Self::close_series) the slot's loads and stores must reach exactly the table
/// it was opened for.
pub unsafe trait Windows: Maintenance {
    /// The first address of what `slot` shows.
    fn address(&self, slot: Slot) -> VirtualAddress;

    /// Shows `table` in `slot`, which shows nothing, with the barriers that make it usable.
    fn open(&mut self, slot: Slot, table: PhysicalAddress);

    /// Takes the slot's mapping away and invalidates the TLB for it, completely.
    fn close(&mut self, slot: Slot);

    /// Takes away the mappings of the first `count` slots of the series and then invalidates the
    /// TLB for all of them, waiting once.
    fn close_series(&mut self, count: usize);

    /// Loads an entry of the table that `slot` shows.
    ///
    /// # Safety
    ///
    /// The slot must be open and `index` inside a table.
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor;

    /// Stores an entry of the table that `slot` shows.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and nobody else writes the table.
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor);

    /// Makes all entries of the table that `slot` shows invalid.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for every entry.
    unsafe fn zero(&mut self, slot: Slot) {
        let entries = self.capabilities().geometry.page_size().entries();
        for index in 0..entries {
            // SAFETY: the caller vouches for every entry.
            unsafe { self.store(slot, index, Descriptor::INVALID) };
        }
    }

    /// Writes entries, looking at each before it is written, and says how many it wrote: fewer
    /// than there are, with nothing further written, where one is valid already.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
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
                publish(self);
            }
            descriptor.0 = descriptor.0.wrapping_add(entries.step);
            index += 1;
        }
        index - entries.first
    }
}
