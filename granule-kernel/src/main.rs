//! Granule's reference kernel: one bootable image for every page size.
//!
//! The order of things: [`head`] is entered by the boot loader and, with the MMU
//! off, calls [`mmu_off`]; that reads the device tree and builds the boot tables;
//! `head` turns the MMU on and jumps to [`kmain`] at its virtual address.
//! [`smp`] starts the other CPUs, which come the same way through `head`.
//! [`handover`] is what one side leaves for the other, [`layout`] and [`image`] are
//! where things lie.
//!
//! On the host this crate is a set of unit tests of what is pure in it, and a
//! program that says how the image is built.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "only tests use it on the host")
)]

mod exception;
mod frames;
mod gic;
mod handover;
mod kexec;
mod layout;
mod line;
#[cfg_attr(
    target_os = "none",
    allow(dead_code, reason = "for those who may not wait")
)]
mod lock;
mod memory;
mod options;
mod persist;
mod pl011;
mod sizes;
mod smp;
mod trace;
mod tree;
mod user;
mod wrap;

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
mod head;
#[cfg(target_os = "none")]
mod hooks;
#[cfg(target_os = "none")]
mod image;
#[cfg(target_os = "none")]
mod ipi;
#[cfg(target_os = "none")]
mod irq;
#[cfg(target_os = "none")]
mod kmain;
#[cfg(target_os = "none")]
mod mmu_off;
#[cfg(target_os = "none")]
mod panic;
#[cfg(target_os = "none")]
mod psci;
#[cfg(target_os = "none")]
mod refuse;
#[cfg(target_os = "none")]
mod report;
#[cfg(target_os = "none")]
mod selfcheck;
#[cfg(target_os = "none")]
mod stack;
#[cfg(target_os = "none")]
mod trust;

#[cfg(not(target_os = "none"))]
fn main() {
    println!("This is the reference kernel's crate; on the host there is nothing to run.");
    println!("Build the image with `cargo xtask image`, boot it with `granule boot`.");
}
