//! More than one CPU: which there are, whether they can live with the tables, starting them, and
//! what each of them owns.
//!
//! What is pure lives in [`compare`], [`common`], [`fake`], [`going`], [`set`] and [`tree`], and is tested on the
//! host. [`mailbox`] is what the boot CPU leaves for a CPU that has its MMU off, and that CPU for
//! the boot CPU; the MMU-off code itself is in `head::secondary` and `mmu_off::secondary`.
//! [`start`] brings the CPUs up, [`percpu`] is what each owns, [`stacks`] where they stand, [`jobs`]
//! is what they do when they are told to, [`off`] switches them off, [`parking`] takes all but one of them off the kernel's
//! tables.

pub(crate) mod common;
pub(crate) mod compare;
#[cfg(any(test, feature = "test-image"))]
pub(crate) mod fake;
mod going;
pub(crate) mod set;
pub(crate) mod tree;

#[cfg(target_os = "none")]
pub(crate) mod check;
#[cfg(target_os = "none")]
pub(crate) mod hook;
#[cfg(target_os = "none")]
pub(crate) mod identity;
#[cfg(target_os = "none")]
pub(crate) mod jobs;
#[cfg(target_os = "none")]
pub(crate) mod mailbox;
#[cfg(target_os = "none")]
pub(crate) mod off;
#[cfg(target_os = "none")]
pub(crate) mod parking;
#[cfg(target_os = "none")]
pub(crate) mod percpu;
#[cfg(target_os = "none")]
mod secondary;
#[cfg(target_os = "none")]
pub(crate) mod stacks;
#[cfg(target_os = "none")]
pub(crate) mod start;

/// CPUs that can run at most, the boot CPU among them. Bounds a few KiB of static storage.
pub(crate) const MOST_CPUS: usize = 32;

/// The bits of MPIDR_EL1 that name a CPU: Aff3 and Aff2 to Aff0.
pub(crate) const AFFINITY: u64 = 0xff_00ff_ffff;
