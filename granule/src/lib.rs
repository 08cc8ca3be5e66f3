//! Page tables for arm64 kernels, hypervisors and firmware.
//!
//! Granule is the part of an arm64 kernel that owns its page tables: all of VMSAv8-64 stage 1
//! with 4K, 16K and 64K pages, virtual addresses of 36 to 52 bits, blocks at every level that the
//! architecture has them, and the contiguous hint. One program can serve all three page sizes:
//! the size is a type ([`arch::Page`]), so code generic over it folds as a kernel built for one
//! size does, and [`arch::PageSize::dispatch`] leads from the choice made at boot into it.
//!
//! # The parts
//!
//! - [`arch`]: the architecture as values.
//! - [`table`]: mapping, unmapping, changing permissions, asking, visiting. Stands on three small
//!   traits: reach a table's memory, get and free table pages, issue barriers and TLBIs.
//! - [`linear`]: the linear map of all RAM.
//! - [`space`]: address spaces of user programs: demand faults, copy-on-write, ASIDs.
//! - `hw`, on arm64 only: barriers and TLBIs of the CPU that runs, as the third of the three traits.
//!   No other module issues an instruction.
//! - [`guide`]: how a page size is kept from being assumed, with examples.
//!
//! What a kernel needs round its page tables is in crates that stand on this one: `granule-boot`
//! (the choice of a page size, the device tree before the MMU is on, early memory),
//! `granule-kexec` (leaving for another kernel) and `granule-recorder` (a trace of what the tables
//! were told).
//!
//! # An example
//!
//! Tables that are built on any machine, here in a plain vector; a kernel gives its own memory
//! and, on arm64, `hw::Hardware` for the instructions.
//!
//! ```
//! use granule::arch::{
//!     Attributes, CpuFeatures, Geometry, Half, IdRegisters, Page16K, Permissions,
//!     PhysicalAddress, PageSize, Regime, VirtualAddress,
//! };
//! use granule::arch::tlbi::{TlbCapabilities, TlbiOp};
//! use granule::linear::Arena;
//! use granule::table::{Leaves, Maintenance, Offset, PageTables, Parts, Reached};
//!
//! // The tables are not in use by any CPU, so there is nothing to issue.
//! struct Nothing(TlbCapabilities);
//! impl Maintenance for Nothing {
//!     fn capabilities(&self) -> &TlbCapabilities { &self.0 }
//!     fn dsb_ishst(&mut self) {}
//!     fn dsb_ish(&mut self) {}
//!     fn isb(&mut self) {}
//!     fn tlbi(&mut self, _: TlbiOp) {}
//! }
//!
//! // What a CPU with 16K pages and 48 bits of physical address says of itself.
//! let cpu = CpuFeatures::new(IdRegisters { mmfr0: 0x0010_0005, ..IdRegisters::default() });
//! let geometry = Geometry::new(&cpu, PageSize::K16, 48, Half::Upper, Regime::El1And0)?;
//!
//! // Sixteen pages for tables, reached where they lie.
//! let mut pages = vec![0u64; 17 * 2048];
//! let start = PhysicalAddress(pages.as_mut_ptr().expose_provenance() as u64);
//! let end = PhysicalAddress(start.0 + 17 * 16384);
//! // SAFETY: the vector is nobody else's and lives longer than the tables.
//! let parts = unsafe {
//!     Parts {
//!         memory: Reached(Offset::new(0)),
//!         allocator: Arena::new(start, end, PageSize::K16),
//!         maintenance: Nothing(TlbCapabilities {
//!             geometry, range: false, level_hint: false, repeat: false,
//!         }),
//!     }
//! };
//! let mut tables = PageTables::<Page16K, _>::new(geometry, parts)?;
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
//! None; no dependencies either. The least Rust version is stated in the manifest.

#![no_std]
#![deny(missing_docs)]
// Whoever uses the library is to go on compiling when a case is added.
#![deny(clippy::exhaustive_enums)]

pub mod arch;
pub mod guide;
#[cfg(target_arch = "aarch64")]
pub mod hw;
pub mod linear;
pub mod space;
pub mod table;

/// The README's code, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
