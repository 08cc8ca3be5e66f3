//! Recording the stores that are made through slots, by the table they end in.
//!
//! The slots' own entries, barriers and TLBIs are not recorded here: what `inner` makes them with
//! is wrapped in [`Traced`](crate::table::Traced) by who makes it.

use super::window::{Slot, Windows};
use crate::arch::page_size::Level;
use crate::arch::tlbi::{TlbCapabilities, TlbiOp};
use crate::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use crate::table::{Maintenance, Sink, TableAllocator, TableEvent, TableRun, Visibility};

/// [`Windows`] whose stores are recorded.
#[derive(Debug)]
pub struct TracedWindows<W, S> {
    inner: W,
    sink: S,
    /// Where a slot is in the address space, and its bytes.
    place: fn(Slot) -> VirtualAddress,
    bytes: u64,
    /// The table that each level's slot was last opened for.
    shown: [PhysicalAddress; Level::ALL.len()],
}

impl<W, S: Sink> TracedWindows<W, S> {
    /// Records the stores through `inner`'s slots in `sink`. A slot shows `bytes` bytes at what
    /// `place` says.
    pub const fn new(inner: W, sink: S, place: fn(Slot) -> VirtualAddress, bytes: u64) -> Self {
        Self {
            inner,
            sink,
            place,
            bytes,
            shown: [PhysicalAddress(0); Level::ALL.len()],
        }
    }

    const fn number(slot: Slot) -> usize {
        (slot.0.number() + 1) as usize
    }
}

// SAFETY: each call is passed on as it is.
unsafe impl<W: Windows, S: Sink> Windows for TracedWindows<W, S> {
    #[inline(always)]
    fn open(&mut self, slot: Slot, table: PhysicalAddress) {
        if S::ACTIVE
            && let Some(shown) = self.shown.get_mut(Self::number(slot))
        {
            *shown = table;
        }
        self.inner.open(slot, table);
        self.sink.relied((self.place)(slot), self.bytes);
    }

    #[inline(always)]
    fn close(&mut self, slot: Slot) {
        self.inner.close(slot);
    }

    #[inline(always)]
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.load(slot, index) }
    }

    #[inline(always)]
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor) {
        if !S::ACTIVE {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.inner.store(slot, index, descriptor) };
        }
        self.sink.atomically(|sink| {
            if let Some(&table) = self.shown.get(Self::number(slot)) {
                sink.record(TableEvent::Store {
                    table,
                    first: index,
                    count: 1,
                    descriptor,
                    step: 0,
                    visibility: Visibility::Live,
                });
            }
            // SAFETY: the caller's promise is handed on.
            unsafe { self.inner.store(slot, index, descriptor) };
        });
    }
}

// SAFETY: every call goes to the allocator.
unsafe impl<W: TableAllocator, S: Sink> TableAllocator for TracedWindows<W, S> {
    #[inline(always)]
    fn reserve(&mut self, tables: usize) -> bool {
        self.inner.reserve(tables)
    }

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        self.inner.allocate(most)
    }

    #[inline(always)]
    fn free(&mut self, table: PhysicalAddress) {
        self.inner.free(table);
    }
}

impl<W: Maintenance, S: Sink> Maintenance for TracedWindows<W, S> {
    fn capabilities(&self) -> &TlbCapabilities {
        self.inner.capabilities()
    }

    #[inline(always)]
    fn dsb_ishst(&mut self) {
        self.inner.dsb_ishst();
    }

    #[inline(always)]
    fn dsb_ish(&mut self) {
        self.inner.dsb_ish();
    }

    #[inline(always)]
    fn isb(&mut self) {
        self.inner.isb();
    }

    #[inline(always)]
    fn tlbi(&mut self, op: TlbiOp) {
        self.inner.tlbi(op);
    }
}
