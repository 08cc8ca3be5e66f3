//! CPUs that share tables, in many interleavings: a step is an event, and between any two of them
//! the others run. The model decides what they may find at each point, with all that a TLB may
//! hold.
//!
//! [`tables`] has the kernel's tables and a walker, [`spaces`] the threads of one program, whose CPUs also go
//! to one of another page size ([`switches`]).

#![allow(clippy::unwrap_used, reason = "a poisoned lock is a failed test")]

mod frames;
mod machine;
mod spaces;
mod switches;
mod tables;
