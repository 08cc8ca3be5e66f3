//! User space: processes at EL0, each in its own address space.
//!
//! [`granule_linux_abi`] has the pure part of the arm64 Linux interface; this module has the part that
//! touches registers, address spaces and scheduling. From below: [`owned`] keeps values in frames;
//! [`frames`] and [`memory`] make the library's address spaces; [`access`] copies from and to programs.
//! [`turn`], [`queue`], [`idle`] and [`waiters`] are the pure part of scheduling. [`sched`] runs tasks
//! on all CPUs with the timer, [`registers`] and [`switch`]. [`task`] is the table of tasks, each with a
//! kernel [`stack`]. [`process_table`] is the process table behind its lock, and [`env`](mod@env) is the
//! calling process as system calls see it. [`process`] makes and ends processes; [`exec`] loads a
//! program for [`execve`]. Exceptions of EL0 arrive in [`entry`]; [`syscall`] has the system calls.
//! [`init`] starts user space if there is an `/init`, and counts every frame at the end. [`hook`] is the
//! interface for tests.

pub(crate) mod idle;
pub(crate) mod queue;
pub(crate) mod turn;
pub(crate) mod waiters;

#[cfg(target_os = "none")]
pub(crate) mod access;
#[cfg(target_os = "none")]
pub(crate) mod entry;
#[cfg(target_os = "none")]
pub(crate) mod env;
#[cfg(target_os = "none")]
pub(crate) mod exec;
#[cfg(target_os = "none")]
pub(crate) mod execve;
#[cfg(target_os = "none")]
pub(crate) mod frames;
#[cfg(target_os = "none")]
pub(crate) mod hook;
#[cfg(target_os = "none")]
pub(crate) mod init;
#[cfg(target_os = "none")]
#[allow(dead_code, reason = "what a space counts is asked for by nobody yet")]
pub(crate) mod memory;
#[cfg(target_os = "none")]
pub(crate) mod next_kernel;
#[cfg(target_os = "none")]
pub(crate) mod owned;
#[cfg(target_os = "none")]
pub(crate) mod process;
#[cfg(target_os = "none")]
pub(crate) mod process_table;
#[cfg(target_os = "none")]
pub(crate) mod random;
#[cfg(target_os = "none")]
pub(crate) mod registers;
#[cfg(target_os = "none")]
pub(crate) mod sched;
#[cfg(target_os = "none")]
pub(crate) mod stack;
#[cfg(target_os = "none")]
pub(crate) mod switch;
#[cfg(target_os = "none")]
pub(crate) mod syscall;
#[cfg(target_os = "none")]
pub(crate) mod task;

/// The most tasks: as many as the process table has places.
pub(crate) const MOST_TASKS: usize = granule_linux_abi::processes::MOST_PROCESSES;
