//! System calls that make, end and run tasks.

use super::{Arguments, CallResult};
use crate::sched;
use crate::task::process::{self, Clone};
use crate::task::task_table::Current;
use core::sync::atomic::Ordering;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::process::Status;
use granule_linux_abi::abi::signal::SIGCHLD;
use granule_linux_abi::syscall::deliver::SVC_BYTES;

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
/// The bits of the flags with the signal that the parent gets.
const EXIT_SIGNAL: u64 = 0xff;

pub(super) fn exit(current: &mut Current<'_>, [code, ..]: Arguments) -> CallResult {
    process::end(current, Status::Exited(code as u8).word())
}

pub(super) fn set_tid_address(current: &mut Current<'_>, [address, ..]: Arguments) -> CallResult {
    current.own.clear_child_tid = address;
    Ok(current.task.pid().into())
}

pub(super) fn sched_yield(current: &mut Current<'_>, _: Arguments) -> CallResult {
    sched::yield_now(current.task.place());
    Ok(0)
}

/// `fork`, and the form that `posix_spawn` and `vfork` need: a child in its parent's memory while the
/// parent waits. Threads are not supported.
pub(super) fn clone(
    current: &mut Current<'_>,
    [flags, stack, _, _, child_tid, _]: Arguments,
) -> CallResult {
    let known = EXIT_SIGNAL | CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID;
    let signal = flags & EXIT_SIGNAL;
    let alone = flags & (CLONE_VM | CLONE_VFORK);
    if flags & !known != 0 || (signal != 0 && signal != u64::from(SIGCHLD)) || alone == CLONE_VM {
        return Err(Errno::EINVAL);
    }
    let given = |flag, value| (flags & flag != 0).then_some(value);
    let clone = Clone {
        // CLONE_VFORK alone would be a copy that the parent waits for; no program can observe the
        // difference from a plain copy.
        vfork: alone == CLONE_VM | CLONE_VFORK,
        stack,
        child_tid: given(CLONE_CHILD_SETTID, child_tid),
        clear_child_tid: given(CLONE_CHILD_CLEARTID, child_tid),
    };
    Ok(match process::fork(current, clone)? {
        Some(child) => child.into(),
        None => again(current),
    })
}

/// Repeats the call once signals are handled, whatever the flags of their handlers: for the handlers
/// the call has not begun. Returns the old x0.
fn again(current: &mut Current<'_>) -> u64 {
    current.frame.elr = current.frame.elr.wrapping_sub(SVC_BYTES);
    // The sender of the signal may not have set this yet.
    current.task.notified.store(true, Ordering::Release);
    let [x0, ..] = current.frame.x;
    x0
}
