//! What a kernel must decide before its first translation table exists.
//!
//! The page size has to be known when the first table is built, and the command line that names
//! it lies in the device tree. So the tree is looked at with the MMU off, and this module holds
//! all that such code needs: [`peek`] finds a few facts in the tree, [`words`] splits the command
//! line, [`firmware`] knows what firmware may be asked, [`machines`] is the table of machines with
//! wishes of their own, and [`choice`] turns all of it into a page size and a VA size. All of it is
//! pure: bytes and register values in, plain values out.
//!
//! # What may not live here
//!
//! With stage 1 off every data access is Device-nGnRnE (RPPDBS): an unaligned access faults, and
//! exclusives are not guaranteed to work. Nor is there a vector table that could report a panic.
//! So code in here that runs with the MMU off
//! - reads the tree byte by byte, and is to be compiled with strict alignment,
//! - can neither panic nor format: no indexing, no slicing by range, no arithmetic that can
//!   overflow, no `unwrap`. `Display` is implemented for later, when there is a console,
//! - uses neither atomics nor a heap.
//!
//! What it returns and what is kept until the MMU is on must not hold pointers into the image: a
//! pointer made with the MMU off is a physical address. The choices are therefore plain values,
//! texts are looked up when they are printed, and only [`peek::Peek`] borrows (from the tree).

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

pub mod choice;
pub mod firmware;
pub mod machines;
pub mod peek;
pub mod words;

mod bytes;

pub use bytes::Text;
