//! Records with the MMU on, through the area's mapping, by all CPUs in one order.
//!
//! A CPU that is off the kernel's tables cannot access the records or hold their lock.
//! [`bring_up`](super::bring_up) records its actions.

#![allow(unsafe_code, reason = "the area of the records")]

use crate::lock::RawMaskedLock;
use crate::percpu;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use granule::hw::cache;
use granule_kcore::layout;
use granule_kcore::trace::area::Area;
use granule_trace::recorder::Sink;
use granule_trace::{BufferHeader, EncodedEvent, Event, RECORD_WORDS};

/// The buffer, and the lock under which an event happens and is recorded.
struct Buffer {
    lock: RawMaskedLock,
    /// Whether the trace is complete. Later events are not part of it.
    closed: AtomicBool,
    /// The first word of the mapped area; null if nothing is recorded.
    words: UnsafeCell<*mut u64>,
}

// SAFETY: `words` is written once, before a recorder exists. The memory that it points to is
// written only while `lock` is held.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer {
    lock: RawMaskedLock::new(),
    closed: AtomicBool::new(false),
    words: UnsafeCell::new(core::ptr::null_mut()),
};

/// The first word of the mapped area; null if nothing is recorded.
fn words() -> *mut u64 {
    // SAFETY: written before the first recorder was made, and not since.
    unsafe { *BUFFER.words.get() }
}

/// Continues the trace that was begun with the MMU off, if one is requested.
///
/// # Safety
///
/// Must be called once, before a recorder is made, for an area that the boot tables map in its
/// window.
pub(crate) unsafe fn begin(area: Area) {
    if !area.is_wanted() {
        return;
    }
    let window = layout::trace_vaddr(area.start) as *mut u64;
    // SAFETY: no recorder exists yet, so there is no reader.
    unsafe { *BUFFER.words.get() = window };
    // Image, stack and tree were in use before; now the area's mapping is too.
    in_order(|recorder| recorder.push(Event::Settled));
}

/// Access to the buffer, by the CPU that uses it. One type serves with and without recording, so that
/// code generic over it is compiled once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder {
    /// Whether a trace is recorded.
    on: bool,
    /// The CPU whose actions these are; `None` for the running CPU.
    cpu: Option<u16>,
    page_bytes: u64,
}

impl Recorder {
    /// A recorder of the actions of whichever CPU calls it.
    pub(crate) fn new(page_bytes: u64) -> Self {
        Self {
            on: !words().is_null(),
            cpu: None,
            page_bytes,
        }
    }

    pub(super) const fn records(&self) -> bool {
        self.on
    }

    /// A recorder for the actions of another CPU.
    pub(super) const fn on(&self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu as u16),
            ..*self
        }
    }

    /// Adds a record. Only called within [`atomically`](Sink::atomically).
    #[inline(never)]
    pub(crate) fn push(&self, event: Event) {
        let words = words();
        if words.is_null() || BUFFER.closed.load(Ordering::Relaxed) {
            return;
        }
        // Interrupts are masked while the lock is held, so this stays the same CPU.
        let cpu = self.cpu.unwrap_or_else(|| percpu::this().number() as u16);
        // SAFETY: writes the header and, if there is room, one more record, all inside the area.
        // The lock is held, since `record` is called within `atomically`. Volatile because the
        // reader is outside the program.
        unsafe {
            let count = words.add(BufferHeader::RECORDS).read_volatile();
            if count >= words.add(BufferHeader::ROOM).read_volatile() {
                let lost = words.add(BufferHeader::LOST);
                lost.write_volatile(lost.read_volatile() + 1);
                return;
            }
            let first = words.add(BufferHeader::WORDS + count as usize * RECORD_WORDS);
            for (index, word) in EncodedEvent::new(cpu, event).0.into_iter().enumerate() {
                first.add(index).write_volatile(word);
            }
            words.add(BufferHeader::RECORDS).write_volatile(count + 1);
        }
    }
}

/// Runs an action that does not change tables, and records it in one order with the records of all
/// CPUs. Only runs the action if nothing is recorded.
pub(crate) fn in_order<R>(action: impl FnOnce(&Recorder) -> R) -> R {
    let recorder = Recorder::new(0);
    if recorder.is_active() {
        recorder.atomically(action)
    } else {
        action(&recorder)
    }
}

/// Records the largest number of CPUs in the trace, and the BBM level that they share.
pub(crate) fn machine(cpus: usize, page_bytes: u64, bbm_level: u32) {
    let header = BufferHeader {
        page_bytes: page_bytes as u32,
        cpus: cpus as u16,
        bbm_level: bbm_level as u8,
        ..BufferHeader::default()
    };
    let shape = header.words()[BufferHeader::SHAPE];
    in_order(|_| {
        let first = words();
        if !first.is_null() {
            // SAFETY: a word of the header; the lock is held.
            unsafe { first.add(BufferHeader::SHAPE).write_volatile(shape) };
        }
    });
}

impl Sink for Recorder {
    #[inline(always)]
    fn is_active(&self) -> bool {
        self.on
    }

    // One call from each place that acts. Interrupts are masked: their handlers may change an entry
    // too, and would wait for the interrupted code.
    #[inline(never)]
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        let before = BUFFER.lock.acquire();
        let result = action(self);
        // SAFETY: this function took the lock above.
        unsafe { BUFFER.lock.release(before) };
        result
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn record(&self, event: Event) {
        self.push(event);
    }
}

/// [`Recorder`] for the tables of programs, whose entries hardware updates: what it made of them is
/// recorded where the kernel finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramRecorder(pub(crate) Recorder);

impl Sink for ProgramRecorder {
    const LOADS: bool = true;

    #[inline(always)]
    fn is_active(&self) -> bool {
        self.0.on
    }

    fn page_bytes(&self) -> u64 {
        self.0.page_bytes
    }

    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        self.0.atomically(|_| action(self))
    }

    fn record(&self, event: Event) {
        self.0.push(event);
    }
}

/// Ends the trace: a reader that accesses memory past this CPU's caches finds all records, and no
/// later action of other CPUs. Works without the lock, because a panicking CPU may hold it. A
/// caller that needs a complete trace ensures that no CPU changes anything.
pub(crate) fn finish(complete: bool) {
    BUFFER.closed.store(true, Ordering::Relaxed);
    let words = words();
    if words.is_null() {
        return;
    }
    // SAFETY: words of the header.
    let records = unsafe {
        words
            .add(BufferHeader::STATE)
            .write_volatile(BufferHeader::state(complete));
        words.add(BufferHeader::RECORDS).read_volatile()
    };
    let bytes = 8 * (BufferHeader::WORDS as u64 + records * RECORD_WORDS as u64);
    let start = words as u64;
    cache::clean(start..start + bytes);
}
