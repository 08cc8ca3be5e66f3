//! User space: processes at EL0, each in an address space of its own.
//!
//! From below: [`boxed`] keeps values in frames, [`frames`] and [`memory`] make address spaces of the
//! library's on them, [`access`] reaches what a program points to. [`turn`], [`queue`] and
//! [`waiters`] are the pure part of scheduling, [`sched`] runs tasks on all CPUs by [`timer`] and
//! [`switch`]; [`task`] is the table of them, each with a kernel [`stack`]. [`entry`] is where an
//! exception of EL0 arrives, [`process`] makes and ends processes, [`exec`] loads a program that
//! [`program`] has read, [`syscall`] is the table of system calls, [`abi`] what they look like.
//! [`init`] begins all this if there is an `/init`, and counts every frame when it is over.

#[cfg_attr(
    target_os = "none",
    allow(dead_code, reason = "an interface, of which not all is in use")
)]
pub(crate) mod abi;
#[cfg_attr(
    target_os = "none",
    allow(dead_code, reason = "an archive tells more than is used so far")
)]
pub(crate) mod files;
pub(crate) mod output;
pub(crate) mod program;
pub(crate) mod queue;
pub(crate) mod start_stack;
pub(crate) mod turn;
#[cfg_attr(
    target_os = "none",
    allow(
        dead_code,
        reason = "some of it serves system calls that are yet to come"
    )
)]
pub(crate) mod waiters;

#[cfg(target_os = "none")]
#[allow(
    dead_code,
    reason = "some of it serves system calls that are yet to come"
)]
pub(crate) mod access;
#[cfg(target_os = "none")]
pub(crate) mod boxed;
#[cfg(target_os = "none")]
pub(crate) mod entry;
#[cfg(target_os = "none")]
#[allow(
    dead_code,
    reason = "some of it serves system calls that are yet to come"
)]
pub(crate) mod exec;
#[cfg(target_os = "none")]
pub(crate) mod frames;
#[cfg(target_os = "none")]
pub(crate) mod init;
#[cfg(target_os = "none")]
#[allow(
    dead_code,
    reason = "some of it serves system calls that are yet to come"
)]
pub(crate) mod memory;
#[cfg(target_os = "none")]
#[allow(
    dead_code,
    reason = "some of it serves system calls that are yet to come"
)]
pub(crate) mod process;
#[cfg(target_os = "none")]
pub(crate) mod registers;
#[cfg(target_os = "none")]
#[allow(
    dead_code,
    reason = "some of it serves system calls that are yet to come"
)]
pub(crate) mod sched;
#[cfg(target_os = "none")]
pub(crate) mod stack;
#[cfg(target_os = "none")]
pub(crate) mod switch;
#[cfg(target_os = "none")]
pub(crate) mod syscall;
#[cfg(target_os = "none")]
pub(crate) mod task;
#[cfg(target_os = "none")]
pub(crate) mod timer;

/// Tasks at most, which is the limit of a fork bomb.
pub(crate) const MOST_TASKS: usize = 256;
