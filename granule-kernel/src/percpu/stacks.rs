//! The stacks of the secondary CPUs: memory of their own, mapped page by page in a window, with
//! nothing mapped between.
//!
//! Two for each CPU, one for exceptions that found the other overflown, or another one in use that
//! does not lie here (see the vectors). Each is 64K and lies at a
//! multiple of 128K, so bit 16 of a stack pointer is 0 in a stack and 1 in the gap below it, which
//! is how the vectors notice an overflow (see the linker script).

use granule_kcore::cpus::MOST_CPUS;
use granule_kcore::layout;

/// Bytes of a stack.
pub(crate) const STACK_BYTES: u64 = 64 << 10;

/// From one stack to the next: the gap is as large as a stack.
const STRIDE: u64 = 2 * STACK_BYTES;

/// Stacks of a CPU: its own, and the one for exceptions.
pub(crate) const STACKS: u64 = 2;

/// The lowest address of stack `which` (0 or 1) of CPU `number`.
pub(crate) const fn bottom(number: usize, which: u64) -> u64 {
    layout::STACKS_VADDR + (number as u64 * STACKS + which) * STRIDE
}

/// Whether 16 bytes at `address` lie in a stack here, mapped or not.
pub(crate) fn holds(address: u64) -> bool {
    let offset = address.wrapping_sub(layout::STACKS_VADDR);
    offset < MOST_CPUS as u64 * STACKS * STRIDE && offset % STRIDE <= STACK_BYTES - 16
}

const _: () = assert!(layout::STACKS_VADDR.is_multiple_of(STRIDE));
