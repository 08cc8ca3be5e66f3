//! The frames of user memory. They come from the page allocator, which counts their owners, and are
//! accessed through the linear map.

#![allow(unsafe_code, reason = "pages of a program through the linear map")]

use crate::mm::kernel_tables::pointer;
use crate::mm::{pages, sized};
use core::arch::asm;
use core::marker::PhantomData;
use granule::arch::{PageChoice, PageSize, PhysicalAddress};
use granule::space::{UserFrames, Wanted};
use granule::table::FreedFrames;

/// Where the pages of a program come from. The choice is a type, so that a program of the kernel's page size
/// pays nothing for the others.
pub(crate) trait Ground: 'static {
    /// Whether pages may have another size than the kernel's.
    const ANY_SIZE: bool;
}

/// Pages of the kernel's own size: frames of the page allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelSized;

impl Ground for KernelSized {
    const ANY_SIZE: bool = false;
}

/// Pages of any size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnySized;

impl Ground for AnySized {
    const ANY_SIZE: bool = true;
}

/// The memory of programs whose pages have size `P`, guarded by the page allocator's lock. With
/// [`KernelSized`] it is the kernel's page size, as the caller of `new` vouches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserMemory<P: PageChoice, G: Ground = KernelSized>(PageSize, PhantomData<(P, G)>);

impl<P: PageChoice, G: Ground> UserMemory<P, G> {
    /// Access to the one account of frames, for pages of `size`.
    ///
    /// # Safety
    ///
    /// With [`KernelSized`], `size` is the kernel's page size.
    pub(super) const unsafe fn new(size: PageSize) -> Self {
        Self(size, PhantomData)
    }

    /// The page size: a constant, unless `P` is that of any.
    const fn size(&self) -> PageSize {
        match P::ONLY {
            Some(size) => size,
            None => self.0,
        }
    }
}

// SAFETY: pages come from the page allocator, which gives each frame to one owner and counts owners; `sized` does
// so for pages of other sizes. The allocator has only RAM that the linear map covers, below the kernel's physical
// address size.
unsafe impl<P: PageChoice, G: Ground> UserFrames for UserMemory<P, G> {
    fn page_size(&self) -> PageSize {
        self.size()
    }

    fn allocate(&mut self, wanted: Wanted) -> Option<PhysicalAddress> {
        let size = self.size();
        let best = match (wanted, G::ANY_SIZE) {
            (Wanted::Exactly(page), true) => sized::allocate_exactly(size, page),
            (Wanted::Exactly(frame), false) => pages::allocate_exactly(frame),
            (Wanted::Group { frames, index }, true) => {
                sized::allocate_in_group(size, frames, index)
            }
            (Wanted::Group { frames, index }, false) => pages::allocate_in_group(frames, index),
            _ => None,
        };
        best.or_else(|| {
            if G::ANY_SIZE {
                sized::allocate_one(size)
            } else {
                pages::allocate_one()
            }
        })
    }

    fn allocate_run(&mut self, frames: u64) -> Option<PhysicalAddress> {
        if G::ANY_SIZE {
            sized::allocate_run(self.size(), frames)
        } else {
            pages::allocate_singles(frames)
        }
    }

    fn zero(&mut self, first: PhysicalAddress, count: u64) {
        zero(first, count << self.size().shift());
    }

    fn copy(&mut self, from: PhysicalAddress, to: PhysicalAddress) {
        if let (Some(from), Some(to)) = (pointer(from), pointer(to)) {
            copy_page(from.as_ptr(), to.as_ptr(), self.size().bytes());
        }
    }

    // `inline(never)`: called once for a run of frames, so the call costs nothing. Otherwise a kernel
    // for one page size would inline it, a kernel for all sizes would not, and their times would differ.
    #[inline(never)]
    fn share(&mut self, first: PhysicalAddress, count: u64) {
        if G::ANY_SIZE {
            sized::share(self.size(), first, count);
        } else {
            pages::share(first, count);
        }
    }

    #[inline(never)]
    fn release(&mut self, frames: FreedFrames) {
        if G::ANY_SIZE {
            sized::release(self.size(), frames.first(), frames.count());
        } else {
            pages::release(frames.first(), frames.count());
        }
    }

