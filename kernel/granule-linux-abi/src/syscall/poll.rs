//! `ppoll`: wait until one of several descriptors is ready.

use super::{Fail, Restart, Result};
use crate::abi::Errno;
use crate::abi::file::{POLLERR, POLLHUP, POLLNVAL, PollFd};
use crate::abi::signal::SET_BYTES;
use crate::abi::time::TimeSpec;
use crate::env::{Env, Slept, get, put, put_if};
use crate::files::Channel;
use crate::files::descriptors::MOST;
use crate::processes::{ProcessPlace, Processes, TaskTable};
use crate::signals::set::SignalSet;
use arrayvec::ArrayVec;

type Fds = ArrayVec<PollFd, MOST>;

/// Checks every descriptor. Returns the number of ready ones, and the channel to wait on if none is.
fn look<T: TaskTable>(
    processes: &Processes<'_, T>,
    place: ProcessPlace,
    fds: &mut Fds,
) -> (u64, Channel) {
    let mut ready = 0;
    let mut channel = Channel::Nothing;
    for entry in fds {
        entry.revents = 0;
        if entry.fd < 0 {
            continue;
        }
        let open = processes
            .get(place)
            .and_then(|process| process.descriptors.get(entry.fd as u32));
        let (events, wakes) = match open {
            Ok(open) => processes.files.poll(open),
            Err(_) => (POLLNVAL, Channel::Nothing),
        };
        entry.revents = events & (entry.events | POLLERR | POLLHUP | POLLNVAL);
        if entry.revents != 0 {
            ready += 1;
        }
        channel = match channel {
            Channel::Nothing => wakes,
            same if same == wakes || wakes == Channel::Nothing => same,
            _ => Channel::Any,
        };
    }
    (ready, channel)
}

/// Waits until a descriptor is ready. Returns the number of ready ones.
fn wait<E: Env>(env: &mut E, fds: &mut Fds, until: Option<u64>) -> Result {
    loop {
        let (ready, channel) = env.with(|processes, place| look(processes, place, fds));
        if ready > 0 {
            return Ok(ready);
        }
        let slept = env.sleep(channel, until, |processes, place| {
            look(processes, place, fds).0 > 0
        });
        match slept {
            Slept::Ready => {}
            Slept::TimeUp => return Ok(0),
            Slept::Signal => return Err(Fail::Interrupted(Restart::IfNoHandler)),
        }
    }
}

/// The deadline of an optional timeout. A call repeated after a signal keeps its first deadline.
fn deadline<E: Env>(env: &mut E, timeout: u64) -> core::result::Result<Option<u64>, Errno> {
    if timeout == 0 {
        return Ok(None);
    }
    let time: TimeSpec = get(env, timeout)?;
    let until = env.now().saturating_add(time.to_ns()?);
    env.with(|processes, place| {
        let before = processes.get_mut(place)?.restart_at.take();
        Ok(Some(before.unwrap_or(until)))
    })
}

/// Sets the signal mask for the duration of the call.
fn set_mask<E: Env>(env: &mut E, mask: u64) -> core::result::Result<(), Errno> {
    if mask == 0 {
        return Ok(());
    }
    let set = SignalSet(get(env, mask)?);
    env.with(|processes, place| {
        processes.get_mut(place)?.signals.set_mask_for_call(set);
        Ok(())
    })
}

/// Writes the remaining time back; an interrupted call keeps its deadline instead.
fn finish<E: Env>(env: &mut E, timeout: u64, until: Option<u64>, result: Result) -> Result {
    let interrupted = matches!(result, Err(Fail::Interrupted(_)));
    env.with(|processes, place| {
        if let Ok(process) = processes.get_mut(place) {
            if interrupted {
                process.restart_at = until;
            } else {
                process.signals.end_call();
                processes.unblocked(place);
            }
        }
    });
    if let (Some(until), false) = (until, interrupted) {
        let left = TimeSpec::from_ns(until.saturating_sub(env.now()));
        // The result matters more than a failure to write the time.
        let _ = put_if(env, timeout, &left);
    }
    result
}

#[inline(never)]
pub(super) fn ppoll<E: Env>(
    env: &mut E,
    (at, count): (u64, u64),
    timeout: u64,
    (mask, mask_bytes): (u64, u64),
) -> Result {
    // A process cannot have more descriptors.
    if count > MOST as u64 || mask != 0 && mask_bytes != SET_BYTES {
        return Err(Errno::EINVAL.into());
    }
    let mut fds = Fds::new();
    let place = |index: u64| at.wrapping_add(index * size_of::<PollFd>() as u64);
    for index in 0..count {
        let entry = get(env, place(index))?;
        // The count was checked above.
        let _ = fds.try_push(entry);
    }
    let until = deadline(env, timeout)?;
    set_mask(env, mask)?;
    let result = wait(env, &mut fds, until);
    let result = finish(env, timeout, until, result)?;
    for (index, entry) in fds.iter().enumerate() {
        put(env, place(index as u64), entry)?;
    }
    Ok(result)
}
