//! The one piece of memory that every table comes from, whoever builds it.
//!
//! All subjects take pages from the same arena in the same way, one bump of a counter, and it is
//! reset between them: what differs is what they do with the pages. It is written once before
//! anything is timed, so no page fault is ever in a time. Nothing is done with pages given
//! back: the next reset returns them. What a page contains when it is handed out is what the one
//! before left there. Where the memory comes from belongs to the program.
//!
//! The counter is global because one of the crates compared calls its allocator without a
//! receiver.

#![allow(unsafe_code, reason = "the arena's memory")]

use core::hint::black_box;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// The bytes of a table with 4K pages, which all subjects build. The library builds larger ones too.
pub const TABLE: u64 = 4096;

/// The address of the next page to be handed out, and the end.
static NEXT: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// Memory for tables; at most one exists.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
}

impl Arena {
    /// An arena of `bytes` bytes, a multiple of a table's, which are written once.
    ///
    /// # Safety
    ///
    /// The memory must be aligned to the largest table and used by nobody else while the arena, or a tree
    /// in it, exists. No other arena may exist.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        // SAFETY: the caller vouches that the memory is ours.
        unsafe { start.as_ptr().write_bytes(0xA5, bytes) };
        let first = start.as_ptr().expose_provenance() as u64;
        NEXT.store(first, Ordering::Relaxed);
        END.store(first + bytes as u64, Ordering::Relaxed);
        Self { start, bytes }
    }

    /// Where the first table lies; also its physical address, for the subjects that have one.
    const fn first(&self) -> *mut u64 {
        self.start.as_ptr().cast()
    }

    /// The bytes handed out since the last reset.
    pub fn taken(&self) -> u64 {
        NEXT.load(Ordering::Relaxed) - self.start.as_ptr().addr() as u64
    }

    /// Takes all pages back. No tree in them may be used any more.
    pub fn reset(&self) {
        NEXT.store(self.start.as_ptr().addr() as u64, Ordering::Relaxed);
    }

    /// Reads a word of each cache line of the first bytes, so that every timed step finds the
    /// caches alike, whoever ran before it.
    pub fn sweep(&self, bytes: u64) {
        let words = (bytes / 8) as usize;
        assert!(words * 8 <= self.bytes);
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
    }
}

/// At least one and at most `most` pages in one run: the address of the first, and how many.
/// `None` when nothing is left.
#[inline(always)]
pub fn take(most: u64) -> Option<(u64, u64)> {
    take_tables(most, TABLE)
}

/// Takes pages as [`take`], for tables of so many bytes. Between resets all are of one size, so that they are
/// aligned.
#[inline(always)]
pub(crate) fn take_tables(most: u64, bytes: u64) -> Option<(u64, u64)> {
    // One thread uses the arena; a load and a store spare every subject the locked instruction.
    let next = NEXT.load(Ordering::Relaxed);
    let count = most.min((END.load(Ordering::Relaxed) - next) / bytes);
    NEXT.store(next + count * bytes, Ordering::Relaxed);
    (count > 0).then_some((next, count))
}

/// Returns the bytes that are left.
#[inline(always)]
pub(crate) fn left() -> u64 {
    END.load(Ordering::Relaxed) - NEXT.load(Ordering::Relaxed)
}
