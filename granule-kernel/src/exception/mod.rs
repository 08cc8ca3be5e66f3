//! Exceptions with the MMU on: the vectors, the frame they leave, and what is told.
//!
//! Interrupts, TLB conflict aborts and translation faults that are none any more are dealt with and
//! returned from; every other exception of the kernel's own ends in a report. What comes from EL0 is
//! `user::entry`'s. Nothing here that runs before an exception is dealt with may touch memory whose
//! mapping is ever split: see `conflict`.

#[cfg(target_os = "none")]
pub(crate) mod conflict;
#[cfg(target_os = "none")]
pub(crate) mod hook;
#[cfg(target_os = "none")]
pub(crate) mod spurious;
#[cfg(target_os = "none")]
mod vectors;

#[cfg(target_os = "none")]
pub(crate) use vectors::task_start;

/// Makes this CPU's exceptions come here. Until it is called VBAR holds the early vectors'
/// physical address, at which nothing is mapped.
#[cfg(target_os = "none")]
pub(crate) fn init() {
    // SAFETY: the vectors are part of the image's text, which stays mapped.
    unsafe { crate::arch::cpu::set_vbar(vectors::address()) };
}
