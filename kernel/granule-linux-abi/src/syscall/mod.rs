//! The system calls and the table of their numbers.
//!
//! [`call`] has the table; each file has the calls of one subject. System calls that change registers,
//! tasks or address spaces (`execve`, `clone`, `mmap` and their like) are in the kernel's own table.
//! [`deliver`] handles signals on the return to the program.
//!
//! A system call is a function over [`Env`], so every call is tested on the host, with bad
//! pointers too. The calls are those that the programs here make. There is no terminal, no job control
//! (SIGSTOP and SIGCONT do nothing) and no session; `setsid` makes the caller lead a process group, so that
//! hostile programs can be ended. Any other call is ENOSYS, logged once.

pub mod deliver;
mod files;
mod names;
mod poll;
mod process;
mod signals;
mod system;
mod time;
mod transfer;

pub use system::STACK_BYTES;

use crate::abi::Errno;
use crate::abi::number as n;
use crate::env::Env;

/// Why a system call returns no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// The call failed.
    Error(Errno),
    /// A signal interrupted the call and decides whether the call fails or is repeated.
    Interrupted(Restart),
}

/// When an interrupted call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// If no handler ran, or the handler's action has SA_RESTART.
    IfAsked,
    /// If no handler ran.
    IfNoHandler,
}

impl From<Errno> for Fail {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// The result of a system call.
pub type Result<T = u64> = core::result::Result<T, Fail>;

/// The arguments, x0 to x5. C programs leave arbitrary upper halves in 32-bit arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args(
    /// The registers.
    pub [u64; 6],
);

impl Args {
    const fn int(value: u64) -> i32 {
        value as u32 as i32
    }

    const fn word(value: u64) -> u32 {
        value as u32
    }
}

/// Makes a system call; `None` if the table has no such number.
pub fn call<E: Env>(env: &mut E, number: u64, args: Args) -> Option<Result> {
    let Args([a, b, c, d, e, _]) = args;
    let (int, word) = (Args::int, Args::word);
    Some(match number {
        n::OPENAT => names::openat(env, int(a), b, word(c)),
        n::NEWFSTATAT => names::stat_at(env, int(a), b, c, word(d)),
        n::READLINKAT => names::readlink(env, int(a), b, c, d),
        n::CHDIR => names::chdir(env, a),

        n::CLOSE => files::close(env, word(a)),
        n::CLOSE_RANGE => files::close_range(env, word(a), word(b), word(c)),
        n::FSTAT => files::fstat(env, word(a), b),
        n::GETCWD => files::getcwd(env, a, b),
        n::GETDENTS64 => files::getdents(env, word(a), b, word(c)),
        n::LSEEK => files::lseek(env, word(a), b as i64, word(c)),
        n::DUP3 => files::dup3(env, word(a), word(b), word(c)),
        n::FCNTL => files::fcntl(env, word(a), word(b), c),
        n::IOCTL => files::ioctl(env, word(a), word(b), c),
        n::PIPE2 => files::pipe(env, a, word(b)),

        n::READ => transfer::read(env, word(a), (b, c)),
        n::WRITE => transfer::write(env, word(a), (b, c)),
        // No file supports this call; programs then copy with `read` and `write`.
        n::SENDFILE => Err(Errno::EINVAL.into()),
        n::PPOLL => poll::ppoll(env, (a, b), c, (d, e)),

        n::RT_SIGACTION => signals::action(env, a, (b, c), d),
        n::RT_SIGPROCMASK => signals::mask(env, word(a), (b, c), d),
        n::RT_SIGSUSPEND => signals::suspend(env, a, b),
        n::RT_SIGTIMEDWAIT => signals::timed_wait(env, a, b, c, d),
        n::KILL => signals::kill(env, int(a), int(b)),
        n::TKILL => signals::tkill(env, None, int(a), int(b)),
        n::TGKILL => signals::tkill(env, Some(int(a)), int(b), int(c)),

        n::GETPID => process::relation(env, |it| it.pid),
        n::GETPPID => process::relation(env, |it| it.parent),
        n::SETSID => process::set_session(env),
        n::WAIT4 => process::wait4(env, int(a), b, word(c), d),
        n::UMASK => process::umask(env, word(a)),
        n::PRCTL => process::prctl(env, a, b),
        n::GETCPU => process::getcpu(env, a, b),
        // A process has one thread and shares no memory, so the list is never used.
        n::SET_ROBUST_LIST => Ok(0),

        // The only user is root.
        n::GETUID | n::GETEUID | n::GETGID | n::GETEGID => Ok(0),
        n::UNAME => system::uname(env, a),
        n::SYSINFO => system::sysinfo(env, a),
        n::PRLIMIT64 => system::prlimit(env, int(a), b, c, d),
        n::GETRANDOM => system::getrandom(env, a, b, c),

        n::CLOCK_GETTIME => time::gettime(env, a, b),
        n::CLOCK_NANOSLEEP => time::sleep(env, a, b, c, d),
        n::NANOSLEEP => time::sleep(env, crate::abi::time::CLOCK_MONOTONIC, 0, a, b),
        _ => return None,
    })
}

/// A call with a number in no table: `ENOSYS`.
pub fn unknown<E: Env>(env: &mut E, number: u64) -> Result {
    env.log_unknown(number);
    Err(Errno::ENOSYS.into())
}

#[cfg(test)]
mod tests;
