//! The CPU: its registers and instructions, as functions; the image that runs. Nothing here depends on
//! memory management, devices or other CPUs.

pub(crate) mod boot_stack;
#[cfg(target_os = "none")]
mod copy;
pub(crate) mod counter;
pub(crate) mod cpu;
pub(crate) mod image;
pub(crate) mod left_on;
pub(crate) mod phases;
pub(crate) mod sctlr;
