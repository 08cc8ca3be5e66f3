//! The library behind the `granule` command: boots the reference kernel under QEMU and reports the
//! result in words and in JSON.
//!
//! Tests of other packages call this library directly: they fill a [`Request`], pass it to
//! [`boot::boot`] and inspect the returned [`Boot`]. Boots share nothing (each has its own
//! temporary directory and socket), so several may run at a time.
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
//! The library never prints, reads the command line or exits: the binary does.

pub mod args;
pub mod bench;
pub mod boot;
pub mod bootrec;
pub mod check;
pub mod cost;
pub mod disk;
pub(crate) mod findings;
pub mod firmware;
pub mod image;
pub mod initramfs;
pub mod inspect;
pub(crate) mod json;
pub mod loader;
pub(crate) mod page;
pub mod plan;
pub mod request;
pub mod result;
pub mod schema;
pub mod sizes;
pub mod trace;
pub mod trace_area;
pub mod usage;
pub mod watch;

pub use bootrec::BootRecord;
pub use initramfs::Initramfs;
pub use request::{
    Barriers, Crash, Firmware, KaslrSeed, Kexec, LinearMap, PageSize, Request, Rodata,
};
pub use result::{Boot, Outcome};
