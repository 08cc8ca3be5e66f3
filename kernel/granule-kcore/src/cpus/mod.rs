//! CPUs as values: sets of CPUs, the check of a CPU against the tables, the features that all CPUs
//! share, and the order in which CPUs go offline. The kernel (`smp`) starts and stops CPUs.

pub mod common;
pub mod compare;
#[cfg(any(test, feature = "test-image"))]
pub mod fake;
pub mod offline;
pub mod set;

/// The most CPUs that can run, the boot CPU included. What a CPU needs is allocated when it is started; this
/// number bounds a window of the address space and about 50 KiB of static storage.
pub const MOST_CPUS: usize = 1024;

/// The affinity fields of MPIDR_EL1, which identify a CPU: Aff3 and Aff2 to Aff0.
pub const AFFINITY: u64 = 0xff_00ff_ffff;
