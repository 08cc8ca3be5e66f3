//! Granule's reference kernel: one bootable image for every page size.
//!
//! The boot loader enters [`early`] with the MMU off. [`early`] reads the device tree, builds the boot
//! tables, turns the MMU on and jumps to `kmain_entry` here, at its virtual address. [`init`] boots on from
//! there; [`smp`] starts the other CPUs, which enter through `early` too. [`handover`] is the data between
//! the two sides. Code that touches no hardware is in `granule-kcore`. docs/architecture.md, section Layers,
//! says which module may import which.
//!
//! On the host this crate is a program that says how the image is built, and nothing else: what can be tested
//! there is in other crates. No other file of this crate has a condition on the target.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod arch;
#[cfg(target_os = "none")]
mod bench;
#[cfg(target_os = "none")]
mod cpu;
#[cfg(target_os = "none")]
mod dev;
#[cfg(target_os = "none")]
mod early;
#[cfg(target_os = "none")]
mod exception;
#[cfg(target_os = "none")]
mod fatal;
#[cfg(target_os = "none")]
mod handover;
#[cfg(target_os = "none")]
mod hook;
#[cfg(target_os = "none")]
mod init;
#[cfg(target_os = "none")]
mod kexec;
#[cfg(target_os = "none")]
mod lock;
#[cfg(target_os = "none")]
mod mm;
#[cfg(target_os = "none")]
mod percpu;
#[cfg(target_os = "none")]
mod persist;
#[cfg(target_os = "none")]
mod report;
#[cfg(target_os = "none")]
mod sched;
#[cfg(all(target_os = "none", feature = "test-image"))]
mod selftest;
#[cfg(target_os = "none")]
mod smp;
#[cfg(target_os = "none")]
mod task;
#[cfg(target_os = "none")]
mod trace;

/// The target of `head::mmu_on`. Only this function refers to hooks and the test image.
#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "assembly calls it by name")]
#[unsafe(no_mangle)]
extern "C" fn kmain_entry(handover: &'static handover::Handover) -> ! {
    #[cfg(feature = "test-image")]
    selftest::install();
    init::run(handover)
}

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This is the reference kernel's crate; on the host there is nothing to run.");
    println!("Build the image with `cargo xtask image`, boot it with `granule boot`.");
}
