//! A plugin for QEMU that records how an unmodified arm64 system changes its own translation.
//!
//! QEMU loads this crate as a shared library and calls it when it translates instructions, when the
//! guest stores, and when instructions execute that concern translation. The plugin tracks the
//! guest's tables ([`track`]) and sends a stream of records to `granule watch` ([`stream`]).
//!
//! For `granule bench tlb` it records the pages that the system accesses instead ([`accesses`]).
//!
//! For `granule bench user` it counts the TLBIs and DSBs that execute ([`counts`]).
//!
//! [`decode`], [`track`], [`stream`], [`accesses`] and [`counts`] are independent of QEMU and have
//! no unsafe code. Everything else is in the private module `qemu`, which calls QEMU's plugin
//! interface through its own declarations.

#![deny(missing_docs)]

pub mod accesses;
pub mod counts;
pub mod decode;
#[cfg(target_os = "linux")]
mod qemu;
pub mod stream;
pub mod track;
