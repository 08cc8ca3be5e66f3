//! The stacks of the secondary CPUs: their place in the address space. Each is mapped page by page
//! in a window of its own, with nothing mapped in between.
//!
//! Each CPU has two. The second is for exceptions that found the first overflown, or found the CPU
//! on a stack that does not lie here (see the vectors). Each stack is 64K and lies at a multiple of
//! 128K. So bit 16 of a stack pointer is 0 in a stack and 1 in the gap below it, by which the
//! vectors detect an overflow (see the linker script).

use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::layout;

/// Size of a stack in bytes.
pub(crate) const STACK_BYTES: u64 = 64 << 10;

/// Distance from one stack to the next: the gap is as large as a stack.
const STRIDE: u64 = 2 * STACK_BYTES;

/// Stacks of each CPU: its own, and the one for exceptions.
pub(crate) const STACKS: u64 = 2;

/// The lowest address of stack `which` (0 or 1) of CPU `number`.
pub(crate) const fn bottom(number: usize, which: u64) -> u64 {
    layout::STACKS_VADDR + (number as u64 * STACKS + which) * STRIDE
}

/// Whether 16 bytes at `address` lie in the place of a stack, mapped or not.
pub(crate) fn holds(address: u64) -> bool {
    let offset = address.wrapping_sub(layout::STACKS_VADDR);
    offset < MOST_CPUS as u64 * STACKS * STRIDE && offset % STRIDE <= STACK_BYTES - 16
}

const _: () = assert!(layout::STACKS_VADDR.is_multiple_of(STRIDE));
