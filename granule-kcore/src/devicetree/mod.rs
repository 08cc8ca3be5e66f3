//! Readers of the device tree for use with the MMU on: memory, CPUs, interrupt controller and timer.
//! The library reads the tree before the tables exist.

pub mod cpus;
pub mod gic;
pub mod memory;
