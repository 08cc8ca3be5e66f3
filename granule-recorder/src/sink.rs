//! Where recorded events go, and the events of stores to tables.

use granule::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use granule::table::Visibility;
use granule_trace::Event;

/// Takes the events of [`Traced`](crate::Traced) and [`TracedWindows`](crate::TracedWindows).
pub trait Sink: Copy {
    /// False when events are thrown away, so that none need be made. Looked at once a call, and
    /// not to change while a wrapper has the sink.
    #[inline(always)]
    fn is_active(&self) -> bool {
        true
    }

    /// The bytes of a table page, which the events of obtained and freed tables state.
    fn page_bytes(&self) -> u64;

    /// Calls `action`, which does something and records it, in one order with all other calls
    /// of any clone of this sink: what is recorded first happened first. A sink that several
    /// CPUs share holds a lock meanwhile.
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R;

    /// Takes one event. Called only from within [`atomically`](Self::atomically).
    fn record(&self, event: Event);

    /// Records that `bytes` bytes from `start` are used as the tables say from here on. The
    /// caller of an operation on tables records this; the operation does not know its purpose.
    #[inline(always)]
    fn relied(&self, start: VirtualAddress, bytes: u64) {
        if self.is_active() {
            let start = start.0;
            self.atomically(|sink| sink.record(Event::Relied { start, bytes }));
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

/// The physical address of an entry of a table.
pub(crate) const fn entry(table: PhysicalAddress, index: usize) -> u64 {
    table.0.wrapping_add(8 * index as u64)
}

/// The event's word for the walker's.
pub(crate) const fn seen_by(visibility: Visibility) -> granule_trace::Visibility {
    match visibility {
        Visibility::Private => granule_trace::Visibility::Private,
        Visibility::Live => granule_trace::Visibility::Live,
        Visibility::Publish => granule_trace::Visibility::Publish,
        // The strongest order, for one that the walker may have one day.
        _ => granule_trace::Visibility::Exchange,
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
