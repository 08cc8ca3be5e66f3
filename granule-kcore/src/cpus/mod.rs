//! CPUs as values: which there are, whether one can use the tables, what all have in common, and in
//! which order they go off. Starting and stopping a CPU is the kernel's (`smp`).

pub mod common;
pub mod compare;
#[cfg(any(test, feature = "test-image"))]
pub mod fake;
pub mod offline;
pub mod set;

/// CPUs that can run at most, the boot CPU among them. Bounds a few KiB of static storage.
pub const MOST_CPUS: usize = 32;

/// The bits of MPIDR_EL1 that name a CPU: Aff3 and Aff2 to Aff0.
pub const AFFINITY: u64 = 0xff_00ff_ffff;
