//! `ppoll` and `pselect6`: waiting for one of several descriptors.

use super::env::{Env, Slept, get, put, put_if};
use super::{Fail, Restart, Result};
use crate::user::abi::Errno;
use crate::user::abi::file::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM, PollFd,
};
use crate::user::abi::signal::SET_BYTES;
use crate::user::abi::time::TimeSpec;
use crate::user::files::Channel;
use crate::user::files::descriptors::MOST;
use crate::user::signals::set::SignalSet;
use crate::user::world::{Family, Place, World};
use arrayvec::ArrayVec;

type Fds = ArrayVec<PollFd, MOST>;

/// Looks at all; how many have something to tell, and what to wait for if none has.
fn look<F: Family>(world: &World<'_, F>, place: Place, fds: &mut Fds) -> (u64, Channel) {
    let mut ready = 0;
    let mut channel = Channel::Nothing;
    for entry in fds {
        entry.revents = 0;
        if entry.fd < 0 {
            continue;
        }
        let open = world
            .own(place)
            .and_then(|own| own.descriptors.get(entry.fd as u32));
        let (events, wakes) = match open {
            Ok(open) => world.files.poll(open),
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

/// Waits until one has something to tell; how many have.
fn wait<E: Env>(env: &mut E, fds: &mut Fds, until: Option<u64>) -> Result {
    loop {
        let (ready, channel) = env.with(|world, place| look(world, place, fds));
        if ready > 0 {
            return Ok(ready);
        }
        let slept = env.sleep(channel, until, |world, place| look(world, place, fds).0 > 0);
        match slept {
            Slept::Ready => {}
            Slept::TimeUp => return Ok(0),
            Slept::Signal => return Err(Fail::Interrupted(Restart::IfNoHandler)),
        }
    }
}

/// When a time that may not be given is up, if this call was not interrupted before.
fn deadline<E: Env>(env: &mut E, timeout: u64) -> core::result::Result<Option<u64>, Errno> {
    if timeout == 0 {
        return Ok(None);
    }
    let time: TimeSpec = get(env, timeout)?;
    let until = env.now().saturating_add(time.to_ns()?);
    env.with(|world, place| {
        let before = world.own_mut(place)?.restart_at.take();
        Ok(Some(before.unwrap_or(until)))
    })
}

/// Sets the mask that a call brings for its own time.
fn set_mask<E: Env>(env: &mut E, mask: u64) -> core::result::Result<(), Errno> {
    if mask == 0 {
        return Ok(());
    }
    let set = SignalSet(get(env, mask)?);
    env.with(|world, place| {
        world.own_mut(place)?.signals.set_mask_for_call(set);
        Ok(())
    })
}

/// What is left of the time goes back to the caller; an interrupted call keeps its end.
fn finish<E: Env>(env: &mut E, timeout: u64, until: Option<u64>, result: Result) -> Result {
    let interrupted = matches!(result, Err(Fail::Interrupted(_)));
    env.with(|world, place| {
        if let Ok(own) = world.own_mut(place) {
            if interrupted {
                own.restart_at = until;
            } else {
                own.signals.end_call();
                world.unblocked(place);
            }
        }
    });
    if let (Some(until), false) = (until, interrupted) {
        let left = TimeSpec::from_ns(until.saturating_sub(env.now()));
        // Where it cannot be written, the result counts for more.
        let _ = put_if(env, timeout, &left);
    }
    result
}

/// `ppoll`.
#[inline(never)]
pub(super) fn ppoll<E: Env>(
    env: &mut E,
    (at, count): (u64, u64),
    timeout: u64,
    (mask, mask_bytes): (u64, u64),
) -> Result {
    // More than there can be descriptors.
    if count > MOST as u64 || mask != 0 && mask_bytes != SET_BYTES {
        return Err(Errno::EINVAL.into());
    }
    let mut fds = Fds::new();
    let place = |index: u64| at.wrapping_add(index * size_of::<PollFd>() as u64);
    for index in 0..count {
        let entry = get(env, place(index))?;
        // There is room: counted above.
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

/// `pselect6`: three sets of descriptors, a bit each.
#[inline(never)]
pub(super) fn pselect<E: Env>(
    env: &mut E,
    count: u32,
    sets: [u64; 3],
    timeout: u64,
    mask: u64,
) -> Result {
    if count as i32 as i64 != i64::from(count) {
        return Err(Errno::EINVAL.into());
    }
    // Descriptors beyond the last possible one are not open; C programs pass whole sets.
    let used = if count as usize >= MOST {
        u64::MAX
    } else {
        (1 << count) - 1
    };
    let mut wanted = [0_u64; 3];
    for (set, at) in wanted.iter_mut().zip(sets) {
        if at != 0 {
            *set = get::<u64>(env, at)? & used;
        }
    }
    let [reading, writing, _] = wanted;
    let mut fds = Fds::new();
    for fd in 0..MOST as u32 {
        let is_in = |set: u64| set >> fd & 1 != 0;
        let bit = |set, events| if is_in(set) { events } else { 0 };
        if wanted.iter().any(|set| is_in(*set)) {
            let events = bit(reading, POLLIN | POLLRDNORM) | bit(writing, POLLOUT | POLLWRNORM);
            let _ = fds.try_push(PollFd {
                fd: fd as i32,
                events,
                revents: 0,
            });
        }
    }
    let until = deadline(env, timeout)?;
    if mask != 0 {
        let [set, bytes]: [u64; 2] = get(env, mask)?;
        if set != 0 && bytes != SET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        set_mask(env, set)?;
    }
    let result = wait(env, &mut fds, until);
    finish(env, timeout, until, result)?;
    if fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        return Err(Errno::EBADF.into());
    }
    let mut found = [0_u64; 3];
    for entry in &fds {
        let events = [
            POLLIN | POLLRDNORM | POLLHUP | POLLERR,
            POLLOUT | POLLWRNORM | POLLERR,
            0,
        ];
        for ((set, wanted), events) in found.iter_mut().zip(wanted).zip(events) {
            let ready = entry.revents & events != 0;
            *set |= wanted & u64::from(ready) << entry.fd;
        }
    }
    for (set, at) in found.iter().zip(sets) {
        put_if(env, at, set)?;
    }
    Ok(found.iter().map(|set| u64::from(set.count_ones())).sum())
}
