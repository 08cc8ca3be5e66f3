//! Exceptions with the MMU on: the vectors, the register frame, and the handlers.
//!
//! Interrupts, TLB conflict aborts and spurious translation faults are handled and return. Every
//! other exception of the kernel ends in a fatal report. `task::entry` handles exceptions from EL0.
//! Code here that runs before an exception is handled must not access memory whose mapping is ever
//! split: see `conflict`.

pub(crate) mod conflict;
pub(crate) mod hook;
pub(crate) mod spurious;
pub(crate) mod vectors;

pub(crate) use vectors::task_start;

/// Sets this CPU's vectors. Before this call VBAR holds the early vectors' physical address, where nothing is
/// mapped.
#[allow(unsafe_code, reason = "installs the vectors")]
pub(crate) fn init() {
    // SAFETY: the vectors are part of the image's text, which stays mapped.
    unsafe { crate::arch::cpu::set_vbar(vectors::address()) };
}
