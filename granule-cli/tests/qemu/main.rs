//! What boots guests under a real QEMU: one program, so that as many guests run at a time as there are
//! cores, whatever they test.
//!
//! Each folder is a room of tests, and says what its tests are about. [`image`], [`hooked`] and [`turn`] are
//! what they share: where built files are, which requests take the image with hooks for tests, and how many
//! guests of several CPUs run at once. Other tests of the
//! `granule` program, which need no guest, stand in `tests/check.rs` and beside the code.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hooked;
mod image;
mod turn;

mod bench;
mod boot;
mod kernel;
mod kexec;
mod permissions;
mod smp;
mod trace;
mod user;
