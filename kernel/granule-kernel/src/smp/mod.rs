//! Starts the other CPUs and switches them off.
//!
//! [`start`] starts them, one after the other, from its [`inputs`]: each gets its [`place`], and is switched on by
//! firmware, or by a write to its [`release`] address. [`interrupts`] maps the interrupt controller. [`identity`] makes the map that a CPU runs on while its MMU is
//! turned on. [`secondary`] is the CPU's first code at a virtual address, and [`check`] its part of the
//! self-check. [`off`] switches CPUs off. `granule_kcore::cpus` compares CPUs and orders the steps of going
//! offline. Code that runs with the MMU off is in `early`.

pub(crate) mod check;
pub(crate) mod hook;
mod identity;
pub(crate) mod inputs;
mod interrupts;
pub(crate) mod off;
mod place;
mod release;
mod secondary;
pub(crate) mod start;
mod state;
