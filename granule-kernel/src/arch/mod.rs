//! The CPU: its registers and instructions, as functions; the frame of an exception; the image that
//! runs. Nothing here depends on memory management, devices or other CPUs.

pub(crate) mod frame;

#[cfg(target_os = "none")]
pub(crate) mod boot_stack;
#[cfg(target_os = "none")]
pub(crate) mod cache;
#[cfg(target_os = "none")]
pub(crate) mod counter;
#[cfg(target_os = "none")]
pub(crate) mod cpu;
#[cfg(target_os = "none")]
pub(crate) mod image;
#[cfg(target_os = "none")]
pub(crate) mod sctlr;
