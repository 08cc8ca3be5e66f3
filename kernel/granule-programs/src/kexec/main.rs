//! `kexec`: loads the next kernel, lists it, takes it back, and leaves for it; and the same for a crash kernel, which
//! saves the memory of the one that crashed.
//!
//! ```text
//! kexec load IMAGE [--crash] [--initrd FILE] [--copy] [--append TEXT]
//! kexec unload
//! kexec status
//! kexec exec
//! kexec crash
//! kexec core FILE DEVICE [--zeroed]
//! kexec poweroff
//! ```
//!
//! `load --crash` loads the kernel that is entered when the running one crashes, and `crash` has it crash. `core` copies
//! a core, such as `/proc/vmcore`, to the beginning of a disk. It leaves zeros out if the disk has nothing else
//! (`--zeroed`), and writes the beginning last, so that what begins as a core is whole. `poweroff` turns the machine off.
//!
//! As the first process without arguments it does the commands in `/etc/kexec`, a line each without
//! `kexec` before it, so that an initramfs needs no shell to leave for another kernel. There the TEXT of
//! `--append` is the rest of the line; lines that are empty or begin with `#` are passed over.
//!
//! It ends with 0 when all commands were done, and with 1 and one line on standard error at the first
//! that was not. What is in a file or a kernel is not judged here: the kernel does that, and prints
//! on its log what it refuses.

#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod core_file;
#[cfg(target_os = "none")]
mod files;
#[cfg(target_os = "none")]
mod perform;
#[cfg(target_os = "none")]
mod words;

granule_programs::program!(perform::run);
