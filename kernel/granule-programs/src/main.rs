//! A program for tests of user space: does what its first argument names.
//!
//! Static, without a C library, by the arm64 Linux system calls alone, so that it needs no more of
//! them than it names, and also runs on Linux. It ends with 0 if all was as it must be.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod tests;

granule_programs::program!(tests::run);
