//! Calls about processes: numbers, groups, children, and what they used.

use super::env::{Env, Slept, get, put, put_if, text};
use super::{Fail, Restart, Result};
use crate::user::abi::Errno;
use crate::user::abi::process::{
    FUTEX_CLOCK_REALTIME, FUTEX_PRIVATE, FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAKE,
    FUTEX_WAKE_BITSET, NAME_BYTES, PR_GET_DUMPABLE, PR_GET_NAME, PR_GET_NO_NEW_PRIVS,
    PR_GET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_NO_NEW_PRIVS, ROBUST_LIST_HEAD_BYTES,
    RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD, Usage, WAIT_KINDS, WCONTINUED, WNOHANG, WUNTRACED,
};
use crate::user::abi::time::{NANOSECONDS, TICKS_PER_SECOND, TimeSpec, TimeVal, Times};
use crate::user::files::Channel;
use crate::user::world::{Relation, Selection, Waited};

/// What is known of the caller.
pub(super) fn relation<E: Env>(env: &mut E, what: impl Fn(Relation) -> u32) -> Result {
    of(env, 0, what)
}

/// What is known of a process, or of the caller for 0.
pub(super) fn of<E: Env>(env: &mut E, pid: i32, what: impl Fn(Relation) -> u32) -> Result {
    env.with(|world, place| {
        let (_, relation) = world.named(place, pid)?;
        Ok(u64::from(what(relation)))
    })
}

/// `setpgid`.
pub(super) fn set_group<E: Env>(env: &mut E, pid: i32, group: i32) -> Result {
    env.with(|world, place| Ok(world.set_group(place, pid, group).map(|()| 0)?))
}

/// `setsid`.
pub(super) fn set_session<E: Env>(env: &mut E) -> Result {
    env.with(|world, place| Ok(world.set_session(place).map(u64::from)?))
}

/// `wait4`.
pub(super) fn wait4<E: Env>(
    env: &mut E,
    which: i32,
    status_to: u64,
    options: u32,
    usage_to: u64,
) -> Result {
    if options & !(WNOHANG | WUNTRACED | WCONTINUED | WAIT_KINDS) != 0 {
        return Err(Errno::EINVAL.into());
    }
    // It would mean a group that its number cannot name.
    if which == i32::MIN {
        return Err(Errno::ESRCH.into());
    }
    let kinds = (options & WUNTRACED != 0, options & WCONTINUED != 0);
    loop {
        let (own, waited) = env.with(|world, place| {
            let (_, own) = world.named(place, 0)?;
            let which = Selection::of(which, own.group);
            Ok::<_, Errno>((own.pid, world.wait(place, which, kinds)?))
        })?;
        match waited {
            Waited::Child { pid, status } => {
                put_if(env, status_to, &status)?;
                put_if(env, usage_to, &Usage::default())?;
                return Ok(u64::from(pid));
            }
            Waited::NotYet if options & WNOHANG != 0 => return Ok(0),
            Waited::NotYet => {}
        }
        let slept = env.sleep(Channel::Children(own), None, |world, place| {
            let group = world.named(place, 0).map_or(0, |(_, own)| own.group);
            !world.would_wait(place, Selection::of(which, group), kinds)
        });
        if slept == Slept::Signal {
            return Err(Fail::Interrupted(Restart::IfAsked));
        }
    }
}

/// `umask`.
pub(super) fn umask<E: Env>(env: &mut E, mask: u32) -> Result {
    env.with(|world, place| {
        let own = world.own_mut(place)?;
        Ok(u64::from(core::mem::replace(&mut own.umask, mask & 0o777)))
    })
}

