//! Recording of stores through fixmap slots, as stores to the tables that the slots map.
//!
//! The slots' own entries, barriers and TLBIs are not recorded here. The code that implements the
//! slots records them with a [`Traced`](super::Traced) around the environment that changes the slots.

#![allow(unsafe_code, reason = "hands on the promises of the trait")]

use super::sink::{Sink, stored};
use granule::arch::{Descriptor, Geometry, PhysicalAddress, VirtualAddress};
use granule::linear::fixmap::{Entries, FixmapSlots, Slot};
use granule::table::{Maintenance, Reservation, TablePages, Visibility, publish};

/// [`FixmapSlots`] with recorded stores.
#[derive(Debug)]
pub struct TracedFixmap<W, S> {
    inner: W,
    sink: S,
    /// The table for which each slot was last opened.
    shown: [PhysicalAddress; Slot::COUNT],
}

impl<W: FixmapSlots, S: Sink> TracedFixmap<W, S> {
    /// Records the stores through `inner`'s slots in `sink`.
    pub const fn new(inner: W, sink: S) -> Self {
        Self {
            inner,
            sink,
            shown: [PhysicalAddress(0); Slot::COUNT],
        }
    }

    /// Calls `action` on `inner` and records it as a store of `entries` through `slot`.
    fn record<R>(&mut self, slot: Slot, entries: &Entries, action: impl FnOnce(&mut W) -> R) -> R {
        let table = self.shown.get(slot.number()).copied();
        self.sink.atomically(|sink| {
            if let Some(table) = table.filter(|_| entries.count > 0) {
                sink.record(stored(
                    table,
                    entries.first,
                    entries.count,
                    entries.descriptor,
                    entries.step,
                    Visibility::Live,
                ));
            }
            action(&mut self.inner)
        })
    }

    /// # Safety
    ///
    /// As for [`FixmapSlots::open`].
    #[cold]
    #[inline(never)]
    unsafe fn open_recorded(&mut self, slot: Slot, table: PhysicalAddress) {
        if let Some(shown) = self.shown.get_mut(slot.number()) {
            *shown = table;
        }
        // SAFETY: the caller vouches for `open`.
        unsafe { self.inner.open(slot, table) };
        let bytes = self.inner.geometry().page_size().bytes();
        self.sink.assume_visible(self.inner.address(slot), bytes);
    }

    /// # Safety
    ///
    /// As for [`FixmapSlots::store`].
    #[cold]
    #[inline(never)]
    unsafe fn store_recorded(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        let entries = Entries {
            first: index,
            count: 1,
            descriptor,
            step: 0,
            barriers: false,
        };
        self.record(slot, &entries, |inner| {
            // SAFETY: the caller vouches for `store`.
            unsafe { inner.store(slot, index, descriptor) }
        });
    }

    /// # Safety
    ///
    /// As for [`FixmapSlots::zero`].
    #[cold]
    #[inline(never)]
    unsafe fn zero_recorded(&mut self, slot: Slot) {
        let entries = Entries {
            first: 0,
            count: self.inner.geometry().page_size().entries(),
            descriptor: Descriptor::INVALID,
            step: 0,
            barriers: false,
        };
        self.record(slot, &entries, |inner| {
            // SAFETY: the caller vouches for `zero`.
            unsafe { inner.zero(slot) }
        });
    }

    /// # Safety
    ///
    /// As for [`FixmapSlots::write`].
    #[cold]
    #[inline(never)]
    unsafe fn write_recorded(&mut self, slot: Slot, entries: &Entries) -> usize {
        // One event covers as many entries as have no barrier between them.
        let together = if entries.barriers { 1 } else { entries.count };
        let mut part = Entries {
            count: together,
            barriers: false,
            ..*entries
        };
        let mut all = 0;
        for _ in 0..if entries.barriers { entries.count } else { 1 } {
            let written = self.record(slot, &part, |inner| {
                // SAFETY: the caller vouches for `write`.
                unsafe { inner.write(slot, &part) }
            });
            all += written;
            if written < together {
                return all;
            }
            if entries.barriers {
                publish(|instruction| self.issue(instruction));
            }
            part.first += together;
            part.descriptor.0 = part.descriptor.0.wrapping_add(part.step);
        }
        all
    }
}

// SAFETY: each call is forwarded unchanged to `inner`, which keeps the contract.
unsafe impl<W: FixmapSlots, S: Sink> FixmapSlots for TracedFixmap<W, S> {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn pages(&self) -> Option<TablePages> {
        self.inner.pages()
    }

    #[inline(always)]
    fn reserve(&mut self, tables: usize) -> Reservation {
        self.inner.reserve(tables)
    }

    #[inline(always)]
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.inner.allocate()
    }

    #[inline(always)]
    fn issue(&mut self, instruction: Maintenance) {
        self.inner.issue(instruction);
    }

    fn address(&self, slot: Slot) -> VirtualAddress {
        self.inner.address(slot)
    }

    #[inline(always)]
    unsafe fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.open_recorded(slot, table);
            } else {
                self.inner.open(slot, table);
            }
        }
    }

    #[inline(always)]
    fn close(&mut self, slot: Slot) {
        self.inner.close(slot);
    }

    #[inline(always)]
    fn close_series(&mut self, count: usize) {
        self.inner.close_series(count);
    }

    #[inline(always)]
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        // SAFETY: the caller vouches for `load`.
        unsafe { self.inner.load(slot, index) }
    }

    #[inline(always)]
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.store_recorded(slot, index, descriptor);
            } else {
                self.inner.store(slot, index, descriptor);
            }
        }
    }

    #[inline(always)]
    unsafe fn zero(&mut self, slot: Slot) {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.zero_recorded(slot);
            } else {
                self.inner.zero(slot);
            }
        }
    }

    #[inline(always)]
    unsafe fn write(&mut self, slot: Slot, entries: &Entries) -> usize {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.write_recorded(slot, entries)
            } else {
                self.inner.write(slot, entries)
            }
        }
    }
}
