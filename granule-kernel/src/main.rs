//! Granule's reference kernel: one bootable image for every page size.
//!
//! The order of things: [`head`] is entered by the boot loader and, with the MMU
//! off, calls [`mmu_off`]; that reads the device tree and builds the boot tables;
//! `head` turns the MMU on and jumps to [`kmain`] at its virtual address.
//! [`smp`] starts the other CPUs, which come the same way through `head`.
//! [`handover`] is what one side leaves for the other, [`image`] where things lie
//! in the image. What touches no hardware is in `granule-kcore`.
//!
//! On the host this crate is a set of unit tests of what is pure in it, and a
//! program that says how the image is built.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "only tests use it on the host")
)]

mod exception;
mod handover;
mod pl011;
mod user;

#[cfg(target_os = "none")]
mod bench;
#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod counter;
#[cfg(target_os = "none")]
mod cpu;
#[cfg(target_os = "none")]
mod drivers;
#[cfg(target_os = "none")]
mod gic;
#[cfg(target_os = "none")]
mod head;
#[cfg(target_os = "none")]
mod hook;
#[cfg(target_os = "none")]
mod image;
#[cfg(target_os = "none")]
mod init;
#[cfg(target_os = "none")]
mod ipi;
#[cfg(target_os = "none")]
mod irq;
#[cfg(target_os = "none")]
mod kexec;
#[cfg(target_os = "none")]
mod kmain;
#[cfg(target_os = "none")]
mod lock;
#[cfg(target_os = "none")]
#[cfg_attr(
    not(feature = "test-image"),
    allow(
        dead_code,
        reason = "part of what a kernel offers its modules only self-tests call here"
    )
)]
mod memory;
#[cfg(target_os = "none")]
mod mmu_off;
#[cfg(target_os = "none")]
mod panic;
#[cfg(target_os = "none")]
mod persist;
#[cfg(target_os = "none")]
mod psci;
#[cfg(target_os = "none")]
mod refuse;
#[cfg(target_os = "none")]
mod report;
#[cfg(target_os = "none")]
mod selfcheck;
#[cfg(all(target_os = "none", feature = "test-image"))]
mod selftest;
#[cfg(target_os = "none")]
mod smp;
#[cfg(target_os = "none")]
mod stack;
#[cfg(target_os = "none")]
mod trace;
#[cfg(target_os = "none")]
mod trust;

/// Where `head::mmu_on` jumps. The one place that knows of hooks and of what the test image puts in.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn kmain_entry(handover: &'static handover::Handover) -> ! {
    #[cfg(feature = "test-image")]
    selftest::install();
    kmain::run(handover)
}

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This is the reference kernel's crate; on the host there is nothing to run.");
    println!("Build the image with `cargo xtask image`, boot it with `granule boot`.");
}
