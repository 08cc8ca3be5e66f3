//! Granule's reference kernel: one bootable image for every page size.
//!
//! Code that touches no hardware is in `granule-kcore`. On the host this crate is a program that prints how
//! the image is built, and nothing else: what can be tested there is in other crates. No other file of this
//! crate has a condition on the target.
//!
//! # The boot, step by step
//!
//! 1. `early::head::entry` refuses EL3, a running MMU and a load address that is not 2 MiB aligned. It cleans
//!    the image's writable range to the point of coherency before the first write, because a loader may have
//!    left dirty lines, and relocates the image for its load address. At EL2 with VHE the kernel stays at
//!    EL2; without VHE it drops to EL1. (`early::efi` comes before that, where EFI firmware starts the image
//!    as an application.)
//! 2. `early::mmu_off` cleans the device tree's lines and reads the tree byte by byte. It gets the
//!    SoC's identity from firmware, if PSCI and SMCCC are new enough for that call. Page size and
//!    VA bits are then a pure function of the ID registers and, in this order, the command line,
//!    the table of machines, the build's default and the smallest size. The choice precedes the
//!    first table, so there is no second identity map, and the MMU goes on once.
//! 3. The boot tables come from a static pool in the image: in TTBR0 the identity map of one page of code,
//!    with as few levels as the address allows; in TTBR1 image, device tree and console.
//! 4. `early::head` relocates the image once more, for its virtual address, drops all lines that may have
//!    been fetched meanwhile, turns the MMU on and jumps to `kmain_entry` here.
//! 5. `init::boot` takes early memory from the tree, places and builds the linear map, runs the self-check
//!    and starts the other CPUs (`smp`). It then drops the identity map (unless there are other CPUs), the
//!    tree's window and the unused part of the pool, and frees their memory. It prints the record and runs
//!    the programs, if there are any; `init::kmain` powers the machine off.
//!
//! The code of steps 1 to 3 uses no atomics, no SIMD and no unaligned access, and cannot panic. `cargo xtask
//! image` follows every call in the finished file and fails otherwise. `handover` is the data that this code
//! leaves for the code with the MMU on.
//!
//! # Layers
//!
//! A module imports only from modules that stand before it here: `hook`, `arch`, `handover`, `percpu`,
//! `lock`, `trace`, `dev`, `early`, `fatal`, `cpu`, `exception`, `mm`, `smp`, `persist`, `report`, `sched`,
//! `task`, `kexec`, `module`, `virtio_disk`, `bench`, `init`, `selftest`. Nothing calls into `early`: the
//! code after it finds its results in `handover`. No code outside of `selftest` names `selftest`, except `kmain_entry`.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod arch;
#[cfg(target_os = "none")]
mod bench;
#[cfg(target_os = "none")]
mod cpu;
#[cfg(target_os = "none")]
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
mod module;
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
#[cfg(target_os = "none")]
mod virtio_disk;

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
