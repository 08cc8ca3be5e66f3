//! The destination of recorded events, and the encoding of stores to tables as events.

use crate::Event;
use granule::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use granule::table::Visibility;

/// Takes the events of [`Traced`](super::Traced) and [`TracedFixmap`](super::TracedFixmap).
pub trait Sink: Copy {
    /// Whether descriptors that hardware may have changed are recorded as they are found, for
    /// tables of CPUs with TCR.HA or TCR.HD. Loads are the hottest operation, so the answer is a
    /// constant.
    const LOADS: bool = false;

    /// False if the sink discards events, so that none need be made. Wrappers test it once per
    /// call. The answer must not change while a wrapper has the sink.
    #[inline(always)]
    fn is_active(&self) -> bool {
        true
    }

    /// The size of a table page in bytes, for the events of obtained and freed tables.
    fn page_bytes(&self) -> u64;

    /// Calls `action`, which performs and records an operation, in one total order with all other
    /// calls of any clone of this sink: events are recorded in the order in which they happened. A
    /// sink that several CPUs share holds a lock during the call, so `action` must call nothing
    /// that might record in its turn: only single stores, barriers and TLBIs, never an allocator.
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R;

    /// Takes one event. Only code inside [`atomically`](Self::atomically) calls this.
    fn record(&self, event: Event);

    /// Records that the CPU uses `bytes` bytes from `start` as the tables map them from now on. The
    /// caller of an operation on tables records this, because the operation itself has no
    /// information about its purpose.
    #[inline(always)]
    fn assume_visible(&self, start: VirtualAddress, bytes: u64) {
        self.assume(start, bytes, None);
    }

    /// Records that programs of an address space use `bytes` bytes from `start` as the tables map them
    /// from now on, whichever CPU they run on.
    #[inline(always)]
    fn assume_visible_in(&self, asid: u16, start: VirtualAddress, bytes: u64) {
        self.assume(start, bytes, Some(asid));
    }

    #[doc(hidden)]
    #[inline(always)]
    fn assume(&self, start: VirtualAddress, bytes: u64, asid: Option<u16>) {
        if self.is_active() {
            let start = start.0;
            self.atomically(|sink| sink.record(Event::AssumeVisible { start, bytes, asid }));
        }
    }
}

/// Discards every event; wrappers with this sink contain no recording code.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl Sink for NoSink {
    #[inline(always)]
    fn is_active(&self) -> bool {
        false
    }

    #[inline(always)]
    fn page_bytes(&self) -> u64 {
        0
    }

    #[inline(always)]
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        action(self)
    }

    #[inline(always)]
    fn record(&self, _event: Event) {}
}

pub(crate) const fn entry(table: PhysicalAddress, index: usize) -> u64 {
    table.0.wrapping_add(8 * index as u64)
}

/// Converts the walker's visibility to the event's.
pub(crate) const fn seen_by(visibility: Visibility) -> crate::Visibility {
    match visibility {
        Visibility::Private => crate::Visibility::Private,
        Visibility::Live => crate::Visibility::Live,
        Visibility::Publish => crate::Visibility::Publish,
        // A visibility that the walker gains later is recorded as the strongest order.
        _ => crate::Visibility::Exchange,
    }
}

/// The event of `count` stores from entry `first` of a table on.
pub(crate) const fn stored(
    table: PhysicalAddress,
    first: usize,
    count: usize,
    descriptor: Descriptor,
    step: u64,
    visibility: Visibility,
) -> Event {
    Event::Store {
        address: entry(table, first),
        count: count as u32,
        descriptor: descriptor.0,
        step,
        visibility: seen_by(visibility),
    }
}
