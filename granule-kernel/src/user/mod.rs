//! User space: processes at EL0, each in its own address space.
//!
//! [`granule_linux_abi`] has the pure part of the arm64 Linux interface; this module has the part that
//! touches registers, address spaces and scheduling. From below: [`owned`] keeps values in frames;
//! [`frames`] and [`memory`] make the library's address spaces; [`access`] copies from and to programs.
//! [`sched`] runs tasks on all CPUs with the timer, [`registers`] and [`switch`]; its decisions are
//! [`granule_kcore::sched`]. [`task`] is the table of tasks, each with a
//! kernel [`stack`]. [`process_table`] is the process table behind its lock, and [`env`](mod@env) is the
//! calling process as system calls see it. [`process`] makes and ends processes; [`exec`] loads a
//! program for [`execve`]. Exceptions of EL0 arrive in [`entry`]; [`syscall`] has the system calls.
//! [`init`] starts user space if there is an `/init`, and counts every frame at the end. [`hook`] is the
//! interface for tests.

pub(crate) mod access;
pub(crate) mod entry;
pub(crate) mod env;
pub(crate) mod exec;
pub(crate) mod execve;
pub(crate) mod frames;
pub(crate) mod hook;
pub(crate) mod init;
#[allow(dead_code, reason = "what a space counts is asked for by nobody yet")]
pub(crate) mod memory;
pub(crate) mod next_kernel;
pub(crate) mod owned;
pub(crate) mod process;
pub(crate) mod process_table;
pub(crate) mod random;
pub(crate) mod registers;
pub(crate) mod sched;
pub(crate) mod stack;
pub(crate) mod switch;
pub(crate) mod syscall;
pub(crate) mod task;

/// The most tasks: as many as the process table has places.
pub(crate) const MOST_TASKS: usize = granule_linux_abi::processes::MOST_PROCESSES;
