//! More than one CPU: which there are, whether they can live with the tables, starting them, and
//! what each of them owns.
//!
//! Comparison of CPUs, sets of CPUs and the order of going offline are in `granule_kcore::cpus`.
//! [`mailbox`] is what the boot CPU leaves for a CPU that has its MMU off, and that CPU for the boot
//! CPU; the MMU-off code itself is in `head::secondary` and `mmu_off::secondary`. [`start`] brings the
//! CPUs up, [`percpu`] is what each owns, [`stacks`] where they stand, [`jobs`] is what they do when
//! they are told to, [`off`] switches them off, [`parking`] takes all but one of them off the kernel's
//! tables.

pub(crate) mod check;
pub(crate) mod hook;
pub(crate) mod identity;
pub(crate) mod jobs;
pub(crate) mod mailbox;
pub(crate) mod off;
pub(crate) mod parking;
pub(crate) mod percpu;
mod secondary;
pub(crate) mod stacks;
pub(crate) mod start;
