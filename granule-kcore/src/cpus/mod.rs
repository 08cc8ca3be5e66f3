//! CPUs as values: sets of CPUs, the check of a CPU against the tables, the features that all CPUs
//! share, and the order in which CPUs go offline. The kernel (`smp`) starts and stops CPUs.

pub mod common;
pub mod compare;
#[cfg(any(test, feature = "test-image"))]
pub mod fake;
pub mod offline;
pub mod set;

/// The most CPUs that can run, the boot CPU included. Bounds a few KiB of static storage.
pub const MOST_CPUS: usize = 32;

/// The affinity fields of MPIDR_EL1, which identify a CPU: Aff3 and Aff2 to Aff0.
pub const AFFINITY: u64 = 0xff_00ff_ffff;
