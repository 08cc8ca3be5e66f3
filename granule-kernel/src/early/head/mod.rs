//! From the boot loader's jump to the first Rust function, and on to the
//! kernel's virtual address.
//!
//! Assembly only, in islands that are each about one thing; the numbers they
//! share with Rust are written once, here or in the module that owns them. What
//! can be said in Rust is in [`crate::early::mmu_off`], which `entry` calls as soon as
//! there is a stack.
//!
//! Register use across the islands of `entry`, from its first instruction to the
//! jump to the virtual address: x19 exception level at entry, x20 device tree,
//! x21 physical address of the image, x22 counter at entry, x23 the MMU
//! configuration, x24 exception level now, x25 1 under VHE. `secondary` is the same way for
//! the other CPUs, through what is done already; `parked` is where a CPU waits off the tables.
//!
//! What is done here to registers, caches and TLB stands once more in
//! `trace::entry_code`, for a trace; `cargo xtask image` fails where the two differ. In which order
//! the routines run stands in [`crate::trace::head`]; a change here is one there.

mod cache;
mod early_vectors;
mod el2;
mod entry;
mod header;
mod mmu_on;
mod park;
mod parked;
mod relocate;
mod run_level;
mod secondary;
