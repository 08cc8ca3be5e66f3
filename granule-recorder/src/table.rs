//! Recording of calls to the three traits beneath page tables.

use crate::sink::{Sink, entry, seen_by, stored};
use granule::arch::tlbi::TlbiOp;
use granule::arch::{Descriptor, PhysicalAddress};
use granule::forward;
use granule::linear::direct::{Arena, HasArena};
use granule::table::{
    BitChange, FreedTable, TableAllocator, TableMemory, TableRun, TlbOps, Visibility,
};
use granule_trace::{Barrier, Event, System};

/// An implementation of the walker's traits, with recorded calls.
#[derive(Clone, Copy, Debug)]
pub struct Traced<T, S> {
    inner: T,
    sink: S,
}

impl<T, S: Sink> Traced<T, S> {
    /// Records the calls to `inner` in `sink`.
    pub const fn new(inner: T, sink: S) -> Self {
        Self { inner, sink }
    }

    /// The wrapped implementation.
    pub const fn inner(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The event of an update of `count` entries of a table.
const fn updated(
    table: PhysicalAddress,
    first: usize,
    count: usize,
    change: BitChange,
    visibility: Visibility,
) -> Event {
    Event::Update {
        address: entry(table, first),
        count: count as u32,
        change: granule_trace::BitChange {
            of: change.of,
            clear: change.clear,
            set: change.set,
        },
        visibility: seen_by(visibility),
    }
}

impl<T: HasArena, S: Sink> HasArena for Traced<T, S> {
    fn arena(&mut self) -> Option<&mut Arena> {
        self.inner.arena()
    }
}

// The recording paths, kept out of line.
impl<T: TableMemory, S: Sink> Traced<T, S> {
    /// # Safety
    ///
    /// As for [`TableMemory::store`].
    #[cold]
    #[inline(never)]
    unsafe fn store_recorded(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        self.sink.atomically(|sink| {
            sink.record(stored(table, index, 1, descriptor, 0, visibility));
            // SAFETY: the caller vouches for `store`.
            unsafe { self.inner.store(table, index, descriptor, visibility) }
        });
    }

    /// # Safety
    ///
    /// As for [`TableMemory::exchange`].
    #[cold]
    #[inline(never)]
    unsafe fn exchange_recorded(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        self.sink.atomically(|sink| {
            let told = match visibility {
                // No other code can have changed a private entry.
                Visibility::Private => Visibility::Private,
                _ => Visibility::Exchange,
            };
            sink.record(stored(table, index, 1, descriptor, 0, told));
            // SAFETY: the caller vouches for `exchange`.
            unsafe { self.inner.exchange(table, index, descriptor, visibility) }
        })
    }

    /// # Safety
    ///
    /// As for [`TableMemory::fill`].
    #[cold]
    #[inline(never)]
    unsafe fn fill_recorded(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        self.sink.atomically(|sink| {
            if count > 0 {
                sink.record(stored(table, first, count, descriptor, step, visibility));
            }
            // SAFETY: the caller vouches for `fill`.
            unsafe {
                self.inner
                    .fill(table, first, count, descriptor, step, visibility)
            }
        });
    }

    /// # Safety
    ///
    /// As for [`TableMemory::update`].
    #[cold]
    #[inline(never)]
    unsafe fn update_recorded(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        self.sink.atomically(|sink| {
            if count > 0 {
                sink.record(updated(table, first, count, change, visibility));
            }
            // SAFETY: the caller vouches for `update`.
            unsafe { self.inner.update(table, first, count, change, visibility) }
        })
    }
}

// SAFETY: each call is forwarded unchanged to `inner`, which keeps the contract.
unsafe impl<T: TableMemory, S: Sink> TableMemory for Traced<T, S> {
    forward!(self.inner: load find_mapped);

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.store_recorded(table, index, descriptor, visibility);
            } else {
                self.inner.store(table, index, descriptor, visibility);
            }
        }
    }

    #[inline(always)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.exchange_recorded(table, index, descriptor, visibility)
            } else {
                self.inner.exchange(table, index, descriptor, visibility)
            }
        }
    }

    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.fill_recorded(table, first, count, descriptor, step, visibility);
            } else {
                self.inner
                    .fill(table, first, count, descriptor, step, visibility);
            }
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller vouches for the call, recorded or not.
        unsafe {
            if self.sink.is_active() {
                self.update_recorded(table, first, count, change, visibility)
            } else {
                self.inner.update(table, first, count, change, visibility)
            }
        }
    }
}

impl<T: TableAllocator, S: Sink> Traced<T, S> {
    #[cold]
    #[inline(never)]
    fn allocate_recorded(&mut self, most: usize) -> Option<TableRun> {
        self.sink.atomically(|sink| {
            let run = self.inner.allocate(most);
            if let Some(run) = run {
                sink.record(Event::Obtained {
                    start: run.first.0,
                    bytes: sink.page_bytes().wrapping_mul(run.count as u64),
                });
            }
            run
        })
    }

    #[cold]
    #[inline(never)]
    fn free_recorded(&mut self, table: FreedTable) {
        self.sink.atomically(|sink| {
            // The event comes first: once freed, the page may be allocated again at any time.
            sink.record(Event::Freed {
                start: table.address().0,
                bytes: sink.page_bytes(),
            });
            self.inner.free(table);
        });
    }
}

// SAFETY: each call is forwarded unchanged to `inner`, which keeps the contract.
unsafe impl<T: TableAllocator, S: Sink> TableAllocator for Traced<T, S> {
    forward!(self.inner: reserve);

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        if self.sink.is_active() {
            self.allocate_recorded(most)
        } else {
            self.inner.allocate(most)
        }
    }

    #[inline(always)]
    fn free(&mut self, table: FreedTable) {
        if self.sink.is_active() {
            self.free_recorded(table);
        } else {
            self.inner.free(table);
        }
    }
}

impl<T: TlbOps, S: Sink> Traced<T, S> {
    /// Issues a barrier, then records it.
    #[cold]
    #[inline(never)]
    fn barrier_recorded(&mut self, barrier: Barrier, issue: impl FnOnce(&mut T)) {
        self.sink.atomically(|sink| {
            issue(&mut self.inner);
            sink.record(Event::Barrier(barrier));
        });
    }

    #[cold]
    #[inline(never)]
    fn tlbi_recorded(&mut self, op: TlbiOp) {
        self.sink.atomically(|sink| {
            let regime = self.inner.capabilities().geometry.regime();
            let (encoding, operand) = op.instruction(regime);
            sink.record(Event::System(System(encoding), operand));
            self.inner.tlbi(op);
        });
    }
}

impl<T: TlbOps, S: Sink> TlbOps for Traced<T, S> {
    forward!(self.inner: capabilities);

    #[inline(always)]
    fn dsb_ishst(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(Barrier::DSB_ISHST, T::dsb_ishst);
        } else {
            self.inner.dsb_ishst();
        }
    }

    #[inline(always)]
    fn dsb_ish(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(Barrier::DSB_ISH, T::dsb_ish);
        } else {
            self.inner.dsb_ish();
        }
    }

    #[inline(always)]
    fn isb(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(Barrier::ISB, T::isb);
        } else {
            self.inner.isb();
        }
    }

    #[inline(always)]
    fn tlbi(&mut self, op: TlbiOp) {
        if self.sink.is_active() {
            self.tlbi_recorded(op);
        } else {
            self.inner.tlbi(op);
        }
    }
}
