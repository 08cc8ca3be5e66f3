//! User space: processes at EL0, each in an address space of its own.
//!
//! From below: [`owned`] keeps values in frames, [`frames`] and [`memory`] make address spaces of the
//! library's on them, [`access`] reaches what a program points to. [`turn`], [`queue`], [`idle`]
//! and [`waiters`] are the pure part of scheduling, [`sched`] runs tasks on all CPUs by [`timer`] and
//! [`switch`]; [`task`] is the table of them, each with a kernel [`stack`]. [`entry`] is where an
//! exception of EL0 arrives, [`process`] makes and ends processes, [`exec`] loads a program that
//! [`program`] has read, for [`execve`] by way of a [`script`] if need be. [`init`] begins all this
//! if there is an `/init`, and counts every frame when it is over. [`scarce`] lets memory run out
//! where a test says.
//!
//! [`abi`] is the Linux interface as types; [`files`] and [`signals`] are what it speaks of, and
//! [`world`] has them together with what each process has, in memory that is [`owned`] too; [`syscall`]
//! is the table of calls. All of that is pure: what it needs of a running machine is a trait, which
//! [`machine`] is the kernel's part of. [`shared`] is the one world there is, behind its lock.

#[cfg_attr(
    target_os = "none",
    allow(dead_code, reason = "an interface, of which not all is in use")
)]
pub(crate) mod abi;
pub(crate) mod files;
pub(crate) mod idle;
pub(crate) mod owned;
pub(crate) mod program;
pub(crate) mod queue;
pub(crate) mod script;
pub(crate) mod signals;
pub(crate) mod start_stack;
pub(crate) mod syscall;
pub(crate) mod turn;
pub(crate) mod waiters;
pub(crate) mod world;

#[cfg(target_os = "none")]
pub(crate) mod access;
#[cfg(target_os = "none")]
pub(crate) mod entry;
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
pub(crate) mod machine;
#[cfg(target_os = "none")]
#[allow(dead_code, reason = "what a space counts is asked for by nobody yet")]
pub(crate) mod memory;
#[cfg(target_os = "none")]
pub(crate) mod process;
#[cfg(target_os = "none")]
pub(crate) mod random;
#[cfg(target_os = "none")]
pub(crate) mod registers;
#[cfg(target_os = "none")]
pub(crate) mod sched;
#[cfg(target_os = "none")]
pub(crate) mod shared;
#[cfg(target_os = "none")]
pub(crate) mod stack;
#[cfg(target_os = "none")]
pub(crate) mod switch;
#[cfg(target_os = "none")]
pub(crate) mod task;

/// Tasks at most, which is the limit of a fork bomb.
pub(crate) const MOST_TASKS: usize = 256;
