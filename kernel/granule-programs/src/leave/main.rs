//! Leaves this kernel or Linux for another kernel, by either of the calls that load one:
//!
//! ```text
//! granule-user-leave IMAGE ADDRESS
//! granule-user-leave --file IMAGE [--initrd FILE] [--append TEXT]
//! ```
//!
//! The first is `kexec_load`, the call of kexec that Debian's arm64 kernels have. The image goes to the first 128 MiB
//! after the physical ADDRESS (hexadecimal, a multiple of 2 MiB), the device tree that the running kernel was given
//! and the few instructions that enter the image after it. All of it must be RAM. The next kernel gets the command line
//! in that tree and no initial RAM disk. The second is `kexec_file_load`: the running kernel finds the places.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod load;

granule_programs::program!(load::run);
