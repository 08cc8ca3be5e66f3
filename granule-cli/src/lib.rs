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
pub mod cost;
pub mod image;
pub mod initramfs;
pub mod plan;
pub mod request;
pub mod result;
pub mod sizes;
pub mod trace;
pub mod trace_area;
pub mod usage;

pub use bootrec::BootRecord;
pub use initramfs::Initramfs;
pub use request::{Barriers, Kexec, LinearMap, PageSize, Request, Rodata};
pub use result::{Boot, Outcome};
