//! System calls about processes: numbers, groups, children and names.

use super::{Fail, Restart, Result};
use crate::abi::Errno;
use crate::abi::process::{
    NAME_BYTES, PR_GET_NAME, PR_GET_PAGE_SIZE, PR_SET_NAME, PR_SET_PAGE_SIZE, USAGE_WORDS, WNOHANG,
};
use crate::env::{Env, Slept, put, put_if, text};
use crate::files::Channel;
use crate::processes::{Relation, Selection, TaskTable};
use granule::arch::PageSize;

/// `getpid` and its like: returns one number of the caller's relations.
pub(super) fn relation<E: Env>(env: &mut E, what: impl Fn(Relation) -> u32) -> Result {
    env.with(|processes, place| Ok(u64::from(what(processes.relation(place)?))))
}

/// `setsid`: makes the caller lead its own process group, all that a session is without terminals.
pub(super) fn set_session<E: Env>(env: &mut E) -> Result {
    env.with(|processes, place| Ok(processes.lead_group(place).map(u64::from)?))
}

/// `wait4`.
pub(super) fn wait4<E: Env>(
    env: &mut E,
    which: i32,
    status_to: u64,
    options: u32,
    usage_to: u64,
) -> Result {
    if options & !WNOHANG != 0 {
        return Err(Errno::EINVAL.into());
    }
    // The negative of this number is not representable, so it names no group.
    if which == i32::MIN {
        return Err(Errno::ESRCH.into());
    }
    loop {
        let (process, waited) = env.with(|processes, place| {
            let process = processes.relation(place)?;
            let which = Selection::of(which, process.group);
            Ok::<_, Errno>((process.pid, processes.wait(place, which)?))
        })?;
        match waited {
            Some((pid, status)) => {
                put_if(env, status_to, &status)?;
                put_if(env, usage_to, &[0_u64; USAGE_WORDS])?;
                return Ok(u64::from(pid));
            }
            None if options & WNOHANG != 0 => return Ok(0),
            None => {}
        }
        let slept = env.sleep(Channel::Children(process), None, |processes, place| {
            let group = processes.relation(place).map_or(0, |process| process.group);
            processes.tasks.can_reap(place, Selection::of(which, group))
        });
        if slept == Slept::Signal {
            return Err(Fail::Interrupted(Restart::IfAsked));
        }
    }
}

pub(super) fn umask<E: Env>(env: &mut E, mask: u32) -> Result {
    env.with(|processes, place| {
        let process = processes.get_mut(place)?;
        let before = core::mem::replace(&mut process.umask, mask & 0o777);
        Ok(u64::from(before))
    })
}

/// `prctl`: only the name of the process, and the page size that it requests for its next program.
pub(super) fn prctl<E: Env>(env: &mut E, what: u64, argument: u64) -> Result {
    match what {
        PR_SET_NAME => {
            let mut name = [0; NAME_BYTES];
            // A longer name is cut.
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
            env.with(|processes, place| {
                processes.get_mut(place)?.name = name;
                Ok(0)
            })
        }
        PR_GET_NAME => {
            let name = env.with(|processes, place| Ok::<_, Errno>(processes.get(place)?.name))?;
            put(env, argument, &name)?;
            Ok(0)
        }
        PR_SET_PAGE_SIZE => {
            let usable = env.page_sizes();
            let size = PageSize::from_bytes(argument).filter(|size| usable.has(*size));
            if size.is_none() && argument != 0 {
                return Err(Errno::EINVAL.into());
            }
            env.with(|processes, place| {
                processes.get_mut(place)?.page_size = size;
                Ok(0)
            })
        }
        PR_GET_PAGE_SIZE => env.with(|processes, place| {
            let size = processes.get(place)?.page_size;
            Ok(size.map_or(0, PageSize::bytes))
        }),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// `getcpu`: the number of the CPU; the only node is 0.
pub(super) fn getcpu<E: Env>(env: &mut E, cpu_to: u64, node_to: u64) -> Result {
    let cpu = env.cpu();
    put_if(env, cpu_to, &cpu)?;
    put_if(env, node_to, &0_u32)?;
    Ok(0)
}
