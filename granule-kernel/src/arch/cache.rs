//! Cache maintenance by address: the Rust interface to the assembly in `head::cache`.

use core::ops::Range;

unsafe extern "C" {
    safe fn dcache_clean_poc(start: u64, end: u64);
    safe fn dcache_clean_inval_poc(start: u64, end: u64);
    fn dcache_inval_poc(start: u64, end: u64);
}

/// Cleans every cache line of `range` to the point of coherency, and waits for completion. Works
/// with the MMU on (virtual addresses) and off (physical ones). Cleaning changes no memory that
/// software sees, but may abort on an address that no device answers.
pub(crate) fn clean_to_poc(range: Range<u64>) {
    dcache_clean_poc(range.start, range.end);
}

/// As [`clean_to_poc`], and also invalidates the lines in all caches.
pub(crate) fn clean_and_invalidate_to_poc(range: Range<u64>) {
    dcache_clean_inval_poc(range.start, range.end);
}

/// Invalidates every cache line of `range` without writing it back, after stores to the range that
/// bypassed the caches.
///
/// # Safety
///
/// Data that was stored through the caches to any of these lines is lost.
pub(crate) unsafe fn invalidate_to_poc(range: Range<u64>) {
    // SAFETY: the caller accepts that dirty data in these lines is lost.
    unsafe { dcache_inval_poc(range.start, range.end) };
}
