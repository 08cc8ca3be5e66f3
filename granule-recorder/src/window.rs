//! Recording the stores that are made through fixmap slots, by the table that they end in.
//!
//! The slots' own entries, barriers and TLBIs are not recorded here. The code that gives the slots
//! records them, by a [`Traced`](crate::Traced) round the traits that it changes the slots with.

use crate::sink::{Sink, stored};
use granule::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use granule::forward;
use granule::linear::window::{Entries, Slot, Windows};
use granule::table::{Maintenance, TableAllocator, Visibility, publish};

/// [`Windows`] whose stores are recorded.
#[derive(Debug)]
pub struct TracedWindows<W, S> {
    inner: W,
    sink: S,
    /// The table that each slot was last opened for.
    shown: [PhysicalAddress; Slot::COUNT],
}

impl<W: Windows, S: Sink> TracedWindows<W, S> {
    /// Records the stores through `inner`'s slots in `sink`.
    pub const fn new(inner: W, sink: S) -> Self {
        Self {
            inner,
            sink,
            shown: [PhysicalAddress(0); Slot::COUNT],
        }
    }

    /// Does `action` to `inner` and records it as the storing of `entries` through `slot`.
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

    #[cold]
    #[inline(never)]
    fn open_recorded(&mut self, slot: Slot, table: PhysicalAddress) {
        if let Some(shown) = self.shown.get_mut(slot.number()) {
            *shown = table;
        }
        self.inner.open(slot, table);
        let bytes = self.inner.capabilities().geometry.page_size().bytes();
        self.sink.relied(self.inner.address(slot), bytes);
    }

    /// # Safety
    ///
    /// As for [`Windows::store`].
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
            // SAFETY: the caller's promise is handed on.
            unsafe { inner.store(slot, index, descriptor) }
        });
    }

    /// # Safety
    ///
    /// As for [`Windows::zero`].
    #[cold]
    #[inline(never)]
    unsafe fn zero_recorded(&mut self, slot: Slot) {
        let entries = Entries {
            first: 0,
            count: self.inner.capabilities().geometry.page_size().entries(),
            descriptor: Descriptor::INVALID,
            step: 0,
            barriers: false,
        };
        self.record(slot, &entries, |inner| {
            // SAFETY: the caller's promise is handed on.
            unsafe { inner.zero(slot) }
        });
    }

    /// # Safety
    ///
    /// As for [`Windows::write`].
    #[cold]
    #[inline(never)]
    unsafe fn write_recorded(&mut self, slot: Slot, entries: &Entries) -> usize {
        // As many at a time as have no barrier between them.
        let together = if entries.barriers { 1 } else { entries.count };
        let mut part = Entries {
            count: together,
            barriers: false,
            ..*entries
        };
        let mut all = 0;
        for _ in 0..if entries.barriers { entries.count } else { 1 } {
            let written = self.record(slot, &part, |inner| {
                // SAFETY: the caller's promise is handed on.
                unsafe { inner.write(slot, &part) }
            });
            all += written;
            if written < together {
                return all;
            }
            if entries.barriers {
                publish(self);
            }
            part.first += together;
            part.descriptor.0 = part.descriptor.0.wrapping_add(part.step);
        }
        all
    }
}

// SAFETY: each call is passed on as it is.
unsafe impl<W: Windows, S: Sink> Windows for TracedWindows<W, S> {
    fn address(&self, slot: Slot) -> VirtualAddress {
        self.inner.address(slot)
    }

    #[inline(always)]
    fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        if self.sink.is_active() {
            self.open_recorded(slot, table);
        } else {
            self.inner.open(slot, table);
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
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.load(slot, index) }
    }

    #[inline(always)]
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        // SAFETY: the caller's promise is handed on, either way.
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
        // SAFETY: the caller's promise is handed on, either way.
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
        // SAFETY: the caller's promise is handed on, either way.
        unsafe {
            if self.sink.is_active() {
                self.write_recorded(slot, entries)
            } else {
                self.inner.write(slot, entries)
            }
        }
    }
}

// SAFETY: every call goes to the allocator.
unsafe impl<W: TableAllocator, S: Sink> TableAllocator for TracedWindows<W, S> {
    forward!(self.inner: reserve allocate free);
}

impl<W: Maintenance, S: Sink> Maintenance for TracedWindows<W, S> {
    forward!(self.inner: capabilities dsb_ishst dsb_ish isb tlbi);
}
