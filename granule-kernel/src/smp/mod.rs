//! Bringing the other CPUs up, and switching them off.
//!
//! [`start`] brings them up, one after the other; [`identity`] makes the map that each stands on while its
//! MMU is turned on, [`secondary`] is its first code at a virtual address, [`check`] its part of the
//! self-check. [`off`] switches them off. Comparison of CPUs and the order of going offline are in
//! `granule_kcore::cpus`; what runs with the MMU off is in `early`.

pub(crate) mod check;
pub(crate) mod hook;
mod identity;
pub(crate) mod off;
mod secondary;
pub(crate) mod start;
mod state;
