//! Page tables for arm64 kernels, hypervisors and firmware.
//!
//! Granule manages the page tables of an arm64 kernel. It covers all of VMSAv8-64 stage 1: 4K, 16K
//! and 64K pages, virtual addresses of 36 to 52 bits, blocks at every level where the architecture
//! has them, and the contiguous hint. One program can serve all three page sizes. The size is a
//! type ([`arch::Page`]), so the compiler folds generic code as it does in a kernel built for one
//! size. [`arch::PageSize::dispatch`] turns the size chosen at boot into that type.
//!
//! # The parts
//!
//! - [`arch`]: the architecture as values.
//! - [`table`]: maps, unmaps, changes permissions, queries and visits. It uses three small traits:
//!   access to a table's memory, allocation of table pages, and barriers with TLBIs.
//! - [`linear`]: the linear map of all RAM.
//! - [`space`]: address spaces of user programs: demand faults, copy-on-write, ASIDs.
//! - `hw`, on arm64 only: the third trait for the running CPU. No other module issues an
//!   instruction.
//! - [`guide`]: how to write code that assumes no page size, with examples.
//!
//! Three crates build on this one for what a kernel needs besides page tables: `granule-boot`
//! (the choice of a page size, the device tree before the MMU is on, early memory), `granule-kexec`
//! (starting another kernel) and `granule-recorder` (a trace of the calls to the three traits).
//!
//! # An example
//!
//! The example builds tables in a plain vector, on any machine. A kernel passes its own memory and,
//! on arm64, `hw::Hardware` for the instructions.
//!
//! ```
//! use granule::arch::{
//!     Attributes, CpuFeatures, Geometry, VaRange, IdRegisters, Page16K, Permissions,
//!     PhysicalAddress, PageSize, Regime, VirtualAddress,
//! };
//! use granule::arch::tlbi::TlbCapabilities;
//! use granule::linear::Arena;
//! use granule::table::{DirectMapped, Environment, Leaves, NoCpu, Offset, PageTables};
//!
//! // What a CPU with 16K pages and 48 bits of physical address says of itself.
//! let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(0x0010_0005));
//! let geometry = Geometry::new(&cpu, PageSize::K16, 48, VaRange::Upper, Regime::El1And0)?;
//!
//! // Sixteen pages for tables, reached where they lie.
//! let mut pages = vec![0u64; 17 * 2048];
//! let start = PhysicalAddress(pages.as_mut_ptr().expose_provenance() as u64);
//! let end = PhysicalAddress(start.0 + 17 * 16384);
//! // SAFETY: the vector is nobody else's and lives longer than the tables.
//! let environment = unsafe {
//!     Environment {
//!         memory: DirectMapped(Offset::new(0)),
//!         allocator: Arena::new(start, end, PageSize::K16),
//!         // No CPU uses the tables, so there is nothing to issue.
//!         tlb: NoCpu(TlbCapabilities::BASIC),
//!     }
//! };
//! let mut tables = PageTables::<Page16K, _>::new(geometry, environment)?;
//! let ram = Attributes::normal(Permissions::READ_WRITE);
//! let base = geometry.base();
//! tables.map(base, PhysicalAddress(0x8000_0000), 1 << 30, ram, Leaves::LARGEST)?;
//!
//! let there = tables.query(VirtualAddress(base.0 + 0x1234_5678)).ok_or("not mapped")?;
//! assert_eq!(there.output, PhysicalAddress(0x8000_0000 + 0x1234_5678));
//! // 32 MiB blocks, joined to 1 GiB by the contiguous hint.
//! assert_eq!(there.bytes, 32 << 20);
//! assert!(there.contiguous);
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `linear` (default): the module [`linear`].
//! - `space` (default): the module [`space`].
//!
//! [`arch`], [`table`] and `hw` are always there. The crate has no dependencies. The manifest states
//! the minimum Rust version.

#![no_std]
// Documentation that says which feature an item needs, on docs.rs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
// A new enum variant must not break a user's build.
#![deny(clippy::exhaustive_enums)]

pub mod arch;
pub mod guide;
#[cfg(target_arch = "aarch64")]
pub mod hw;
#[cfg(feature = "linear")]
pub mod linear;
mod setters;
#[cfg(feature = "space")]
pub mod space;
#[cfg_attr(
    not(all(feature = "linear", feature = "space")),
    allow(
        dead_code,
        reason = "methods that only a module that is left out calls"
    )
)]
pub mod table;

/// Tests that the README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
