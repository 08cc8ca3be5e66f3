//! Cache maintenance by address, for Rust: what the assembly in `head::cache` does.

use core::ops::Range;

unsafe extern "C" {
    safe fn dcache_clean_poc(start: u64, end: u64);
}

/// Writes every dirty cache line that holds a byte of `range` back to the point
/// of coherency, and waits for it. Works with the MMU on (virtual addresses) and
/// off (physical ones). Cleaning changes no memory that software sees, but an
/// address that nothing answers at may end in an abort.
pub(crate) fn clean_to_poc(range: Range<u64>) {
    dcache_clean_poc(range.start, range.end);
}
