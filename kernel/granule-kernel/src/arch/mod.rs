//! The CPU: its registers and instructions, as functions; the image that runs. Nothing here depends on
//! memory management, devices or other CPUs.

pub(crate) mod boot_stack;
pub(crate) mod counter;
pub(crate) mod cpu;
pub(crate) mod image;
pub(crate) mod left_on;
pub(crate) mod sctlr;
