//! Cache maintenance by address, for Rust: what the assembly in `head::cache` does.

use core::ops::Range;

unsafe extern "C" {
    safe fn dcache_clean_poc(start: u64, end: u64);
    safe fn dcache_clean_inval_poc(start: u64, end: u64);
    fn dcache_inval_poc(start: u64, end: u64);
}

/// Writes every dirty cache line that holds a byte of `range` back to the point
/// of coherency, and waits for it. Works with the MMU on (virtual addresses) and
/// off (physical ones). Cleaning changes no memory that software sees, but an
/// address that nothing answers at may end in an abort.
pub(crate) fn clean_to_poc(range: Range<u64>) {
    dcache_clean_poc(range.start, range.end);
}

/// As [`clean_to_poc`], and the lines are in no cache any more.
pub(crate) fn clean_and_invalidate_to_poc(range: Range<u64>) {
    dcache_clean_inval_poc(range.start, range.end);
}

/// Drops every cache line of `range` without writing it back, after stores to it that went past
/// the caches.
///
/// # Safety
///
/// What was stored through the caches into any line of it is lost.
pub(crate) unsafe fn invalidate_to_poc(range: Range<u64>) {
    // SAFETY: the caller's promise.
    unsafe { dcache_inval_poc(range.start, range.end) };
}
