//! What a CPU does for the others: calls and jobs, interrupts, parking, and the identity map that a CPU
//! stands on while it is off the kernel's tables. Bringing CPUs up and switching them off is `smp`'s.

pub(crate) mod identity;
pub(crate) mod ipi;
pub(crate) mod irq;
pub(crate) mod jobs;
pub(crate) mod parking;
