//! The frames of user memory: the page allocator's, with their owners counted, reached through the
//! linear map.

use crate::mm::live::{self, pointer};
use crate::mm::pages;
use core::arch::asm;
use granule::arch::PhysicalAddress;
use granule::space::{UserFrames, Wanted};
use granule::table::FreedFrames;

/// All of them; the lock is the page allocator's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMemory;

// SAFETY: frames come from the page allocator, which gives each to one owner, counts owners, and
// knows only RAM that the linear map reaches, below the kernel's physical address size.
unsafe impl UserFrames for UserMemory {
    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress> {
        let best = match wanted {
            Wanted::Exactly(frame) => pages::allocate_exactly(frame),
            Wanted::Group { frames, index } => pages::allocate_in_group(frames, index),
            _ => None,
        };
        best.or_else(pages::allocate_one)
    }

    fn zero(&mut self, frame: PhysicalAddress) {
        if let Some(start) = pointer(frame) {
            zero_page(start.as_ptr(), page_bytes());
        }
    }

    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress) {
        if let (Some(from), Some(to)) = (pointer(from), pointer(to)) {
            copy_page(from.as_ptr(), to.as_ptr(), page_bytes());
        }
    }

    // Once a run of frames: a call costs nothing there, and a kernel for one page size, which would have
    // it in place, and one for all, which would not, are to do the same.
    #[inline(never)]
    fn share(&mut self, first: PhysicalAddress, count: u64) {
        pages::share(first, count);
    }

    #[inline(never)]
    fn release(&mut self, frames: FreedFrames) {
        pages::release(frames.first(), frames.count());
    }

    fn is_shared(&self, frame: PhysicalAddress) -> bool {
        pages::sharing(frame, 1).0
    }

    fn sharing(&self, first: PhysicalAddress, count: u64) -> (bool, u64) {
        pages::sharing(first, count)
    }

    fn sync_instructions(&mut self, frame: PhysicalAddress) {
        if let Some(start) = pointer(frame) {
            sync_instructions(start.as_ptr() as u64, page_bytes());
        }
    }
}

/// Blocks that are zeroed once round the loop: from here on it costs less than the blocks do.
const ZEROED_AT_ONCE: u64 = 8;

/// Makes a page zero, by DC ZVA where the CPU lets us.
fn zero_page(start: *mut u8, bytes: u64) {
    let id: u64;
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {}, dczid_el0", out(reg) id, options(nomem, nostack, preserves_flags));
    }
    let block = 4u64 << (id & 0xf);
    // DZP, or blocks so large (up to 2 KiB) that no page is a multiple of that many.
    if id & 1 << 4 != 0 || !bytes.is_multiple_of(block * ZEROED_AT_ONCE) {
        // SAFETY: the caller's page, mapped writable by the linear map.
        unsafe { start.write_bytes(0, bytes as usize) };
        return;
    }
    // SAFETY: as above; so many blocks divide the page, which is aligned to its size.
    unsafe {
        asm!(
            "1:",
            ".rept {at_once}",
            "dc zva, {at}",
            "add {at}, {at}, {block}",
            ".endr",
            "cmp {at}, {end}",
            "b.lo 1b",
            at = inout(reg) start => _,
            block = in(reg) block,
            end = in(reg) start as u64 + bytes,
            at_once = const ZEROED_AT_ONCE,
            options(nostack)
        );
    }
}

/// Copies a page, in pairs of words: the kernel has no larger registers.
fn copy_page(from: *mut u8, to: *mut u8, bytes: u64) {
    // SAFETY: two pages, mapped by the linear map, the second one writable and nobody else's; every
    // page size is a multiple of 64.
    unsafe {
        asm!(
            "1:",
            "ldp {a}, {b}, [{from}]",
            "ldp {c}, {d}, [{from}, #16]",
            "stp {a}, {b}, [{to}]",
            "stp {c}, {d}, [{to}, #16]",
            "ldp {a}, {b}, [{from}, #32]",
            "ldp {c}, {d}, [{from}, #48]",
            "add {from}, {from}, #64",
            "stp {a}, {b}, [{to}, #32]",
            "stp {c}, {d}, [{to}, #48]",
            "add {to}, {to}, #64",
            "cmp {from}, {end}",
            "b.lo 1b",
            a = out(reg) _,
            b = out(reg) _,
            c = out(reg) _,
            d = out(reg) _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            end = in(reg) from as u64 + bytes,
            options(nostack)
        );
    }
}

/// Makes what was stored in a page visible to instruction fetches of all CPUs: cleaned to the point
/// of unification line by line, then every instruction cache dropped whole, as one that is indexed
/// by virtual addresses may hold it under any. CTR_EL0.IDC and DIC say that a CPU needs neither.
fn sync_instructions(start: u64, bytes: u64) {
    let ctr = crate::arch::cpu::ctr_el0();
    let line = 4u64 << (ctr >> 16 & 0xf);
    let needs_clean = ctr & 1 << 28 == 0;
    let needs_drop = ctr & 1 << 29 == 0;
    // SAFETY: cache maintenance of a page that the linear map shows changes no memory.
    unsafe {
        let mut at = start;
        while needs_clean && at < start + bytes {
            asm!("dc cvau, {}", in(reg) at, options(nostack, preserves_flags));
            at += line;
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        if needs_drop {
            asm!("ic ialluis", "dsb ish", options(nostack, preserves_flags));
        }
        asm!("isb", options(nostack, preserves_flags));
    }
}

/// The bytes of a page.
pub(crate) fn page_bytes() -> u64 {
    live::kernel().map_or(1, live::Kernel::page)
}
