//! Clocks and sleeping. Every clock counts from the machine's start: no device has the date.

use super::{Fail, Restart, Result};
use crate::abi::Errno;
use crate::abi::time::{
    CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME, CLOCK_REALTIME_COARSE, TIMER_ABSTIME,
    TimeSpec,
};
use crate::env::{Env, Slept, get, put, put_if};
use crate::files::Channel;

/// A clock's time in nanoseconds.
fn time<E: Env>(env: &E, clock: u64) -> core::result::Result<u64, Errno> {
    match clock {
        CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_REALTIME_COARSE | CLOCK_MONOTONIC_COARSE => {
            Ok(env.now())
        }
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn gettime<E: Env>(env: &mut E, clock: u64, to: u64) -> Result {
    let time = TimeSpec::from_ns(time(env, clock)?);
    put(env, to, &time)?;
    Ok(0)
}

/// `clock_nanosleep`: sleeps for a duration or until a time.
pub(super) fn sleep<E: Env>(env: &mut E, clock: u64, flags: u64, wanted: u64, left: u64) -> Result {
    let now = time(env, clock)?;
    let wanted = get::<TimeSpec>(env, wanted)?.to_ns()?;
    let absolute = flags & TIMER_ABSTIME != 0;
    let until = env.with(|processes, place| {
        let before = processes.get_mut(place)?.restart_at.take();
        Ok::<_, Errno>(match before {
            _ if absolute => wanted,
            Some(before) => before,
            None => now.saturating_add(wanted),
        })
    })?;
    match env.sleep(Channel::Nothing, Some(until), |_, _| false) {
        Slept::TimeUp | Slept::Ready => Ok(0),
        Slept::Signal => {
            if !absolute {
                env.with(|processes, place| {
                    if let Ok(process) = processes.get_mut(place) {
                        process.restart_at = Some(until);
                    }
                });
                let rest = TimeSpec::from_ns(until.saturating_sub(env.now()));
                put_if(env, left, &rest)?;
            }
            Err(Fail::Interrupted(Restart::IfNoHandler))
        }
    }
}
