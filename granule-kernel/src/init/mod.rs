//! The boot in order, from the first virtual address to the end of the programs.
//!
//! [`hook`] is where the test image comes in.

pub(crate) mod hook;
