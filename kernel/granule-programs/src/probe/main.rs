//! A minimal next kernel that validates the kexec handoff: an independent witness of how a kernel hands over
//! to the next. It is a tiny arm64 Image, entered by the boot protocol with the MMU off.
//!
//! `head` saves the registers at the first instruction. `probe` checks them, finds the previous kernel's
//! note (`note`), digests the memory that was handed over (`digest`), prints the results by `console` in
//! the lines that `granule boot` reads, and powers off. The probe shares no code with the kernel but the
//! library's first read of the device tree, its stamp and its digest.
//!
//! With the MMU off all memory is Device memory (RPPDBS, RWFZPW): no unaligned access, no SIMD, no atomics,
//! no formatting, no code that panics; `cargo xtask probe` checks the linked code for that. Nothing between
//! the image's first and last byte is written.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod digest;
#[cfg(target_os = "none")]
mod firmware;
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
