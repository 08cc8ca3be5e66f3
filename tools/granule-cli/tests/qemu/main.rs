//! The tests that boot guests under a real QEMU: one program, so that as many guests run at a time
//! as there are cores, whatever they test.
//!
//! Each folder is a room of tests, and its head names their subject. They share [`image`], where built
//! files are, [`hooked`], which starts guests, and [`booted`], which reads how they ended. A test in a
//! module named `live` has CPUs in real time, keys that are typed, signals or limits of time; each other
//! one repeats bit for bit. Other tests of the `granule` program, which need no guest, stand in
//! `tests/check.rs` and beside the code.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod booted;
mod hooked;
mod image;

mod bench;
mod boot;
mod efi;
mod firmware;
mod inspect;
mod kernel;
mod kexec;
mod permissions;
mod repeats;
mod smp;
mod trace;
mod user;
