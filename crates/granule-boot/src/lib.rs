//! Decisions that an arm64 kernel makes before and just after its first page table exists.
//!
//! The page size must be known before the first table is built, and the command line that names it
//! lies in the device tree. So a kernel reads the tree with the MMU off. This crate has the code
//! for that:
//!
//! - [`tree`] reads and writes device trees, for all code before and after that.
//! - [`peek`] finds a few facts in the tree.
//! - [`words`] splits the command line.
//! - [`kaslr`] draws the kernel's addresses from firmware's seed.
//! - [`firmware`] gets the SoC's identity from firmware, by calls that are sure to exist.
//! - [`machines`] is the table of machines that need a page size, or cannot use one.
//! - [`uart`] describes a UART that can be the console, by the names that a tree and a command line have for it.
//! - [`sizes`] is a set of page sizes.
//! - [`choice`] turns all of these into a page size and a size of virtual addresses.
//!
//! [`chosen`] has names and values of `/chosen` that several of them share.
//!
//! Where EFI firmware started the machine, three modules come before them:
//! - [`efi`] reads the memory map and the tables that firmware names.
//! - [`acpi`] reads a few of ACPI's tables.
//! - [`expand`] turns both into a device tree, the only description that all others read.
//!
//! Three more modules serve the kernel once the page size is chosen:
//!
//! - [`memblock`] is early memory: banks, reservations, a first allocator.
//! - [`driver`] decides whether a driver works with that page size.
//! - [`stamp`] marks data for the next boot, which may run with another page size.
//!
//! Every function is pure: bytes and register values in, plain values out.
//!
//! ```
//! use granule::arch::PageSize::{K4, K16, K64};
//! use granule_boot::sizes::SizeSet;
//!
//! // The sizes that this CPU and this build of the kernel both have.
//! let cpu = SizeSet::NONE.with(K4).with(K64);
//! let both = SizeSet::ALL.and(cpu);
//! assert!(both.has(K64) && !both.has(K16));
//! ```
//!
//! # Rules for code that runs with the MMU off
//!
//! With stage 1 off every data access is Device-nGnRnE (RPPDBS): an unaligned access faults, and
//! exclusives are not guaranteed to work. There is no vector table that could report a panic. So
//! the modules of these two lists
//! - read the tree byte by byte, and are compiled with strict alignment,
//! - neither panic nor format: no indexing, no slicing by range, no arithmetic that can overflow,
//!   no `unwrap`. `Display` is implemented for later, when there is a console,
//! - use neither atomics nor a heap.
//!
//! Their results must not hold pointers into the image, because a pointer made with the MMU off is
//! a physical address. The choices are therefore plain values, texts are looked up when they are
//! printed, and only [`tree`] and [`peek::Peek`] borrow (from the tree).

#![no_std]
#![deny(missing_docs)]
// A program that uses the library must still compile after a case is added.
#![deny(clippy::exhaustive_enums)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects,
        clippy::integer_division,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::todo
    )
)]

pub mod acpi;
pub mod choice;
pub mod chosen;
pub mod driver;
pub mod efi;
pub mod expand;
pub mod firmware;
pub mod kaslr;
pub mod machines;
pub mod memblock;
pub mod peek;
pub mod sizes;
pub mod stamp;
pub mod tree;
pub mod uart;
pub mod words;

mod bytes;

pub use bytes::Text;
