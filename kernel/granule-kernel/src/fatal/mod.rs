//! The two fatal ends: a refusal, which prints in one line why the boot cannot continue, and a
//! panic.
//!
//! Errors that the boot survives do not belong here.

pub(crate) mod panic;
pub(crate) mod refuse;
