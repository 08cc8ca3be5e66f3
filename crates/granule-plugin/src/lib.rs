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
//!
//! ```text
//! guest -> QEMU -> decode, track -> socket -> granule watch: model, --record, report
//! guest -> QEMU -> accesses      -> socket -> granule bench tlb: granule-tlb, table or JSON
//! ```
//!
//! One shared library serves the versions 4 (QEMU 10.0) to 7 (11.1) of the interface, of which no QEMU
//! accepts all: `qemu::api` looks the functions up by name, and a function that runs when the library is
//! loaded sets the version that QEMU then reads. The build script of `granule-cli` compiles the library into
//! the program `granule`, so an installed program needs no other file, and both are always of one version.
//!
//! The guest's RAM is a memory file of QEMU's, which `granule watch` adds to the command. The plugin is in
//! QEMU's process and finds the file there (`qemu::ram`), so it can read every table at every moment: what DC
//! ZVA stored, what hardware changed, what a page holds that becomes a table.
//!
//! A block of code is instrumented when QEMU translates it: the instructions that concern translation, and
//! each store, unless the block is EL0's. A store looks up its page's flags and leaves a stamp there, without
//! a lock. About one store in two hundred goes on, to the tracker under its lock.
//!
//! The plugin keeps a copy of each table, 17 bytes for each page of the guest, a few words for each
//! instruction that it watches, and 64 KiB of records. The reader keeps what the model keeps, which for one
//! event of a hostile guest may be some GiB. A slow reader makes the guest wait.

#![deny(missing_docs)]

pub mod accesses;
pub mod counts;
pub mod decode;
#[cfg(target_os = "linux")]
mod qemu;
pub mod stream;
pub mod track;
