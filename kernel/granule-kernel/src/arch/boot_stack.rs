//! Measures how much of the boot CPU's stack was used: the stack is painted once an address space
//! exists, and searched for the paint at the end.
//!
//! The code with the MMU off used the same stack earlier, but less of it than the later boot does,
//! and `mmu_off_main`'s frames end before painting starts. Frames in use are not painted.

#![allow(unsafe_code, reason = "paints and reads the boot stack's unused part")]

use crate::arch::image;
use core::arch::asm;

/// A value that a stack frame is unlikely to contain.
const PAINT: u64 = 0x57ac_c0de_5afe_57ac;

/// Paints the stack below the caller's frame. The boot CPU calls this once, on its own stack, with
/// interrupts masked.
pub(crate) fn paint() {
    let stack = image::stack();
    // SAFETY: the range runs from the stack's first byte up to the stack pointer. Nothing lives
    // below it: the target has no red zone, and interrupts are masked.
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

/// The largest number of bytes of the stack that were in use at once.
pub(crate) fn most_used() -> u64 {
    let stack = image::stack();
    let (start, end) = (image::start() + stack.start, image::start() + stack.end);
    let used = (start..end).step_by(size_of::<u64>()).find(|at| {
        // SAFETY: a word of the stack, which is mapped for good.
        unsafe { (*at as *const u64).read_volatile() != PAINT }
    });
    end - used.unwrap_or(end)
}

/// The size of the stack in bytes.
pub(crate) fn bytes() -> u64 {
    let stack = image::stack();
    stack.end - stack.start
}
