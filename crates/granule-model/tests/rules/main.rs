//! Each rule with sequences that keep it and sequences that break it.
//!
//! The tables are made by hand with the numbers in [`rig`], which come from the architecture's
//! description and not from the crate.

#![allow(
    clippy::precedence,
    reason = "descriptors read as an address and then bits"
)]

mod barriers;
mod bbm;
mod caches;
mod chaos;
mod granules;
mod groups;
mod guests;
mod held_fields;
mod kernels;
mod pointers;
mod policies;
mod programs;
mod registers;
mod reports;
mod reuse;
mod rig;
mod scale;
mod sizes;
mod stage2;
mod tables;
mod tlbis;
mod walker;
