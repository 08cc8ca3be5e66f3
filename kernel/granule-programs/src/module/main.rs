//! Loads and unloads modules of the kernel, by the system calls that Linux has for it too:
//!
//! ```text
//! granule-user-module load FILE unload NAME ...
//! ```
//!
//! Any number of commands, done in order. It ends with 0 when all were done, and with 1 and one line on standard error
//! at the first that was not. The kernel judges the file, and prints on its log what it refuses.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod perform;

granule_programs::program!(perform::run);
