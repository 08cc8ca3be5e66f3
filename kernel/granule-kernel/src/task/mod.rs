//! User space: processes at EL0, each in its own address space.
//!
//! [`granule_linux_abi`] has the pure part of the arm64 Linux interface, and [`sched`](crate::sched) runs
//! tasks on CPUs; this module has the processes. From below: [`owned`] keeps values in frames;
//! [`platform`] has the page sizes of programs; [`frames`], [`area_nodes`], [`space_environment`] and [`address_space`]
//! make the library's address spaces; [`access`] copies from and to programs.
//! [`task_table`] is the table of tasks, [`process_table`] the process table behind its lock, and
//! [`env`](mod@env) the calling process as system calls see it. [`process`] makes and ends processes;
//! [`exec`] loads a program for [`execve`], from [`file_cache`]. Exceptions of EL0 arrive in [`entry`]; [`syscall`] has the
//! system calls, and [`sources`] moves bytes of files that the tree does not have. [`user_space`] starts user
//! space if there is an `/init`, and counts every frame at the end. [`hook`] is the interface for tests.
//!
//! # Life of user space
//!
//! If the device tree names an initramfs with an `/init` (or the path in `rdinit=`), that program runs as
//! process 1. Its arguments are the words after `--` on the command line. A script is run by the program that
//! its first line names. When process 1 ends, all others are ended, everything is freed, and the allocated
//! frames are compared with those before. A difference is the outcome `self-check-failed`; a first process
//! that ends with anything but 0 is `guest-exit`. Otherwise the boot ends as if there were no user space.
//!
//! A program's addresses have as many bits as the kernel's, at most 48. All CPUs get their TCR and their EL0
//! permissions when user space opens, and the old values when it closes. Between programs TTBR0 has a root in
//! which nothing is mapped. The kernel reaches a program's memory through the frame and the linear map, never
//! through the program's address, so a bad pointer is an error and never an exception of the kernel. A fault
//! that the space cannot resolve ends the process by the signal that Linux has for it.
//!
//! `fork` copies the space; `CLONE_VM` is accepted only with `CLONE_VFORK`, for `posix_spawn`, where the
//! parent waits for the child or for its own SIGKILL. If a line of a program begins with the kernel's
//! `@granule`, the kernel puts a space in front of it on the console.
//!
//! # Page sizes of programs
//!
//! Each program has a page size of its own, chosen by `granule_linux_abi::program::page_size`, which the
//! kernel's address space and its system calls take as a value. TG0 and T0SZ of TCR follow the program that a
//! CPU runs; TG1, DS, IPS, HA and HD stay (`granule_kcore::user_sizes`). A CPU goes from a program to another
//! of the same size by one write of TTBR0, and to another size by `granule::space::switch`. Each CPU
//! remembers the TCR that it has. Between programs it keeps that TCR and has the empty root in TTBR0, which
//! is large enough, and aligned, for the root of every size.
//!
//! A TLBI by one address is issued only by a CPU whose TCR has the page size of the space. A space that is
//! freed under another TCR is invalidated by its ASID, or by range, with its own granule in the operand. An
//! ASID belongs to one space, and so to one size, until a new generation of ASIDs begins; then each CPU
//! invalidates its TLB before it uses one.
//!
//! Frames stay the kernel's size: `mm::sized` has the pages of programs, so a small 4K program takes as much
//! on a kernel of 64K pages as on one of 4K pages.

pub(crate) mod access;
pub(crate) mod address_space;
mod area_nodes;
pub(crate) mod entry;
pub(crate) mod env;
pub(crate) mod exec;
pub(crate) mod execve;
mod file_cache;
pub(crate) mod frames;
pub(crate) mod hook;
pub(crate) mod modules;
pub(crate) mod next_kernel;
pub(crate) mod owned;
mod platform;
pub(crate) mod process;
pub(crate) mod process_table;
pub(crate) mod random;
pub(crate) mod sources;
mod space_environment;
pub(crate) mod syscall;
pub(crate) mod task_table;
pub(crate) mod user_space;
