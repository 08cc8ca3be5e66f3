//! Calls about the system and what it allows.

use super::Result;
use super::env::{Env, get, put, put_if};
use crate::user::MOST_TASKS;
use crate::user::abi::Errno;
use crate::user::abi::number;
use crate::user::abi::process::{
    GRND_INSECURE, GRND_NONBLOCK, GRND_RANDOM, Limit, RLIM_INFINITY, RLIM_NLIMITS, RLIMIT_CORE,
    RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_STACK, SysInfo, UtsName,
};
use crate::user::abi::time::NANOSECONDS;
use crate::user::files::descriptors::MOST;

/// What the interface is of: C libraries refuse kernels that are older than they can use, and choose
/// calls by this. Every call that is not there says so.
const RELEASE: &[u8] = b"6.1.0-granule";

/// The bytes of a process's stack, as RLIMIT_STACK tells them.
pub(crate) const STACK_BYTES: u64 = 8 << 20;

/// `uname`.
pub(super) fn uname<E: Env>(env: &mut E, to: u64) -> Result {
    let names = UtsName::new([
        b"Linux",
        b"granule",
        RELEASE,
        concat!("granule ", env!("CARGO_PKG_VERSION")).as_bytes(),
        b"aarch64",
        b"(none)",
    ]);
    put(env, to, &names)?;
    Ok(0)
}

/// `sysinfo`.
pub(super) fn sysinfo<E: Env>(env: &mut E, to: u64) -> Result {
    let ram = env.ram();
    let processes = env.with(|world, _| world.count());
    let info = SysInfo {
        uptime: (env.now() / NANOSECONDS) as i64,
        total_ram: ram.total,
        free_ram: ram.free,
        processes: processes as u16,
        unit: 1,
        ..SysInfo::default()
    };
    put(env, to, &info)?;
    Ok(0)
}

/// A resource's limit, the soft and the hard one.
const fn limit(resource: u64) -> Limit {
    let value = match resource {
        RLIMIT_STACK => STACK_BYTES,
        RLIMIT_CORE => 0,
        RLIMIT_NPROC => MOST_TASKS as u64,
        RLIMIT_NOFILE => MOST as u64,
        _ => RLIM_INFINITY,
    };
    Limit {
        current: value,
        most: value,
    }
}

/// `prlimit64`: limits are what they are, and can be set to that only.
pub(super) fn prlimit<E: Env>(env: &mut E, pid: i32, resource: u64, new: u64, old: u64) -> Result {
    super::process::of(env, pid, |it| it.pid)?;
    if resource >= RLIM_NLIMITS {
        return Err(Errno::EINVAL.into());
    }
    let present = limit(resource);
    if new != 0 {
        let wanted: Limit = get(env, new)?;
        if wanted.current > wanted.most {
            return Err(Errno::EINVAL.into());
        }
        if wanted != present {
            return Err(Errno::EPERM.into());
        }
    }
    put_if(env, old, &present)?;
    Ok(0)
}

/// `getrandom`.
pub(super) fn getrandom<E: Env>(env: &mut E, to: u64, bytes: u64, flags: u64) -> Result {
    if flags & !(GRND_NONBLOCK | GRND_RANDOM | GRND_INSECURE) != 0
        || flags & (GRND_RANDOM | GRND_INSECURE) == GRND_RANDOM | GRND_INSECURE
    {
        return Err(Errno::EINVAL.into());
    }
    let bytes = bytes.min(crate::user::abi::file::MAX_RW_COUNT);
    let mut done = 0;
    while done < bytes {
        let mut buffer = [0; 256];
        let count = buffer.len().min((bytes - done) as usize);
        let piece = buffer.get_mut(..count).unwrap_or_default();
        env.random(piece);
        let at = to.checked_add(done).ok_or(Errno::EFAULT)?;
        match env.write(at, piece) {
            Ok(()) => done += count as u64,
            Err(error) if done == 0 => return Err(error.into()),
            Err(_) => break,
        }
        // A large part at a time, as a pause is not for nothing.
        if done.is_multiple_of(4096) && env.pause() {
            break;
        }
    }
    Ok(done)
}

/// Changing to the one user there is.
pub(super) fn only_root(ids: &[u64; 3], call: u64) -> Result {
    let given = match call {
        number::SETUID | number::SETGID => 1,
        _ => 3,
    };
    // All ones leaves one as it is, where there are three.
    let allowed = |id: &u64| *id as u32 == 0 || given == 3 && *id as u32 == u32::MAX;
    if ids.iter().take(given).all(allowed) {
        Ok(0)
    } else {
        Err(Errno::EPERM.into())
    }
}

/// `getresuid` and `getresgid`.
pub(super) fn three_zeros<E: Env>(env: &mut E, to: [u64; 3]) -> Result {
    for at in to {
        put(env, at, &0_u32)?;
    }
    Ok(0)
}

/// `membarrier`: processes have one thread each, so there is nobody to order against; the command
/// that asks says that nothing is supported.
pub(super) fn membarrier(command: u64) -> Result {
    if command == 0 {
        Ok(0)
    } else {
        Err(Errno::EINVAL.into())
    }
}
