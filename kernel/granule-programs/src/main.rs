//! A program for tests of user space: does what its first argument names.
//!
//! Static, without a C library, by the arm64 Linux system calls alone, so that it needs no more of
//! them than it names, and also runs on Linux. It ends with 0 if all was as it must be.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "there is nothing to run on the host")
)]

#[cfg(target_os = "none")]
mod tests;

#[cfg(target_os = "none")]
granule_programs::program!(tests::run);

#[cfg(not(target_os = "none"))]
fn main() {
    println!("These programs run on Granule: build them with `cargo xtask user`.");
}
