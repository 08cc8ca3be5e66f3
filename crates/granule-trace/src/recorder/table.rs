//! Recording of calls to the environment of page tables.

#![allow(unsafe_code, reason = "hands on the promises of the trait")]

use super::sink::{Sink, entry, seen_by, stored};
use crate::{Barrier, Event, System};
use granule::arch::{Descriptor, PhysicalAddress};
use granule::forward;
use granule::table::{BitChange, FreedTable, Maintenance, TableEnvironment, TableRun, Visibility};

/// An environment of page tables, with recorded calls.
#[derive(Clone, Copy, Debug)]
pub struct Traced<T, S> {
    recorded: Recorded<T, S>,
}

impl<T, S: Sink> Traced<T, S> {
    /// Records the calls to `inner` in `sink`.
    pub const fn new(inner: T, sink: S) -> Self {
        Self {
            recorded: Recorded { inner, sink },
        }
    }

    /// The wrapped environment.
    pub const fn inner(&self) -> &T {
        &self.recorded.inner
    }

    /// The wrapped environment, for calls that are not recorded.
    pub const fn inner_mut(&mut self) -> &mut T {
        &mut self.recorded.inner
    }
}

// SAFETY: each call is forwarded unchanged to `inner`, recorded or not, and `inner` keeps the
// contract.
unsafe impl<T: TableEnvironment, S: Sink> TableEnvironment for Traced<T, S> {
    // `update_alike` is recorded as the update that it makes.
    const BY_POINTER: bool = false;

    forward!(self.recorded.inner: reach find_unlike pages reserve capabilities);
    forward!(
        self.recorded.inner unless S::LOADS && self.recorded.sink.is_active(),
        then self.recorded: load
    );
    forward!(
        self.recorded.inner unless self.recorded.sink.is_active(),
        then self.recorded: store exchange fill update
    );
    forward!(
        self.recorded.inner unless self.recorded.sink.is_active(),
        then self.recorded: allocate allocate_run allocate_aligned free invalidate
    );
}

/// Records a descriptor that hardware may have changed since it was stored. Left out are those that
/// hardware leaves alone: table descriptors, leaves without the access flag, and global leaves whose
/// dirty state it does not manage, since only software sets the flag of those.
fn record_found(sink: &impl Sink, table: PhysicalAddress, index: usize, found: Descriptor) {
    const MARKED: u64 = Descriptor::VALID | Descriptor::ACCESS_FLAG;
    let managed = Descriptor::DIRTY_MODIFIER | Descriptor::NOT_GLOBAL;
    if found.0 & MARKED == MARKED && found.0 & managed != 0 {
        sink.record(Event::Found {
            address: entry(table, index),
            descriptor: found.0,
        });
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
        change: crate::BitChange {
            of: change.of,
            clear: change.clear,
            set: change.set,
        },
        visibility: seen_by(visibility),
    }
}

/// [`Traced`] while its sink is active: every call that has an event is recorded, out of line.
#[derive(Clone, Copy, Debug)]
struct Recorded<T, S> {
    inner: T,
    sink: S,
}

impl<T, S: Sink> Recorded<T, S> {
    /// Records tables that were allocated.
    fn obtained(&self, first: PhysicalAddress, count: usize) {
        self.sink.atomically(|sink| {
            sink.record(Event::Obtained {
                start: first.0,
                bytes: sink.page_bytes().wrapping_mul(count as u64),
            });
        });
    }
}

// The functions of pages run outside of the sink's one order, since they may change tables themselves,
// through a wrapper with the same sink: a kernel with `debug_pagealloc` makes a page valid when it gives
// the page out. A page belongs to one caller from its allocation until it is freed, so its two events
// stand in the right order without that.
//
// SAFETY: each call is forwarded unchanged to `inner`, which keeps the contract.
unsafe impl<T: TableEnvironment, S: Sink> TableEnvironment for Recorded<T, S> {
    const BY_POINTER: bool = false;

    forward!(self.inner: reach find_unlike pages reserve capabilities);

    #[cold]
    #[inline(never)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        self.sink.atomically(|sink| {
            // SAFETY: the caller vouches for `load`.
            let found = unsafe { self.inner.load(table, index) };
            record_found(sink, table, index, found);
            found
        })
    }

    #[cold]
    #[inline(never)]
    unsafe fn store(
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

    #[cold]
    #[inline(never)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        self.sink.atomically(|sink| {
            let noted = match visibility {
                // No other code can have changed a private entry.
                Visibility::Private => Visibility::Private,
                // A trace has one word for a store. The release is what a link is judged by.
                Visibility::Publish => Visibility::Publish,
                _ => Visibility::Exchange,
            };
            // SAFETY: the caller vouches for `exchange`.
            let found = unsafe { self.inner.exchange(table, index, descriptor, visibility) };
            if S::LOADS {
                record_found(sink, table, index, found);
            }
            sink.record(stored(table, index, 1, descriptor, 0, noted));
            found
        })
    }

    #[cold]
    #[inline(never)]
    unsafe fn fill(
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

    #[cold]
    #[inline(never)]
    unsafe fn update(
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

    #[cold]
    #[inline(never)]
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        let table = self.inner.allocate()?;
        self.obtained(table, 1);
        Some(table)
    }

    #[cold]
    #[inline(never)]
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate_run(most)?;
        self.obtained(run.first, run.count);
        Some(run)
    }

    #[cold]
    #[inline(never)]
    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        let first = self.inner.allocate_aligned(count)?;
        self.obtained(first, count);
        Some(first)
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self, table: FreedTable) {
        // The event comes first: once freed, the page may be allocated again at any time.
        self.sink.atomically(|sink| {
            sink.record(Event::Freed {
                start: table.address().0,
                bytes: sink.page_bytes(),
            });
        });
        self.inner.free(table);
    }

    #[cold]
    #[inline(never)]
    fn invalidate(&mut self, instruction: Maintenance) {
        self.sink.atomically(|sink| match instruction {
            Maintenance::Tlbi(regime, op) => {
                let (encoding, operand) = op.instruction(regime);
                sink.record(Event::System(System(encoding), operand));
                self.inner.invalidate(instruction);
            }
            // A barrier is recorded behind itself.
            barrier => {
                self.inner.invalidate(barrier);
                sink.record(Event::Barrier(match barrier {
                    Maintenance::DsbIshst => Barrier::DSB_ISHST,
                    Maintenance::DsbIsh => Barrier::DSB_ISH,
                    _ => Barrier::ISB,
                }));
            }
        });
    }
}