    fn is_shared(&self, frame: PhysicalAddress) -> bool {
        if G::ANY_SIZE {
            sized::sharing(self.size(), frame, 1).0
        } else {
            pages::is_shared(frame)
        }
    }

    fn sharing(&self, first: PhysicalAddress, count: u64) -> (bool, u64) {
        if G::ANY_SIZE {
            sized::sharing(self.size(), first, count)
        } else {
            pages::sharing(first, count)
        }
    }

    fn sync_instructions(&mut self, first: PhysicalAddress, count: u64) {
        sync_instructions(first, count << self.size().shift());
    }
}

/// Blocks zeroed in one round of the loop. From here on the loop costs less than the blocks.
const ZEROED_AT_ONCE: u64 = 8;

/// Zeroes whole pages of the caller's, `bytes` bytes from `first` on.
pub(super) fn zero(first: PhysicalAddress, bytes: u64) {
    if let Some(start) = pointer(first) {
        zero_pages(start.as_ptr(), bytes);
    }
}

/// Zeroes pages, by DC ZVA if the CPU allows it.
fn zero_pages(start: *mut u8, bytes: u64) {
    let id: u64;
    // SAFETY: reading DCZID_EL0 has no side effect.
    unsafe {
        asm!("mrs {}, dczid_el0", out(reg) id, options(nomem, nostack, preserves_flags));
    }
    let block = 4u64 << (id & 0xf);
    // DZP forbids DC ZVA, or the block is so large (up to 2 KiB) that a round does not divide the page.
    if id & 1 << 4 != 0 || !bytes.is_multiple_of(block * ZEROED_AT_ONCE) {
        // SAFETY: the pages belong to the caller, and the linear map maps them writable.
        unsafe { start.write_bytes(0, bytes as usize) };
        return;
    }
    // SAFETY: as above; pages are aligned to their size, and a round of blocks divides it.
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

/// Bytes copied in one round of the loop, as many as the offsets of LDP and STP reach.
const COPIED_AT_ONCE: u64 = 512;

/// Copies a page in pairs of words: the kernel does not use the larger FP and SIMD registers. Not inlined: the
/// loop is long, and the call is nothing beside a page.
#[inline(never)]
fn copy_page(from: *mut u8, to: *mut u8, bytes: u64) {
    // SAFETY: the linear map covers both pages. The second page is writable and nothing else uses it.
    // A round divides every page size.
    unsafe {
        asm!(
            "1:",
            ".irp at, 0, 64, 128, 192, 256, 320, 384, 448",
            "ldp {a}, {b}, [{from}, #\\at]",
            "ldp {c}, {d}, [{from}, #\\at + 16]",
            "ldp {e}, {f}, [{from}, #\\at + 32]",
            "ldp {g}, {h}, [{from}, #\\at + 48]",
            "stp {a}, {b}, [{to}, #\\at]",
            "stp {c}, {d}, [{to}, #\\at + 16]",
            "stp {e}, {f}, [{to}, #\\at + 32]",
            "stp {g}, {h}, [{to}, #\\at + 48]",
            ".endr",
            "add {from}, {from}, #{at_once}",
            "add {to}, {to}, #{at_once}",
            "cmp {from}, {end}",
            "b.lo 1b",
            a = out(reg) _,
            b = out(reg) _,
            c = out(reg) _,
            d = out(reg) _,
            e = out(reg) _,
            f = out(reg) _,
            g = out(reg) _,
            h = out(reg) _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            end = in(reg) from as u64 + bytes,
            at_once = const COPIED_AT_ONCE,
            options(nostack)
        );
    }
}

/// Makes the stores to whole pages visible to instruction fetches of all CPUs. Cleans each line to the point
/// of unification, then invalidates all instruction caches entirely: a cache indexed by virtual address
/// may hold the page under any address. A CPU with CTR_EL0.IDC or DIC skips the respective step.
pub(crate) fn sync_instructions(first: PhysicalAddress, bytes: u64) {
    let Some(start) = pointer(first) else {
        return;
    };
    let start = start.as_ptr() as u64;
    let ctr = crate::arch::cpu::ctr_el0();
    let line = 4u64 << (ctr >> 16 & 0xf);
    let needs_clean = ctr & 1 << 28 == 0;
    let needs_drop = ctr & 1 << 29 == 0;
    // SAFETY: the linear map covers the pages, and cache maintenance changes no memory.
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
