//! Replacing one running arm64 kernel with another while the MMU stays on (kexec): the pure parts,
//! and the relocation code.
//!
//! A next kernel is a set of [`Segment`]s: bytes that must be at given physical addresses when the
//! next kernel starts. The relocation code moves them there. The code runs from its own page, on
//! its own translation tables, and follows a list of records.
//!
//! This crate holds the image header ([`ImageHeader`]), the checks of segments and the plan for
//! them ([`check_places`], [`plan()`]), the list in memory with its digest ([`RelocationList`],
//! [`verify()`]), the transitional tables ([`build`]), and the relocation code (`relocate`, bare
//! arm64 only). The relocation code also exists in Rust, for models, recorders and counters
//! ([`steps`], [`Recorder`], [`InstructionCounts`]). File access, page allocation, other CPUs,
//! devices and device trees belong to the kernel.
//!
//! A kernel uses the crate in this order:
//!
//! 1. Check the image and place the segments: [`ImageHeader::read`] and
//!    [`check`](ImageHeader::check), [`find_place`] for each segment, then [`check_places`] and
//!    [`check_boot`]. The first search reserves all memory in use; the second search, needed only
//!    if no free stretch is long enough, does not.
//! 2. Allocate pages for the bytes: the destination's own pages where they are free, other pages
//!    elsewhere. [`in_the_way`] reports whether a page collides with a destination. Load the bytes
//!    and zero the rest of the last page.
//! 3. Allocate pages for the relocation code, for the list ([`RelocationList::write`]) and for the
//!    tables ([`build`]). No segment's destination may cover any of them. [`Ranges`] collects the
//!    memory to map, from [`reached`] and [`RelocationList::each_page`].
//! 4. [`RelocationList::seal`]. The next kernel is now loaded, and can still be unloaded
//!    ([`RelocationList::free`], [`free`]).
//! 5. Copy the relocation code to its page, clean the page and invalidate the instruction caches.
//!    The uncached way also cleans the pages of the list. Take other CPUs off, quiesce devices,
//!    call [`verify()`], then `relocate::leave`.
//!
//! # Design
//!
//! - **Checks come first.** An invalid segment returns a [`Refusal`] before anything is taken or written.
//!   Sources lie outside all destinations, which is checked, so every order of copies is right. The list has
//!   a digest, which is verified before the point of no return, because the relocation code checks nothing.
//! - **Pages have one owner.** A [`RelocationList`] and a [`Transition`] own their pages and are consumed when
//!   these are freed. What is stored and freed through other values (memory, allocator, environment) is
//!   unsafe: the caller vouches that they fit.
//! - **Nothing is shared with memory that is replaced.** Code, list and tables lie in new pages outside all
//!   destinations. The linear map of the transitional tables holds sources, destinations and the list, and
//!   nothing else, so a stray store faults.
//! - **Copying**: 64 bytes by load and store pairs, four a round. A line that must be clean gets one DC CVAC
//!   right behind its stores, while it is still at hand, so there is no second pass over the copied bytes.
//!   One DSB SY serves all of it: the number of barriers does not grow with the bytes.
//!
//! The relocation code exists twice: `relocate.s`, and [`steps`], the same in Rust through a trait. A test
//! executes the assembly on the host, one instruction at a time, and compares every load, store, cache
//! operation, barrier and register write with the Rust steps. It repeats this with each instruction left out,
//! and each omission must be detected. A copied line takes 8.5 instructions, a copied and cleaned one 9.5, an
//! only cleaned one 2.5, a record about 8 more. The limit is 1.1 times (9.5 instructions for each copied line
//! and 1 for each cleaned one). One segment that is copied stays below it; lines that are only cleaned do
//! not.

#![no_std]
#![deny(missing_docs)]
// A program that uses the library must still compile after a case is added.
#![deny(clippy::exhaustive_enums)]

pub mod count;
pub mod digest;
pub mod header;
pub mod image;
mod layout;
pub mod list;
pub mod memory;
pub mod place;
pub mod plan;
pub mod ranges;
pub mod step_recorder;
// Sections and symbols are those of ELF, and nothing but a kernel can run it.
#[cfg(all(target_arch = "aarch64", target_os = "none"))]
pub mod relocate;
pub mod segment;
pub mod steps;
pub mod tables;
pub mod verify;

pub use count::{InstructionCounts, copy_accesses};
pub use digest::Digest;
pub use header::ListHeader;
pub use image::{ImageError, ImageHeader};
pub use layout::{
    CLEAN, CODE_BYTES, COPY, EL2, END, LINE, LINK, MOST_LINE, RECORD_BYTES, SET_VECTORS, START,
    UNCACHED, UNIT,
};
pub use list::{RelocationList, Way};
pub use memory::ListMemory;
pub use place::{ANYWHERE, TREE_BLOCK, check_boot, find_place, near};
pub use plan::{ListRecord, Totals, check, plan, reached};
pub use ranges::{Full, Ranges};
pub use segment::{Clean, MemoryMap, PhysRange, Refusal, Segment, check_places, in_the_way};
pub use step_recorder::Recorder;
pub use tables::{Needs, Transition, TransitionError, build, free, identity_geometry};
pub use verify::{ListError, verify};
