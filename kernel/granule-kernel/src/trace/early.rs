//! Records with the MMU off.
//!
//! Addresses are physical and memory is Device memory (RPPDBS): plain volatile stores of words, no
//! atomics and no lock, on the only running CPU.

#![allow(unsafe_code, reason = "the area of the records, with the MMU off")]

use core::ops::Range;
use granule::hw::cache;
use granule_kcore::trace::area::Area;
use granule_trace::recorder::Sink;
use granule_trace::{BufferHeader, EncodedEvent, Event, RECORD_WORDS};

/// Most records before the MMU is on. The boot tables take a few hundred. Further records count as
/// lost, and make the whole trace incomplete.
const MOST_RECORDS: u64 = 4096;

/// Records into the area, or discards events if no trace is requested. This costs one compare an
/// event, in code that is not hot, instead of a second copy of the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    area: Area,
    page_bytes: u64,
}

impl Early {
    /// Begins a trace in `area`.
    ///
    /// # Safety
    ///
    /// The area must be RAM that nothing else uses, and the MMU off.
    pub(crate) unsafe fn begin(area: Area, page_bytes: u64, bbm_level: u8) -> Self {
        let early = Self { area, page_bytes };
        if !area.is_wanted() {
            return early;
        }
        // Dirty lines from earlier would be written back over the records.
        cache::clean_and_invalidate(early.written());
        let header = BufferHeader {
            page_bytes: page_bytes as u32,
            // Only the boot CPU runs this kernel.
            cpus: 1,
            bbm_level,
            complete: false,
            records: 0,
            lost: 0,
            room: BufferHeader::room_in(area.bytes),
        };
        for (index, word) in header.words().into_iter().enumerate() {
            early.put(index as u64, word);
        }
        early
    }

    /// The bytes that this recorder may write.
    fn written(&self) -> Range<u64> {
        let most = 8 * (BufferHeader::WORDS as u64 + MOST_RECORDS * RECORD_WORDS as u64);
        let bytes = if most < self.area.bytes {
            most
        } else {
            self.area.bytes
        };
        self.area.start..self.area.start + bytes
    }

    fn word(&self, index: u64) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut((self.area.start + 8 * index) as usize)
    }

    fn get(&self, index: usize) -> u64 {
        // SAFETY: a word of the header, in the area for which `begin`'s caller answers.
        unsafe { self.word(index as u64).read_volatile() }
    }

    fn put(&self, index: u64, value: u64) {
        // SAFETY: as for `get`; callers stay inside `written`.
        unsafe { self.word(index).write_volatile(value) };
    }

    /// Counts an event that is not recorded.
    fn lose(&self) {
        if self.area.is_wanted() {
            self.put(BufferHeader::LOST as u64, self.get(BufferHeader::LOST) + 1);
        }
    }

    /// Records an event.
    ///
    /// Always inlined: each caller has one kind of event, so its encoding folds. A function that
    /// encodes every kind would jump through a table, which code that runs with the MMU off must
    /// not contain.
    #[inline(always)]
    pub(crate) fn push(&self, event: Event) {
        self.put_record(EncodedEvent::new(0, event));
    }

    #[inline(never)]
    fn put_record(&self, record: EncodedEvent) {
        if !self.area.is_wanted() {
            return;
        }
        let count = self.get(BufferHeader::RECORDS);
        if count >= MOST_RECORDS || count >= self.get(BufferHeader::ROOM) {
            self.lose();
            return;
        }
        let first = BufferHeader::WORDS as u64 + count * RECORD_WORDS as u64;
        for (index, word) in record.0.into_iter().enumerate() {
            self.put(first + index as u64, word);
        }
        self.put(BufferHeader::RECORDS as u64, count + 1);
    }

    /// Drops the cache lines of the range that was written past the caches, before the area is used
    /// through them.
    pub(crate) fn end(&self) {
        if self.area.is_wanted() {
            // SAFETY: the range is whole lines of the area, cleaned by `begin` and only written
            // past the caches since, so no line is dirty.
            unsafe { cache::invalidate(self.written()) };
        }
    }
}

impl Sink for Early {
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        action(self)
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    #[inline(always)]
    fn record(&self, event: Event) {
        self.push(event);
    }
}
