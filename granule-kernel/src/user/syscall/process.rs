//! System calls about processes, and the console as far as a program without files writes to it.

use super::{Arguments, Outcome};
use crate::console;
use crate::user::abi::Errno;
use crate::user::abi::process::{Status, Usage, WNOHANG};
use crate::user::abi::signal::SIGCHLD;
use crate::user::process::{self, Clone};
use crate::user::sched::{self, By};
use crate::user::task::{self, Children, Current, Ended};
use core::sync::atomic::Ordering;

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_SETTLS: u64 = 0x8_0000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
/// The signal that the parent gets.
const EXIT_SIGNAL: u64 = 0xff;

pub(super) fn exit(current: &mut Current<'_>, [code, ..]: Arguments) -> Outcome {
    process::end(current, Status::Exited(code as u8).word())
}

pub(super) fn getpid(current: &mut Current<'_>, _: Arguments) -> Outcome {
    Ok(current.task.pid().into())
}

pub(super) fn getppid(current: &mut Current<'_>, _: Arguments) -> Outcome {
    Ok(current.task.parent.load(Ordering::Relaxed).into())
}

pub(super) fn set_tid_address(current: &mut Current<'_>, [address, ..]: Arguments) -> Outcome {
    current.own.clear_child_tid = address;
    Ok(current.task.pid().into())
}

pub(super) fn sched_yield(current: &mut Current<'_>, _: Arguments) -> Outcome {
    sched::yield_now(current.task);
    Ok(0)
}

/// `fork`, and what `posix_spawn` and `vfork` need: a child with its parent's memory, for as long as
/// that waits. Threads there are none.
pub(super) fn clone(
    current: &mut Current<'_>,
    [flags, stack, parent_tid, tls, child_tid, _]: Arguments,
) -> Outcome {
    let known = EXIT_SIGNAL
        | CLONE_VM
        | CLONE_VFORK
        | CLONE_SETTLS
        | CLONE_PARENT_SETTID
        | CLONE_CHILD_CLEARTID
        | CLONE_CHILD_SETTID;
    let signal = flags & EXIT_SIGNAL;
    let alone = flags & (CLONE_VM | CLONE_VFORK);
    if flags & !known != 0 || (signal != 0 && signal != u64::from(SIGCHLD)) || alone == CLONE_VM {
        return Err(Errno::EINVAL);
    }
    let given = |flag, value| (flags & flag != 0).then_some(value);
    let clone = Clone {
        // CLONE_VFORK alone would be a copy that the parent waits for, of which nobody can tell.
        lend_memory: alone == CLONE_VM | CLONE_VFORK,
        stack,
        thread_pointer: given(CLONE_SETTLS, tls),
        parent_tid: given(CLONE_PARENT_SETTID, parent_tid),
        child_tid: given(CLONE_CHILD_SETTID, child_tid),
        clear_child_tid: given(CLONE_CHILD_CLEARTID, child_tid),
    };
    process::fork(current, clone).map(u64::from)
}

pub(super) fn wait4(
    current: &mut Current<'_>,
    [pid, status_at, options, usage_at, ..]: Arguments,
) -> Outcome {
    let children = match pid as i32 {
        -1 => Children::Any,
        0 => Children::Group(current.task.group.load(Ordering::Relaxed)),
        group @ ..-1 => Children::Group(group.unsigned_abs()),
        pid => Children::Pid(pid as u32),
    };
    let wait = options as u32 & WNOHANG == 0;
    let task = current.task;
    let ended = sched::sleep_until(task, By::Signals, || {
        let ended = task::reap(task, children);
        (ended != Ended::Running || !wait).then_some(ended)
    });
    let (pid, status) = match ended.map_err(|_| Errno::EINTR)? {
        Ended::None => return Err(Errno::ECHILD),
        Ended::Running => return Ok(0),
        Ended::One { pid, status } => (pid, status),
    };
    let space = current.memory().ok_or(Errno::EFAULT)?;
    if status_at != 0 {
        space.write_value(status_at, &status)?;
    }
    if usage_at != 0 {
        space.write_value(usage_at, &Usage::default())?;
    }
    Ok(pid.into())
}

/// Bytes that are copied at a time.
const CHUNK: usize = 256;

/// To the console, which is what descriptors 1 and 2 are while there are no files.
pub(super) fn write(current: &mut Current<'_>, [fd, address, length, ..]: Arguments) -> Outcome {
    if !matches!(fd, 1 | 2) {
        return Err(Errno::EBADF);
    }
    let space = current.memory().ok_or(Errno::EFAULT)?;
    let mut done = 0;
    let mut bytes = [0; CHUNK];
    while done < length {
        let count = (length - done).min(CHUNK as u64) as usize;
        let chunk = bytes.get_mut(..count).ok_or(Errno::EFAULT)?;
        let at = address.checked_add(done).ok_or(Errno::EFAULT)?;
        match space.read(at, chunk) {
            Ok(()) => {}
            // What was written stays written.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        console::write_user(chunk);
        done += count as u64;
    }
    Ok(done)
}