/// `prctl`, as far as programs cannot do without.
pub(super) fn prctl<E: Env>(env: &mut E, what: u64, argument: u64) -> Result {
    match what {
        PR_SET_NAME => {
            let mut name = [0; NAME_BYTES];
            // What is too long is cut.
            match text(env, argument, &mut name, Errno::ERANGE) {
                Ok(_) | Err(Errno::ERANGE) => {}
                Err(error) => return Err(error.into()),
            }
            let [.., last] = &mut name;
            *last = 0;
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
            if let Some(rest) = name.get_mut(end..) {
                rest.fill(0);
            }
            env.with(|world, place| {
                world.own_mut(place)?.name = name;
                Ok(0)
            })
        }
        PR_GET_NAME => {
            let name = env.with(|world, place| world.own(place).map(|own| own.name))?;
            put(env, argument, &name)?;
            Ok(0)
        }
        // Nobody dumps, and nobody gains privileges: it can be promised.
        PR_GET_DUMPABLE => Ok(1),
        PR_SET_DUMPABLE if argument <= 1 => Ok(0),
        PR_SET_NO_NEW_PRIVS if argument == 1 => Ok(0),
        PR_GET_NO_NEW_PRIVS => Ok(0),
        PR_GET_PDEATHSIG => {
            put(env, argument, &0_u32)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `futex`: waiting and waking, which is what locks of C libraries take.
pub(super) fn futex<E: Env>(
    env: &mut E,
    at: u64,
    operation: u32,
    value: u32,
    timeout: u64,
    bits: u64,
) -> Result {
    if !at.is_multiple_of(4) {
        return Err(Errno::EINVAL.into());
    }
    // No memory is shared between address spaces, so all of them are private.
    let channel = Channel::Futex {
        space: env.space(),
        address: at,
    };
    let operation = operation & !(FUTEX_PRIVATE | FUTEX_CLOCK_REALTIME);
    match operation {
        FUTEX_WAIT | FUTEX_WAIT_BITSET => {
            if operation == FUTEX_WAIT_BITSET && bits as u32 == 0 {
                return Err(Errno::EINVAL.into());
            }
            let until = match timeout {
                0 => None,
                timeout => {
                    let time = get::<TimeSpec>(env, timeout)?.to_ns()?;
                    // The one waits for a time, the other until one.
                    let from = if operation == FUTEX_WAIT {
                        env.now()
                    } else {
                        0
                    };
                    Some(from.saturating_add(time))
                }
            };
            // Who wakes has changed the word before; asleep, it is looked for in the channel.
            if get::<u32>(env, at)? != value {
                return Err(Errno::EAGAIN.into());
            }
            let mut first = true;
            let slept = env.sleep(channel, until, |_, _| !core::mem::take(&mut first));
            match slept {
                Slept::Ready => Ok(0),
                Slept::TimeUp => Err(Errno::ETIMEDOUT.into()),
                Slept::Signal => Err(Fail::Interrupted(Restart::IfAsked)),
            }
        }
        FUTEX_WAKE | FUTEX_WAKE_BITSET => {
            // All of them look again; who finds the word taken waits again.
            get::<u32>(env, at)?;
            env.with(|world, _| {
                let places = 0..crate::user::MOST_TASKS;
                let waiting = places
                    .filter(|place| {
                        world
                            .own(*place)
                            .is_ok_and(|own| own.waits == Some(channel))
                    })
                    .count();
                world.wake(channel);
                Ok(waiting.min(value as usize) as u64)
            })
        }
        _ => Err(Errno::ENOSYS.into()),
    }
}

/// `set_robust_list`: locks that a dying thread holds; no memory is shared, so nobody would see
/// them.
pub(super) fn set_robust_list(bytes: u64) -> Result {
    if bytes == ROBUST_LIST_HEAD_BYTES {
        Ok(0)
    } else {
        Err(Errno::EINVAL.into())
    }
}

/// `getrusage`.
pub(super) fn getrusage<E: Env>(env: &mut E, who: i32, to: u64) -> Result {
    let usage = match who {
        RUSAGE_SELF | RUSAGE_THREAD => Usage {
            user: TimeVal::from_ns(env.cpu_time()),
            ..Usage::default()
        },
        RUSAGE_CHILDREN => Usage::default(),
        _ => return Err(Errno::EINVAL.into()),
    };
    put(env, to, &usage)?;
    Ok(0)
}

/// `times`: also the ticks since the machine was started.
pub(super) fn times<E: Env>(env: &mut E, to: u64) -> Result {
    let ticks = |ns: u64| ns / (NANOSECONDS / TICKS_PER_SECOND);
    let times = Times {
        user: ticks(env.cpu_time()) as i64,
        ..Times::default()
    };
    put_if(env, to, &times)?;
    Ok(ticks(env.now()))
}

/// `sched_getaffinity`: every process may run on every CPU.
pub(super) fn affinity<E: Env>(env: &mut E, pid: i32, bytes: u64, to: u64) -> Result {
    of(env, pid, |it| it.pid)?;
    let (cpus, _) = env.cpus();
    if bytes < 8 || !bytes.is_multiple_of(8) {
        return Err(Errno::EINVAL.into());
    }
    put(env, to, &cpus)?;
    Ok(8)
}

/// `getcpu`.
pub(super) fn getcpu<E: Env>(env: &mut E, cpu_to: u64, node_to: u64) -> Result {
    let (_, cpu) = env.cpus();
    put_if(env, cpu_to, &cpu)?;
    put_if(env, node_to, &0_u32)?;
    Ok(0)
}
