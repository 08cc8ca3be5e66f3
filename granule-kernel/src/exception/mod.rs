//! Exceptions with the MMU on: the vectors, the frame they leave, and what is told.
//!
//! The kernel has no exception that it returns from, so each ends in a report.

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

/// Used by assembly only: with the MMU off by every exception, with it on by those
/// that found the stack overflown.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
static mut EMERGENCY_STACK: Stack = Stack([0; EMERGENCY_STACK_BYTES]);

/// Makes exceptions come here. Until it is called VBAR holds the early vectors'
/// physical address, at which nothing is mapped.
#[cfg(target_os = "none")]
pub(crate) fn init() {
    // SAFETY: the vectors are part of the image's text, which stays mapped.
    unsafe { crate::cpu::set_vbar(vectors::address()) };
}
