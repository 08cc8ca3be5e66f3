//! The boot in order, from the first virtual address to the end of the programs.
//!
//! [`kmain`] is the first code, [`boot`] the boot from the choice of page size on, [`idle`] what the other
//! CPUs do from when they are up. [`bbm_policy`] decides how far CPUs may split live leaves. [`hook`] is
//! where the test image comes in.

mod bbm_policy;
mod boot;
pub(crate) mod hook;
mod idle;
mod kmain;

pub(crate) use kmain::run;
