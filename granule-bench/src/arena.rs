//! The one piece of memory that every table comes from, whoever builds it.
//!
//! All subjects take pages from the same arena in the same way, one bump of a counter, and it is
//! reset between them: what differs is what they do with the pages. It is written once before
//! anything is timed, so no page fault is ever in a time. Nothing is done with pages given
//! back: the next reset returns them. What a page contains when it is handed out is what the one
//! before left there.
//!
//! The counter is global because one of the crates compared calls its allocator without a
//! receiver.

use anyhow::{Context, Result};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a table: all subjects build tables of 4K pages.
pub(crate) const TABLE: u64 = 4096;

/// The alignment that lets the host map the arena with its huge pages.
const HOST_HUGE_PAGE: usize = 2 << 20;

/// The address of the next page to be handed out, and the end.
static NEXT: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// Held by the arena that the counters are about.
static ONE: Mutex<()> = Mutex::new(());

/// Memory for tables; at most one exists.
pub(crate) struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    _one: MutexGuard<'static, ()>,
}

impl Arena {
    /// An arena of `tables` pages, written once.
    pub(crate) fn new(tables: u64) -> Result<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = usize::try_from(tables * TABLE).context("the arena is too large")?;
        let bytes = bytes.max(1).next_multiple_of(HOST_HUGE_PAGE);
        let layout = Layout::from_size_align(bytes, HOST_HUGE_PAGE)?;
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        // Kernels reach their tables through the linear map's large leaves; with 4K pages the
        // host's TLB misses would be in every time and make the ratios look smaller. Advice that
        // the host does not take changes nothing else.
        // SAFETY: the range is the allocation just made, and the advice leaves its contents.
        let _ = unsafe {
            rustix::mm::madvise(
                start.as_ptr().cast(),
                bytes,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
        // SAFETY: as above; nobody else has a pointer to it.
        unsafe { start.write_bytes(0xA5, bytes) };
        let first = start.as_ptr().expose_provenance() as u64;
        NEXT.store(first, Ordering::Relaxed);
        END.store(first + bytes as u64, Ordering::Relaxed);
        Ok(Self {
            start,
            layout,
            _one: one,
        })
    }

    /// Where the first table lies; also its physical address, for the subjects that have one.
    pub(crate) fn first(&self) -> *mut u64 {
        self.start.as_ptr().cast()
    }

    /// The pages handed out since the last reset.
    pub(crate) fn taken(&self) -> u64 {
        (NEXT.load(Ordering::Relaxed) - self.start.as_ptr().addr() as u64) / TABLE
    }

    /// Takes all pages back. No tree in them may be used any more.
    pub(crate) fn reset(&self) {
        NEXT.store(self.start.as_ptr().addr() as u64, Ordering::Relaxed);
    }

    /// Reads a word of each cache line of the first `tables` pages, so that every timed step
    /// finds the caches alike, whoever ran before it.
    pub(crate) fn sweep(&self, tables: u64) {
        let words = (tables * TABLE / 8) as usize;
        assert!(words * 8 <= self.layout.size());
        let mut sum = 0_u64;
        for index in (0..words).step_by(8) {
            // SAFETY: inside the arena, which was written as a whole when it was made.
            sum = sum.wrapping_add(unsafe { self.first().add(index).read() });
        }
        black_box(sum);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        NEXT.store(0, Ordering::Relaxed);
        END.store(0, Ordering::Relaxed);
        // SAFETY: allocated in `new` with this layout; the subjects' trees are dead with the
        // rounds that borrowed the arena.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// At least one and at most `most` pages in one run: the address of the first, and how many.
/// `None` when nothing is left.
#[inline(always)]
pub(crate) fn take(most: u64) -> Option<(u64, u64)> {
    // One thread uses the arena; a load and a store spare every subject the locked instruction.
    let next = NEXT.load(Ordering::Relaxed);
    let count = most.min((END.load(Ordering::Relaxed) - next) / TABLE);
    NEXT.store(next + count * TABLE, Ordering::Relaxed);
    (count > 0).then_some((next, count))
}

/// The pages that are left.
#[inline(always)]
pub(crate) fn left() -> u64 {
    (END.load(Ordering::Relaxed) - NEXT.load(Ordering::Relaxed)) / TABLE
}
