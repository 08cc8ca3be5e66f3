//! What the kernel reads out of the device tree once the MMU is on: memory, CPUs, interrupt
//! controller and timer. The look into the tree before there are tables is the library's.

pub mod cpus;
pub mod gic;
pub mod memory;
