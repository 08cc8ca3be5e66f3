//! Leaving one arm64 kernel for another with the MMU on: the parts that are pure, and the relocation
//! code.
//!
//! A next kernel is some [`Segment`]s: bytes that are to be at certain physical addresses when it
//! begins. They are put there by code that runs on tables of its own, from a page of its own, and
//! follows a list. Here are the image's header ([`ImageHeader`]), the judgement of segments and the
//! plan for them ([`check_places`], [`plan()`]), the list in memory with its digest ([`List`],
//! [`verify()`]), the transitional tables ([`build`]), the relocation code itself (`relocate`, bare arm64
//! only) and the same in Rust for whoever models, records or counts it ([`steps`], [`Recorder`], [`Counts`]). Nothing here knows where
//! files come from, how pages are found, other CPUs, devices, or device trees.
//!
//! In the order in which a kernel needs it:
//!
//! 1. [`ImageHeader::read`] and [`check`](ImageHeader::check); [`find_place`] for each segment, first
//!    with all memory in use reserved, then, if nothing is long enough, without; [`check_places`] and [`check_boot`].
//! 2. Pages for the bytes: the destination's own where they are free, others where they are not, of
//!    which [`in_the_way`] says whether they may be taken. Bytes are loaded into them, the last page's
//!    rest is zeroed.
//! 3. A page for the relocation code and the list's ([`List::write`]) and the tables' ([`build`]): all of
//!    them such that nothing is in the way. What the tables map is gathered in [`Ranges`] from
//!    [`reached`] and [`List::each_page`].
//! 4. [`List::seal`]. The next kernel is loaded; up to here all can be given back ([`List::free`],
//!    [`free`]).
//! 5. The relocation code is copied to its page, cleaned, and the instruction caches invalidated; for
//!    the uncached way the list's pages are cleaned. Other CPUs off, devices quiet, [`verify()`], and
//!    `relocate::leave`.

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
pub mod place;
pub mod plan;
pub mod ranges;
pub mod record;
// Sections and symbols are those of ELF, and nothing but a kernel can run it.
#[cfg(all(target_arch = "aarch64", target_os = "none"))]
pub mod relocate;
pub mod segment;
pub mod steps;
pub mod tables;
pub mod verify;

pub use count::{Counts, copy_accesses};
pub use digest::Digest;
pub use header::{Header, ListMemory};
pub use image::{ImageError, ImageHeader};
pub use layout::{
    CLEAN, CODE_BYTES, COPY, EL2, END, LINE, LINK, MOST_LINE, RECORD_BYTES, SET_VECTORS, START,
    UNCACHED, UNIT,
};
pub use list::{List, Way};
pub use place::{ANYWHERE, TREE_BLOCK, check_boot, find_place, near};
pub use plan::{Record, Totals, check, plan, reached};
pub use ranges::{Full, Ranges};
pub use record::Recorder;
pub use segment::{Clean, Extent, Ground, Refusal, Segment, check_places, in_the_way};
pub use tables::{Needs, Transition, TransitionError, build, free, identity_geometry};
pub use verify::{ListError, verify};
