//! The place of each secondary CPU in the address space: two stacks and its data, each mapped page by page in
//! a window of its own, with nothing mapped in between.
//!
//! The second stack is for exceptions that found the first overflown, or found the CPU on a stack that does not
//! lie here (see the vectors). Each stack is 64K and lies at a multiple of 128K. So bit 16 of a stack pointer is
//! 0 in a stack and 1 in the gap below it, by which the vectors detect an overflow (see the linker script).

use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::layout::{CPU_BYTES, CPUS_VADDR};

/// Size of a stack in bytes, and the most bytes of a CPU's data.
pub(crate) const STACK_BYTES: u64 = 64 << 10;

/// Distance from one stack to the next: the gap is as large as a stack.
const STRIDE: u64 = 2 * STACK_BYTES;

/// Stacks of each CPU: its own, and the one for exceptions.
pub(crate) const STACKS: u64 = 2;

/// The lowest address of stack `which` (0 or 1) of CPU `number`.
pub(crate) const fn bottom(number: usize, which: u64) -> u64 {
    CPUS_VADDR + number as u64 * CPU_BYTES + which * STRIDE
}

/// The lowest address of the data of CPU `number`.
pub(crate) const fn data(number: usize) -> u64 {
    bottom(number, STACKS)
}

/// Whether 16 bytes at `address` lie in the place of a stack, mapped or not.
pub(crate) fn holds(address: u64) -> bool {
    let offset = address.wrapping_sub(CPUS_VADDR);
    offset < MOST_CPUS as u64 * CPU_BYTES
        && offset % CPU_BYTES < STACKS * STRIDE
        && offset % CPU_BYTES % STRIDE <= STACK_BYTES - 16
}

const _: () = assert!(CPUS_VADDR.is_multiple_of(STRIDE) && CPU_BYTES == (STACKS + 1) * STRIDE);
