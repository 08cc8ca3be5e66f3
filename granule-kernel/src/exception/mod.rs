//! Exceptions with the MMU on: the vectors, the frame they leave, and what is told.
//!
//! Interrupts are dealt with and returned from; every other exception ends in a report.

mod frame;
pub(crate) mod syndrome;
#[cfg(target_os = "none")]
mod vectors;

#[cfg(target_os = "none")]
pub(crate) use frame::Frame;

/// Bytes of the stack for exceptions that cannot use the one they came from.
pub(crate) const EMERGENCY_STACK_BYTES: usize = 16 << 10;

#[repr(C, align(16))]
#[cfg(target_os = "none")]
struct Stack([u8; EMERGENCY_STACK_BYTES]);

/// Used by assembly only: with the MMU off by every exception, with it on by those of the boot
/// CPU that found the stack overflown. The other CPUs have theirs from `smp::stacks`.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
static mut EMERGENCY_STACK: Stack = Stack([0; EMERGENCY_STACK_BYTES]);

/// The top of the boot CPU's emergency stack.
#[cfg(target_os = "none")]
pub(crate) fn boot_emergency_top() -> u64 {
    &raw const EMERGENCY_STACK as u64 + EMERGENCY_STACK_BYTES as u64
}

/// Makes this CPU's exceptions come here. Until it is called VBAR holds the early vectors'
/// physical address, at which nothing is mapped.
#[cfg(target_os = "none")]
pub(crate) fn init() {
    // SAFETY: the vectors are part of the image's text, which stays mapped.
    unsafe { crate::cpu::set_vbar(vectors::address()) };
}
