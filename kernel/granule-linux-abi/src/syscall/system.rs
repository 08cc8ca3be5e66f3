//! System calls about the whole system: its name, memory, limits and random numbers.

use super::Result;
use crate::abi::Errno;
use crate::abi::process::{
    GRND_INSECURE, GRND_NONBLOCK, GRND_RANDOM, Limit, RLIM_INFINITY, RLIM_NLIMITS, RLIMIT_NOFILE,
    RLIMIT_STACK, SysInfo, UtsName,
};
use crate::abi::time::NANOSECONDS;
use crate::env::{Env, put, put_if};
use crate::files::descriptors::MOST;

/// The Linux release that this interface follows. C libraries refuse kernels that are too old and choose
/// calls by this number; a missing call returns ENOSYS.
const RELEASE: &[u8] = b"6.1.0-granule";

/// The bytes of a process's stack; RLIMIT_STACK reports it.
pub const STACK_BYTES: u64 = 8 << 20;

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

pub(super) fn sysinfo<E: Env>(env: &mut E, to: u64) -> Result {
    let ram = env.ram();
    let processes = env.with(|processes, _| processes.count());
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

/// `prlimit64` for the caller: limits can be read but not changed.
pub(super) fn prlimit<E: Env>(env: &mut E, pid: i32, resource: u64, new: u64, old: u64) -> Result {
    if pid != 0 || new != 0 {
        return Err(Errno::EPERM.into());
    }
    if resource >= RLIM_NLIMITS {
        return Err(Errno::EINVAL.into());
    }
    let value = match resource {
        RLIMIT_STACK => STACK_BYTES,
        RLIMIT_NOFILE => MOST as u64,
        _ => RLIM_INFINITY,
    };
    let limit = Limit {
        current: value,
        most: value,
    };
    put_if(env, old, &limit)?;
    Ok(0)
}

pub(super) fn getrandom<E: Env>(env: &mut E, to: u64, bytes: u64, flags: u64) -> Result {
    const BOTH: u64 = GRND_RANDOM | GRND_INSECURE;
    if flags & !(GRND_NONBLOCK | BOTH) != 0 || flags & BOTH == BOTH {
        return Err(Errno::EINVAL.into());
    }
    if flags & GRND_INSECURE == 0 && !env.is_random_seeded() {
        return Err(Errno::EAGAIN.into());
    }
    let bytes = bytes.min(crate::abi::file::MAX_RW_COUNT);
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
        // A pause has a cost, so many bytes are filled between two of them.
        if done.is_multiple_of(4096) && env.pause() {
            break;
        }
    }
    Ok(done)
}
