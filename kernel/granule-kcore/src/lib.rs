//! The parts of the reference kernel that touch no hardware.
//!
//! Everything here is tested on the host, and fuzzed where it reads bytes that somebody else wrote.
//! Code that reads a register, prints, or uses a device's address belongs in `granule-kernel`.
//! Where a decision depends on the running CPU, the kernel implements a trait ([`lock::Cpu`],
//! [`cpus::offline::Others`]).
//!
//! [`mod@line`], [`trace`], [`uart`], [`layout`], [`sizes`] and [`cpus::compare`] also serve code that runs with
//! the MMU off: they do not format, and cannot panic.

#![cfg_attr(not(test), no_std)]
#![deny(missing_docs)]
// Miri runs the modules that allow unsafe code, and only these (`tools/xtask/src/packages.rs`).

pub mod bcm2836;
pub mod conflict_injection;
pub mod console_output;
pub mod counter_wrap;
pub mod cpus;
pub mod crash;
pub mod deferred_tlbi;
pub mod devicetree;
pub mod efi;
pub mod exception_frame;
pub mod frames;
pub mod kexec;
pub mod layout;
pub mod line;
pub mod lock;
#[cfg(test)]
mod made_trees;
pub mod merge_candidates;
pub mod module;
pub mod parameters;
pub mod persist;
pub mod random;
pub mod rate_limit;
pub mod sched;
pub mod sizes;
pub mod syndrome;
pub mod timeout;
pub mod trace;
pub mod uart;
pub mod user_sizes;
