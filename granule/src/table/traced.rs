//! Recording what the walker does: every store, table, barrier and TLBI, in order.
//!
//! [`Traced`] wraps any of the three traits' implementations and tells a [`Sink`]. Which sink is
//! a type, so that with [`NoSink`] nothing is left of it. A sink may also be one that is on or off
//! ([`Sink::is_active`]): one instance of the walker then serves both, at the price of one look a
//! call, and a call stores a whole run of entries. What is recorded is made out of line, so that
//! the calls that are not stay small. What becomes of the events (a buffer, a file, a model) is
//! the sink's.

use super::FreedTable;
use super::allocator::{TableAllocator, TableRun};
use super::maintenance::Maintenance;
use super::memory::{BitChange, TableMemory, Visibility};
use crate::arch::tlbi::TlbiOp;
use crate::arch::{Descriptor, PhysicalAddress, Regime, VirtualAddress};
use crate::forward;

/// What the walker did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableEvent {
    /// Stored `count` descriptors from entry `first` of a table on: `descriptor`,
    /// `descriptor + step` and so on. One store where `count` is 1.
    Store {
        /// The table.
        table: PhysicalAddress,
        /// The index of the first entry.
        first: usize,
        /// How many there are, at least 1.
        count: usize,
        /// The first descriptor.
        descriptor: Descriptor,
        /// What is added, wrapping, for each entry that follows.
        step: u64,
        /// How the stores were made.
        visibility: Visibility,
    },
    /// Changed bits of those among `count` descriptors from entry `first` of a table on that the
    /// change concerns.
    Update {
        /// The table.
        table: PhysicalAddress,
        /// The index of the first entry.
        first: usize,
        /// How many there are, at least 1.
        count: usize,
        /// The change.
        change: BitChange,
        /// How the stores were made.
        visibility: Visibility,
    },
    /// Got pages for tables.
    Obtained(TableRun),
    /// Gave back one page.
    Freed(PhysicalAddress),
    /// DSB ISHST.
    DsbIshst,
    /// DSB ISH.
    DsbIsh,
    /// ISB.
    Isb,
    /// One broadcast TLBI of a regime.
    Tlbi(Regime, TlbiOp),
    /// From here on this CPU uses a range as the tables say. Whoever does so records it; the
    /// operations themselves do not know what for they are called.
    Relied {
        /// The first address.
        start: VirtualAddress,
        /// How many bytes.
        bytes: u64,
    },
}

/// Takes the events of [`Traced`].
pub trait Sink: Copy {
    /// False when events are thrown away, so that none need be made. Looked at once a call, and
    /// not to change while a wrapper has the sink.
    #[inline(always)]
    fn is_active(&self) -> bool {
        true
    }

    /// Calls `action`, which does something and records it, in one order with all other calls
    /// of any clone of this sink: what is recorded first happened first. A sink that several
    /// CPUs share holds a lock meanwhile.
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R;

    /// Takes one event. Called only from within [`atomically`](Self::atomically).
    fn record(&self, event: TableEvent);

    /// Records that `bytes` bytes from `start` are used from here on.
    #[inline(always)]
    fn relied(&self, start: VirtualAddress, bytes: u64) {
        if self.is_active() {
            self.atomically(|sink| sink.record(TableEvent::Relied { start, bytes }));
        }
    }
}

/// Throws everything away and leaves no trace of itself in the code.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl Sink for NoSink {
    #[inline(always)]
    fn is_active(&self) -> bool {
        false
    }

    #[inline(always)]
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        action(self)
    }

    #[inline(always)]
    fn record(&self, _event: TableEvent) {}
}

/// An implementation of the walker's traits whose calls are recorded.
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

    /// What is wrapped.
    pub const fn inner(&mut self) -> &mut T {
        &mut self.inner
    }
}

// What is recorded, out of line.
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
            sink.record(TableEvent::Store {
                table,
                first: index,
                count: 1,
                descriptor,
                step: 0,
                visibility,
            });
            // SAFETY: the caller's promise is handed on.
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
            sink.record(TableEvent::Store {
                table,
                first: index,
                count: 1,
                descriptor,
                step: 0,
                visibility: match visibility {
                    // Nobody else can have changed it.
                    Visibility::Private => Visibility::Private,
                    _ => Visibility::Exchange,
                },
            });
            // SAFETY: the caller's promise is handed on.
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
                sink.record(TableEvent::Store {
                    table,
                    first,
                    count,
                    descriptor,
                    step,
                    visibility,
                });
            }
            // SAFETY: the caller's promise is handed on.
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
                sink.record(TableEvent::Update {
                    table,
                    first,
                    count,
                    change,
                    visibility,
                });
            }
            // SAFETY: the caller's promise is handed on.
            unsafe { self.inner.update(table, first, count, change, visibility) }
        })
    }
}

// SAFETY: each call is passed on as it is.
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
        // SAFETY: the caller's promise is handed on, either way.
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
        // SAFETY: the caller's promise is handed on, either way.
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
        // SAFETY: the caller's promise is handed on, either way.
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
        // SAFETY: the caller's promise is handed on, either way.
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
                sink.record(TableEvent::Obtained(run));
            }
            run
        })
    }

    #[cold]
    #[inline(never)]
    fn free_recorded(&mut self, table: FreedTable) {
        self.sink.atomically(|sink| {
            // Before the page is given back: from then on someone else may get it.
            sink.record(TableEvent::Freed(table.address()));
            self.inner.free(table);
        });
    }
}

// SAFETY: each call is passed on as it is.
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

impl<T: Maintenance, S: Sink> Traced<T, S> {
    /// A barrier, then its event.
    #[cold]
    #[inline(never)]
    fn barrier_recorded(&mut self, event: TableEvent) {
        self.sink.atomically(|sink| {
            match event {
                TableEvent::DsbIshst => self.inner.dsb_ishst(),
                TableEvent::DsbIsh => self.inner.dsb_ish(),
                // There is no other.
                _ => self.inner.isb(),
            }
            sink.record(event);
        });
    }

    #[cold]
    #[inline(never)]
    fn tlbi_recorded(&mut self, op: TlbiOp) {
        self.sink.atomically(|sink| {
            let regime = self.inner.capabilities().geometry.regime();
            sink.record(TableEvent::Tlbi(regime, op));
            self.inner.tlbi(op);
        });
    }
}

impl<T: Maintenance, S: Sink> Maintenance for Traced<T, S> {
    forward!(self.inner: capabilities);

    #[inline(always)]
    fn dsb_ishst(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(TableEvent::DsbIshst);
        } else {
            self.inner.dsb_ishst();
        }
    }

    #[inline(always)]
    fn dsb_ish(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(TableEvent::DsbIsh);
        } else {
            self.inner.dsb_ish();
        }
    }

    #[inline(always)]
    fn isb(&mut self) {
        if self.sink.is_active() {
            self.barrier_recorded(TableEvent::Isb);
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
