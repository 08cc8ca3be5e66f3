//! Data cache maintenance by address, to the point of coherency.
//!
//! A CPU with its MMU off accesses memory past the caches, so the memory that it wrote or will read
//! needs the instructions here. Tables that are written and walked with the MMU and caches on need
//! none, because walks use the caches (`Tcr` selects that).
//!
//! A range is of addresses as the CPU uses them now: virtual with the MMU on, physical with it off.
//! An instruction aborts where nothing is mapped.
//!
//! Cleaning is safe because it does nothing that a CPU may not do at any time by itself: write a
//! dirty line back. That hits memory that a device without coherency stored into, too. So a buffer
//! is cleaned and invalidated *before* the device gets it, and no CPU stores to its lines until the
//! device is done.
//!
//! The same code is callable from assembly, before there is a stack: `granule_cache_clean`,
//! `granule_cache_clean_and_invalidate` and `granule_cache_invalidate` take the first byte in x0 and
//! the end in x1, and change x0, x2, x3 and the flags.

#![allow(unsafe_code, reason = "instructions of cache maintenance")]

use super::id::cache_type;
use core::arch::global_asm;
use core::ops::Range;

/// The bytes of the smallest line of all data caches (CTR_EL0.DminLine). A larger step would skip
/// lines.
#[must_use]
pub fn line_bytes() -> u64 {
    4 << (cache_type() >> 16 & 0b1111)
}

// x0 first byte, x1 end. Clobber x0, x2, x3 and the flags. The step is the smallest line. Maintenance
// to the point of coherency is complete only after a DSB of full-system scope.
global_asm!(
    r#"
    .macro granule_cache_by_line name, operation, first
    .section .text.\name, "ax"
    .global \name
\name:
    \first
    mrs     x2, ctr_el0
    ubfx    x2, x2, #16, #4
    mov     x3, #4
    lsl     x2, x3, x2
    sub     x3, x2, #1
    bic     x0, x0, x3
    cmp     x0, x1
    b.hs    2f
1:  dc      \operation, x0
    adds    x0, x0, x2
    b.cs    2f                  // that was the last line there is
    cmp     x0, x1
    b.lo    1b
2:  dsb     sy
    ret
    .endm
    granule_cache_by_line granule_cache_clean, cvac
    granule_cache_by_line granule_cache_clean_and_invalidate, civac
    // Stores past the caches are ordered before it.
    granule_cache_by_line granule_cache_invalidate, ivac, "dmb sy"
    .purgem granule_cache_by_line
    .text
"#
);

unsafe extern "C" {
    // Cleaning writes back what the CPU may write back by itself at any time.
    safe fn granule_cache_clean(start: u64, end: u64);
    safe fn granule_cache_clean_and_invalidate(start: u64, end: u64);
    fn granule_cache_invalidate(start: u64, end: u64);
}

/// Cleans all lines of `range`: stores through the caches reach memory.
///
/// Needed before a CPU reads the range past the caches: one that starts with its MMU off, or this
/// one before it turns its own off.
pub fn clean(range: Range<u64>) {
    granule_cache_clean(range.start, range.end);
}

/// Cleans all lines of `range` and removes them from the caches.
///
/// Needed before a CPU with its MMU off writes the range. A line that is dirty then would be
/// written back later, over what the CPU wrote.
pub fn clean_and_invalidate(range: Range<u64>) {
    granule_cache_clean_and_invalidate(range.start, range.end);
}

/// Removes all lines of `range` from the caches, without writing them back.
///
/// Needed after a CPU with its MMU off wrote the range, before it turns the MMU on. A line that
/// was fetched meanwhile, by speculation or by another CPU, would hide what it wrote.
///
/// # Safety
///
/// Stores to the lines that are only in the caches are lost. Both ends of the range must be ends of
/// lines, or the data beside the range is lost too ([`line_bytes`]; a table page always is).
pub unsafe fn invalidate(range: Range<u64>) {
    // SAFETY: the caller accepts that dirty data in these lines is lost.
    unsafe { granule_cache_invalidate(range.start, range.end) };
}
