//! A plugin for QEMU that tells what an unmodified arm64 system does to its own translation.
//!
//! QEMU loads this crate as a shared library and calls it when it translates instructions, when the
//! guest stores, and when the instructions run that concern translation. The plugin keeps track of
//! the guest's tables ([`track`]), and sends what it sees to `granule watch` ([`stream`]).
//!
//! For `granule bench tlb` it tells the pages that the system accesses instead ([`accesses`]).
//!
//! For `granule bench user` it tells how many TLBIs and DSBs executed ([`counts`]).
//!
//! [`decode`], [`track`], [`stream`], [`accesses`] and [`counts`] know nothing of QEMU and have no unsafe code. Everything
//! that does is in the private module `qemu`, which speaks QEMU's plugin interface in declarations
//! of its own.

#![deny(missing_docs)]

pub mod accesses;
pub mod counts;
pub mod decode;
#[cfg(target_os = "linux")]
mod qemu;
pub mod stream;
pub mod track;
