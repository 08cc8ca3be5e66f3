//! The boot in order, from the first virtual address to the end of the user programs.
//!
//! [`kmain`] is the first code, [`boot`] the boot after the choice of page size, and [`idle`] the loop of the
//! other CPUs. [`power`] turns the machine off. [`sources`] joins files to
//! what has their bytes. [`bbm_policy`] decides how far CPUs may split live leaves.
//! [`hook`] is the test image's way into the boot.

mod bbm_policy;
mod boot;
pub(crate) mod hook;
mod idle;
mod kmain;
mod power;
mod sources;

pub(crate) use kmain::run;
