//! System calls about signals.

use super::{Fail, Restart, Result};
use crate::abi::Errno;
use crate::abi::signal::{SET_BYTES, SI_TKILL, SIGNALS, SigAction};
use crate::abi::time::TimeSpec;
use crate::env::{Env, Slept, get, put_if};
use crate::files::Channel;
use crate::processes::TaskTable;
use crate::processes::relatives::signal_number;
use crate::signals::Cause;
use crate::signals::set::SignalSet;

fn check_set(bytes: u64) -> core::result::Result<(), Errno> {
    if bytes == SET_BYTES {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// `rt_sigaction`.
pub(super) fn action<E: Env>(
    env: &mut E,
    signal: u64,
    (new, old): (u64, u64),
    bytes: u64,
) -> Result {
    check_set(bytes)?;
    let signal = u8::try_from(signal)
        .ok()
        .filter(|it| (1..=SIGNALS).contains(it));
    let signal = signal.ok_or(Errno::EINVAL)?;
    let wanted: Option<SigAction> = if new == 0 { None } else { Some(get(env, new)?) };
    let before = env.with(|processes, place| {
        let signals = &mut processes.get_mut(place)?.signals;
        let before = signals.action(signal)?;
        if let Some(action) = wanted {
            signals.set_action(signal, action)?;
        }
        Ok::<_, Errno>(before)
    })?;
    put_if(env, old, &before)?;
    Ok(0)
}

/// `rt_sigprocmask`.
pub(super) fn mask<E: Env>(env: &mut E, how: u32, (new, old): (u64, u64), bytes: u64) -> Result {
    check_set(bytes)?;
    let set: Option<u64> = if new == 0 { None } else { Some(get(env, new)?) };
    let before = env.with(|processes, place| {
        let signals = &mut processes.get_mut(place)?.signals;
        let before = signals.blocked();
        if let Some(set) = set {
            signals.change_mask(how, SignalSet(set))?;
            processes.unblocked(place);
        }
        Ok::<_, Errno>(before)
    })?;
    put_if(env, old, &before.0)?;
    Ok(0)
}

/// `rt_sigsuspend`: waits for a signal under a temporary mask.
pub(super) fn suspend<E: Env>(env: &mut E, set: u64, bytes: u64) -> Result {
    check_set(bytes)?;
    let set = SignalSet(get(env, set)?);
    env.with(|processes, place| {
        processes.get_mut(place)?.signals.set_mask_for_call(set);
        Ok::<_, Errno>(())
    })?;
    // Only a signal ends the wait.
    while env.sleep(Channel::Nothing, None, |_, _| false) != Slept::Signal {}
    Err(Fail::Interrupted(Restart::IfNoHandler))
}

/// `rt_sigtimedwait`: waits for a signal of a set and takes it.
pub(super) fn timed_wait<E: Env>(
    env: &mut E,
    set: u64,
    info: u64,
    timeout: u64,
    bytes: u64,
) -> Result {
    check_set(bytes)?;
    let set = SignalSet(get(env, set)?).without(SignalSet::UNBLOCKABLE);
    let until = match timeout {
        0 => None,
        at => Some(env.now().saturating_add(get::<TimeSpec>(env, at)?.to_ns()?)),
    };
    loop {
        // Check and registration happen under one lock, so a later signal wakes the process.
        let taken = env.with(|processes, place| {
            let signals = &mut processes.get_mut(place)?.signals;
            let taken = signals.take(set);
            signals.set_awaited(match taken {
                Some(_) => SignalSet::EMPTY,
                None => set,
            });
            Ok::<_, Errno>(taken)
        })?;
        if let Some((signal, cause)) = taken {
            put_if(env, info, &cause.info(signal))?;
            return Ok(u64::from(signal));
        }
        let slept = env.sleep(Channel::Nothing, until, |processes, place| {
            let signals = processes
                .get(place)
                .map(|process| process.signals.pending());
            signals.is_ok_and(|pending| pending.0 & set.0 != 0)
        });
        let error = match slept {
            Slept::Ready => continue,
            Slept::TimeUp => Errno::EAGAIN,
            Slept::Signal => Errno::EINTR,
        };
        env.with(|processes, place| {
            processes
                .get_mut(place)?
                .signals
                .set_awaited(SignalSet::EMPTY);
            Ok::<_, Errno>(())
        })?;
        return Err(error.into());
    }
}

pub(super) fn kill<E: Env>(env: &mut E, to: i32, signal: i32) -> Result {
    env.with(|processes, place| Ok(processes.kill(place, to, signal).map(|()| 0)?))
}

/// `tgkill`, and `tkill` without a process: each process has one thread.
pub(super) fn tkill<E: Env>(env: &mut E, process: Option<i32>, thread: i32, signal: i32) -> Result {
    let pid = u32::try_from(thread).ok().filter(|pid| *pid > 0);
    let pid = pid.ok_or(Errno::EINVAL)?;
    let signal = signal_number(signal)?;
    if process.is_some_and(|process| process <= 0) {
        return Err(Errno::EINVAL.into());
    }
    if process.is_some_and(|process| process != thread) {
        return Err(Errno::ESRCH.into());
    }
    env.with(|processes, place| {
        let to = processes.place_of(pid)?;
        let from = processes
            .tasks
            .relation(place)
            .map_or(0, |process| process.pid);
        if signal > 0 {
            processes.send(to, signal, Cause::process(SI_TKILL, from));
        }
        Ok(0)
    })
}
