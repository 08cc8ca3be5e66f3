//! User space: processes at EL0, each in its own address space.
//!
//! [`granule_linux_abi`] has the pure part of the arm64 Linux interface, and [`sched`](crate::sched) runs
//! tasks on CPUs; this module has the processes. From below: [`owned`] keeps values in frames;
//! [`platform`] has the page sizes of programs; [`frames`], [`space_environment`] and [`address_space`] make the
//! library's address spaces; [`access`] copies from and to programs.
//! [`task_table`] is the table of tasks, [`process_table`] the process table behind its lock, and
//! [`env`](mod@env) the calling process as system calls see it. [`process`] makes and ends processes;
//! [`exec`] loads a program for [`execve`], from [`file_cache`]. Exceptions of EL0 arrive in [`entry`]; [`syscall`] has the
//! system calls. [`user_space`] starts user space if there is an `/init`, and counts every frame at the end.
//! [`hook`] is the interface for tests.

pub(crate) mod access;
pub(crate) mod address_space;
pub(crate) mod entry;
pub(crate) mod env;
pub(crate) mod exec;
pub(crate) mod execve;
mod file_cache;
pub(crate) mod frames;
pub(crate) mod hook;
pub(crate) mod next_kernel;
pub(crate) mod owned;
mod platform;
pub(crate) mod process;
pub(crate) mod process_table;
pub(crate) mod random;
mod space_environment;
pub(crate) mod syscall;
pub(crate) mod task_table;
pub(crate) mod user_space;
