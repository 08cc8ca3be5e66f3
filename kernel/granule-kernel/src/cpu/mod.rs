//! Services between running CPUs: calls and jobs, interrupts, parking, and the identity map that a CPU runs
//! on while it is off the kernel's tables. `smp` starts CPUs and switches them off.

pub(crate) mod identity;
pub(crate) mod ipi;
pub(crate) mod irq;
pub(crate) mod jobs;
pub(crate) mod parking;
pub(crate) mod stop;
