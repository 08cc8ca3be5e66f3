//! Recording with the MMU on, into the area's window, by all CPUs in one order.
//!
//! What no lock can be held for, because the CPU that does it cannot reach the records then, is
//! written down by [`bring_up`](super::bring_up).

use crate::arch::cache;
use crate::lock::RawMaskedLock;
use crate::percpu;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use granule_kcore::layout;
use granule_kcore::trace::area::Area;
use granule_recorder::Sink;
use granule_trace::{Event, Header, RECORD_WORDS, Record};

/// The buffer, and the lock under which an event happens and is recorded.
struct Buffer {
    lock: RawMaskedLock,
    /// What happens from here on is no part of the trace.
    closed: AtomicBool,
    /// The first word of the area in its window; null where nothing is recorded.
    words: UnsafeCell<*mut u64>,
}

// SAFETY: `words` is written once, before a recorder exists, and what it points to only while
// `lock` is held.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer {
    lock: RawMaskedLock::new(),
    closed: AtomicBool::new(false),
    words: UnsafeCell::new(core::ptr::null_mut()),
};

/// The first word of the area in its window, if anything is recorded.
fn words() -> *mut u64 {
    // SAFETY: written before the first recorder was made, and not since.
    unsafe { *BUFFER.words.get() }
}

/// Goes on in the trace that was begun with the MMU off, if one is wanted.
///
/// # Safety
///
/// To be called once, before a recorder is made, for an area that the boot tables map in its
/// window.
pub(crate) unsafe fn begin(area: Area) {
    if !area.is_wanted() {
        return;
    }
    let window = layout::trace_vaddr(area.start) as *mut u64;
    // SAFETY: no recorder exists yet, so nobody looks.
    unsafe { *BUFFER.words.get() = window };
    // Image, stack and tree have been in use for some time, and now the window is.
    tell(|recorder| recorder.push(Event::Settled));
}

/// A CPU's access to the buffer: one type whether anything is recorded or not, so that what is
/// generic over it exists once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder {
    /// Whether anything is recorded.
    on: bool,
    cpu: u16,
    page_bytes: u64,
}

impl Recorder {
    /// That of the CPU that asks.
    pub(crate) fn of_this_cpu(page_bytes: u64) -> Self {
        Self {
            on: !words().is_null(),
            cpu: percpu::this().number() as u16,
            page_bytes,
        }
    }

    /// Whether anything is recorded.
    pub(super) const fn records(&self) -> bool {
        self.on
    }

    /// The same for what another CPU does.
    pub(super) const fn on(&self, cpu: usize) -> Self {
        Self {
            cpu: cpu as u16,
            ..*self
        }
    }

    /// Adds a record. Only from within [`atomically`](Sink::atomically).
    #[inline(never)]
    pub(super) fn push(&self, event: Event) {
        let words = words();
        if words.is_null() || BUFFER.closed.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the header and, as long as there is room, one record more, all inside the
        // area; the lock is held, since `record` is called from within `atomically`. Volatile
        // because the reader is outside the program.
        unsafe {
            let count = words.add(Header::RECORDS).read_volatile();
            if count >= words.add(Header::ROOM).read_volatile() {
                let lost = words.add(Header::LOST);
                lost.write_volatile(lost.read_volatile() + 1);
                return;
            }
            let first = words.add(Header::WORDS + count as usize * RECORD_WORDS);
            for (index, word) in Record::new(self.cpu, event).0.into_iter().enumerate() {
                first.add(index).write_volatile(word);
            }
            words.add(Header::RECORDS).write_volatile(count + 1);
        }
    }
}

/// Does something other than changing tables and records it, in one order with all that any CPU
/// records; does only that where nothing is recorded.
pub(super) fn tell<R>(action: impl FnOnce(&Recorder) -> R) -> R {
    let recorder = Recorder::of_this_cpu(0);
    if recorder.is_active() {
        recorder.atomically(action)
    } else {
        action(&recorder)
    }
}

/// So many CPUs may be in the trace, and all of them have this level of FEAT_BBM.
pub(crate) fn machine(cpus: usize, page_bytes: u64, bbm_level: u32) {
    let header = Header {
        page_bytes: page_bytes as u32,
        cpus: cpus as u16,
        bbm_level: bbm_level as u8,
        ..Header::default()
    };
    let shape = header.words()[Header::SHAPE];
    tell(|_| {
        let first = words();
        if !first.is_null() {
            // SAFETY: a word of the header; the lock is held.
            unsafe { first.add(Header::SHAPE).write_volatile(shape) };
        }
    });
}

impl Sink for Recorder {
    #[inline(always)]
    fn is_active(&self) -> bool {
        self.on
    }

    // One call from each place that does something. With interrupts masked: what they run may
    // change an entry too, and would wait for whom it interrupted.
    #[inline(never)]
    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        let before = BUFFER.lock.acquire();
        let result = action(self);
        // SAFETY: taken above.
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

/// The end of the kernel: whoever reads memory past this CPU's caches finds all records, and none
/// of what other CPUs do after this. Without the lock, which who panicked may hold: who wants a
/// trace that is complete sees to it that nobody changes anything.
pub(crate) fn finish(complete: bool) {
    BUFFER.closed.store(true, Ordering::Relaxed);
    let words = words();
    if words.is_null() {
        return;
    }
    // SAFETY: words of the header.
    let records = unsafe {
        words
            .add(Header::STATE)
            .write_volatile(Header::state(complete));
        words.add(Header::RECORDS).read_volatile()
    };
    let bytes = 8 * (Header::WORDS as u64 + records * RECORD_WORDS as u64);
    let start = words as u64;
    cache::clean_to_poc(start..start + bytes);
}
