//! Leaves Linux for another kernel by `kexec_load`, the call of kexec that Debian's arm64 kernels have:
//! `granule-user-leave IMAGE ADDRESS`.
//!
//! The image goes to the first 128 MiB after the physical ADDRESS (hexadecimal, a multiple of 2 MiB), the device tree
//! that Linux was given and the few instructions that enter the image after it. All of it must be RAM. The next
//! kernel gets Linux's command line and no initial RAM disk.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod load;

granule_programs::program!(load::run);
