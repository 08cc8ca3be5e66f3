//! Data cache maintenance by address, to the point of coherency.
//!
//! A CPU with its MMU off accesses memory past the caches, so the memory that it wrote or will read
//! needs the instructions here. Tables that are written and walked with the MMU and caches on need
//! none, because walks use the caches (`Tcr` asks for that).
//!
//! A range is of addresses as the CPU uses them now: virtual with the MMU on, physical with it off.

use super::barriers::dsb_sy;
use super::id::cache_type;
use core::arch::asm;
use core::ops::Range;

/// The bytes of the smallest line of all data caches (CTR_EL0.DminLine). A larger step would skip
/// lines.
#[must_use]
pub fn line_bytes() -> u64 {
    4 << (cache_type() >> 16 & 0b1111)
}

/// Issues one operation for each line that `range` touches, then waits for all of them. Only a DSB
/// of full-system scope completes maintenance to the point of coherency.
macro_rules! by_line {
    ($operation:literal, $range:expr) => {{
        let range: Range<u64> = $range;
        let line = line_bytes();
        let mut address = range.start & !(line - 1);
        while address < range.end {
            // SAFETY: the function's own comment says why the operation is allowed.
            unsafe {
                asm!(
                    concat!("dc ", $operation, ", {}"),
                    in(reg) address,
                    options(nostack, preserves_flags)
                );
            }
            address = address.wrapping_add(line);
        }
        dsb_sy();
    }};
}

/// Cleans all lines of `range`: stores through the caches reach memory.
///
/// Needed before a CPU reads the range past the caches: one that starts with its MMU off, or this
/// one before it turns its own off.
pub fn clean(range: Range<u64>) {
    // Cleaning changes no memory that software sees. It may abort where nothing is mapped.
    by_line!("cvac", range);
}

/// Cleans all lines of `range` and removes them from the caches.
///
/// Needed before a CPU with its MMU off writes the range. A line that is dirty then would be
/// written back later, over what the CPU wrote.
pub fn clean_and_invalidate(range: Range<u64>) {
    by_line!("civac", range);
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
    // What was stored past the caches comes first.
    dsb_sy();
    by_line!("ivac", range);
}
