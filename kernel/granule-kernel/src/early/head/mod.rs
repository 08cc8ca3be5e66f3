//! The assembly from the boot loader's jump to the first Rust function, and on to the kernel's
//! virtual address.
//!
//! There is only assembly here, in one island for each task. Each constant shared with Rust is
//! written once, here or in the module that owns it. Everything that can be written in Rust is in
//! [`crate::early::mmu_off`], which `entry` calls as soon as a stack exists.
//!
//! Register use across the islands of `entry`, from its first instruction to the jump to the
//! virtual address: x19 exception level at entry, x20 device tree, x21 physical address of the
//! image, x22 counter at entry, x23 the MMU configuration, x24 present exception level, x25 1 under
//! VHE. `secondary` does the same for the other CPUs, without the steps that are needed only once.
//! A CPU that is off the tables waits in `parked`.
//!
//! `trace::entry_code` repeats the operations on registers, caches and TLB for the trace; `cargo
//! xtask image` fails where the two differ. [`crate::trace::head`] repeats the order in which the
//! routines run: change both together.

#![allow(unsafe_code, reason = "assembly: entry, relocation, EL2, MMU")]

mod early_vectors;
mod el2;
mod entry;
mod header;
mod mmu_on;
mod park;
mod parked;
mod pe;
mod relocate;
mod run_level;
mod secondary;
