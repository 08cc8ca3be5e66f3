//! What lies in memory, as addresses: digested a word at a time, as it is now.

use core::arch::asm;
use granule_kexec::Digest;

/// One thing that this kernel was given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    /// Its physical address.
    pub(crate) start: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Their digest.
    pub(crate) digest: u64,
}

impl Given {
    /// What is at an address, a multiple of 8, digested.
    ///
    /// # Safety
    ///
    /// `bytes` bytes of RAM are there, and no reference to them that could be written by.
    pub(crate) unsafe fn at(start: u64, bytes: u64) -> Self {
        let mut digest = Digest::new();
        let end = start.wrapping_add(bytes & !7);
        let mut at = start;
        while at < end {
            // SAFETY: inside what the caller vouches for; aligned as start is.
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

/// Writes back what caches hold of a range. Only for what need not be clean on arrival: image, tree
/// and note are read as memory has them.
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
