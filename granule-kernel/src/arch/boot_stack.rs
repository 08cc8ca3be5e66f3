//! How much of the boot CPU's stack was used: painted when there is an address space, looked at
//! in the end.
//!
//! What ran on it before, with the MMU off, is below what the rest takes (`mmu_off_main`'s frames
//! end before this begins), and what lies on it is not touched.

use crate::arch::image;
use core::arch::asm;

/// What no frame is likely to leave behind.
const PAINT: u64 = 0x57ac_c0de_5afe_57ac;

/// Paints what lies below the caller's frame. Once, by the boot CPU, on its stack, with interrupts
/// masked.
pub(crate) fn paint() {
    let stack = image::stack();
    // SAFETY: from the stack's first byte up to the stack pointer, below which nothing lives: the
    // target has no red zone, and nothing interrupts.
    unsafe {
        asm!(
            "mov {end}, sp",
            "1: stp {paint}, {paint}, [{at}], #16",
            "cmp {at}, {end}",
            "b.lo 1b",
            at = inout(reg) image::start() + stack.start => _,
            end = out(reg) _,
            paint = in(reg) PAINT,
            options(nostack)
        );
    }
}

/// The most bytes of it that were ever used.
pub(crate) fn most_used() -> u64 {
    let stack = image::stack();
    let (start, end) = (image::start() + stack.start, image::start() + stack.end);
    let used = (start..end).step_by(size_of::<u64>()).find(|at| {
        // SAFETY: a word of the stack, which is mapped for good.
        unsafe { (*at as *const u64).read_volatile() != PAINT }
    });
    end - used.unwrap_or(end)
}

/// All there is of it.
pub(crate) fn bytes() -> u64 {
    let stack = image::stack();
    stack.end - stack.start
}
