//! What the `granule` command does, as a library: boot the reference kernel
//! under QEMU and say, in words and in JSON, how it ended.
//!
//! The tests of other packages call this directly: fill a [`Request`], give it
//! to [`boot::boot`], look at the [`Boot`] that comes back. Boots share nothing
//! (each has a temporary directory and a socket of its own), so several may run
//! at a time.
//!
//! ```no_run
//! use granule_cli::{Request, boot};
//!
//! let request = Request { memory: 512 << 20, ..Request::default() };
//! let done = boot::run(&request);
//! assert!(done.is_ok(), "{}", done.last_line());
//! println!("{}", done.json());
//! ```
//!
//! Nothing in here prints, reads the command line or exits: that is the work of
//! the binary.

#![deny(missing_docs)]

pub mod args;
pub mod bench;
pub mod boot;
pub mod bootrec;
pub mod check;
pub mod clock;
mod console;
pub mod cost;
mod guest;
pub mod image;
pub mod initramfs;
mod json;
mod judge;
pub mod kexec;
pub mod plan;
mod qemu;
mod qmp;
pub mod raw;
pub mod record;
pub mod records;
pub mod report;
pub mod request;
pub mod sizes;
pub mod trace;
pub mod trace_area;
pub mod tree;
pub mod usage;
pub mod verdict;

pub use boot::{Boot, Outcome};
pub use bootrec::BootRecord;
pub use initramfs::Initramfs;
pub use kexec::Kexec;
pub use request::{Barriers, LinearMap, PageSize, Request, Rodata};
