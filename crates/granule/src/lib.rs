//! Page tables for arm64 kernels, hypervisors and firmware.
//!
//! Granule manages the page tables of an arm64 kernel. It covers all of VMSAv8-64 stage 1: 4K, 16K
//! and 64K pages, virtual addresses of up to 52 bits, blocks at every level where the architecture
//! has them, and the contiguous hint. The same operations serve a guest's memory in stage 2
//! ([`table::Stage2`]). One program can serve all three page sizes. The size is a type
//! ([`arch::Page`]), so the compiler folds generic code as it does in a kernel built for one size.
//! [`arch::PageSize::dispatch`] turns the size chosen at boot into that type.
//!
//! # The parts
//!
//! - [`arch`]: the architecture as values.
//! - [`table`]: maps, unmaps, changes permissions, queries and visits. A kernel
//!   implements one trait ([`table::TableEnvironment`]): a pointer to a table, a page for a new one, its
//!   release, and barriers with TLBIs.
//! - [`linear`]: the linear map of all RAM.
//! - [`space`]: address spaces of user programs: demand faults, copy-on-write, ASIDs.
//! - `hw`, on arm64 only: the running CPU. It has barriers and TLBIs, the ID registers, cache
//!   maintenance, the switch of the MMU, and a handler of TLB conflict aborts. No other module
//!   issues an instruction.
//! - [`guide`]: which call does what, and how to write code that assumes no page size, with examples.
//!
//! Modules import in one direction; `hw` is behind a trait of [`table`]:
//!
//! ```text
//! arch <- table <- linear, space
//!         table <- hw
//! ```
//!
//! Three crates build on this one for what a kernel needs besides page tables: `granule-boot`
//! (the choice of a page size, the device tree before the MMU is on, early memory), `granule-kexec`
//! (starting another kernel) and `granule-trace` (by its feature `recorder` counts and traces of what tables do
//! to memory and TLBs).
//!
//! # An example
//!
//! The example builds tables in a plain vector, on any machine.
//!
//! ```
//! use granule::arch::*;
//! use granule::table::*;
//!
//! // The ID registers of a CPU with 16K pages and 48 bits of physical address.
//! let cpu = CpuFeatures { mmfr0: 0x0010_0005, ..CpuFeatures::NONE };
//! let geometry = Geometry::new(&cpu, PageSize::K16, 48, VaRange::Upper, Regime::El1And0)?;
//!
//! // Sixteen pages for tables, reached where they lie. No CPU uses them: there is no TLB.
//! let mut memory = vec![0u64; 17 * 2048];
//! let start = PhysicalAddress(memory.as_mut_ptr().expose_provenance() as u64);
//! let flat = unsafe { Offset::new(0) }; // SAFETY: the vector outlives the tables.
//! let mut pages = FreeList::new(flat, PageSize::K16);
//! unsafe { pages.add(start, PhysicalAddress(start.0 + 17 * 16384)) }; // SAFETY: as above.
//!
//! let mut tables = PageTables::<Page16K, _>::new(geometry, pages.environment())?;
//! let (base, ram) = (geometry.base(), Attributes::normal(Permissions::READ_WRITE));
//! tables.map(base, PhysicalAddress(0x8000_0000), 1 << 30, ram, Leaves::LARGEST)?;
//! let there = tables.query(base).ok_or("not mapped")?;
//! assert_eq!((there.bytes, there.contiguous), (32 << 20, true)); // 1 GiB by the contiguous hint
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! A kernel implements [`table::TableEnvironment`], with `hw::issue` for the instructions. The module
//! `hw` has the whole way from MMU off to on, step by step, and `examples` in the repository has a
//! kernel and firmware that boot.
//!
//! # Names
//!
//! Kernels have types of their own called `PageSize`, `Page`, `Level` or `FreeList`. There is no prelude
//! and no prefix: a kernel imports modules (`use granule::{arch, table};`) and writes `arch::PageSize`.
//! A prefix would repeat the module's name in every line of the kernels that have no such types.
//! [`guide`] begins with the names that most code needs.
//!
//! # Features
//!
//! - `linear` (default): the module [`linear`].
//! - `space` (default): the module [`space`].
//! - `page-4k`, `page-16k`, `page-64k` (default): with one of them alone, [`arch::AnyPage`] is that size
//!   and folds, as its type does. With more of them or none it is the size of the geometry.
//! - `published`: the linear map as others have published it, to measure against.
//!
//! [`arch`], [`table`] and `hw` are always there. The crate has no dependencies. The manifest states
//! the minimum Rust version.

#![no_std]
// Documentation that names the feature that an item needs, on docs.rs.
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
#[doc = include_str!("../../../README.md")]
struct Readme;
