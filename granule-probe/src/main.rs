//! A next kernel that does nothing but look: an independent witness of how a kernel that leaves for
//! another hands over. A tiny arm64 Image, entered by the boot protocol with the MMU off.
//!
//! [`head`] keeps what the registers hold at the first instruction, [`probe`] judges it, finds the note
//! of who left ([`note`]), digests what lies in memory ([`given`]), and says all of it by [`console`]
//! in the lines that `granule boot` reads; then it powers off. It shares no code with the kernel but
//! the library's device-tree look, stamp and digest.
//!
//! With the MMU off all memory is Device memory (RPPDBS, RWFZPW): no unaligned access, no SIMD, no
//! atomics, no formatting, nothing that panics; `cargo xtask probe` checks the linked code for that.
//! Nothing between the image's first and last byte is written.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod firmware;
#[cfg(target_os = "none")]
mod given;
#[cfg(target_os = "none")]
mod head;
#[cfg(target_os = "none")]
mod note;
#[cfg(target_os = "none")]
mod probe;

#[cfg(not(target_os = "none"))]
fn main() {
    println!("The probe is booted, not run: build it with `cargo xtask probe`.");
}
