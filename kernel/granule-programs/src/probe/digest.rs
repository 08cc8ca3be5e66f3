//! Digests ranges of memory, a word at a time, in their present state.

#![allow(unsafe_code, reason = "the memory that is examined")]

use core::arch::asm;
use granule_kexec::Digest;

/// A range of memory that the previous kernel handed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentDigest {
    /// Its physical address.
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Digest of the bytes.
    pub(crate) digest: u64,
}

impl SegmentDigest {
    /// Digests the bytes at an address, a multiple of 8.
    ///
    /// # Safety
    ///
    /// `bytes` bytes of RAM must be there, and nothing may write them through a reference.
    pub(crate) unsafe fn at(start: u64, bytes: u64) -> Self {
        let mut digest = Digest::new();
        let end = start.wrapping_add(bytes & !7);
        let mut at = start;
        while at < end {
            // SAFETY: inside the range for which the caller answers; aligned as `start` is.
            digest.word(unsafe { (at as *const u64).read_volatile() });
            at = at.wrapping_add(8);
        }
        let mut last: u64 = 0;
        for index in 0..bytes & 7 {
            // SAFETY: as above.
            let byte = unsafe { (at.wrapping_add(index) as *const u8).read_volatile() };
            last |= u64::from(byte) << (8 * index);
        }
        if bytes & 7 != 0 {
            digest.word(last);
        }
        Self {
            start,
            bytes,
            digest: digest.value(),
        }
    }
}

/// Cleans the cache lines of a range. Used only for data that need not be clean on arrival: image,
/// tree and note are read as memory has them.
pub(crate) fn clean(start: u64, bytes: u64) {
    let line: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) line, options(nomem, nostack, preserves_flags)) };
    let line = 4 << (line >> 16 & 0xf);
    let mut at = start & !(line - 1);
    while at < start.wrapping_add(bytes) {
        // SAFETY: cleaning changes no byte.
        unsafe { asm!("dc cvac, {}", in(reg) at, options(nostack, preserves_flags)) };
        at = at.wrapping_add(line);
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}
