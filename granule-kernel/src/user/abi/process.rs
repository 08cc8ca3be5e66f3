//! Processes: clone, wait, limits, usage, and what the system says of itself.

use super::layout;
use super::time::TimeVal;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const WNOHANG: u32 = 1;
pub(crate) const WUNTRACED: u32 = 2;
pub(crate) const WCONTINUED: u32 = 8;
/// Three options of `wait4` that only tell children of kinds apart which there are not.
pub(crate) const WAIT_KINDS: u32 = 0xe000_0000;

/// How a process ended or stopped, as `wait4` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// By `exit`, with the low byte of what it gave.
    Exited(u8),
    /// By a signal; whether the default action was to dump core (none is written).
    Killed { signal: u8, core: bool },
    /// Stopped by a signal.
    Stopped(u8),
    /// Goes on.
    Continued,
}

impl Status {
    /// What a word says that [`word`](Self::word) made.
    pub(crate) const fn from_word(word: u32) -> Self {
        let high = (word >> 8) as u8;
        match word & 0x7f {
            _ if word == 0xffff => Self::Continued,
            0 => Self::Exited(high),
            0x7f => Self::Stopped(high),
            signal => Self::Killed {
                signal: signal as u8,
                core: false,
            },
        }
    }

    /// In the word that user space takes apart.
    pub(crate) const fn word(self) -> u32 {
        match self {
            Self::Exited(code) => (code as u32) << 8,
            // Bit 7 says that a core was written, which never happens here.
            Self::Killed { signal, .. } => signal as u32,
            Self::Stopped(signal) => (signal as u32) << 8 | 0x7f,
            Self::Continued => 0xffff,
        }
    }
}

/// `struct rusage`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct Usage {
    pub(crate) user: TimeVal,
    pub(crate) system: TimeVal,
    pub(crate) max_rss: i64,
    pub(crate) shared: [i64; 3],
    pub(crate) minor_faults: i64,
    pub(crate) rest: [i64; 9],
}
layout!(Usage, 144, max_rss at 32, minor_faults at 64);

pub(crate) const RUSAGE_SELF: i32 = 0;
pub(crate) const RUSAGE_CHILDREN: i32 = -1;
pub(crate) const RUSAGE_THREAD: i32 = 1;

pub(crate) const RLIMIT_STACK: u64 = 3;
pub(crate) const RLIMIT_CORE: u64 = 4;
pub(crate) const RLIMIT_NPROC: u64 = 6;
pub(crate) const RLIMIT_NOFILE: u64 = 7;
pub(crate) const RLIM_NLIMITS: u64 = 16;
pub(crate) const RLIM_INFINITY: u64 = u64::MAX;

/// `struct rlimit64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct Limit {
    pub(crate) current: u64,
    pub(crate) most: u64,
}
layout!(Limit, 16);

/// `struct sysinfo`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct SysInfo {
    pub(crate) uptime: i64,
    pub(crate) loads: [u64; 3],
    pub(crate) total_ram: u64,
    pub(crate) free_ram: u64,
    pub(crate) shared_ram: u64,
    pub(crate) buffer_ram: u64,
    pub(crate) total_swap: u64,
    pub(crate) free_swap: u64,
    pub(crate) processes: u16,
    pub(crate) pad: u16,
    pub(crate) pad2: u32,
    pub(crate) total_high: u64,
    pub(crate) free_high: u64,
    pub(crate) unit: u32,
    pub(crate) pad3: u32,
}
layout!(SysInfo, 112, processes at 80, total_high at 88, unit at 104);

/// `struct new_utsname`: six texts of 65 bytes.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct UtsName {
    pub(crate) texts: [[u8; 65]; 6],
}
layout!(UtsName, 390);

impl UtsName {
    /// System, node, release, version, machine and domain; what is too long is cut.
    pub(crate) fn new(texts: [&[u8]; 6]) -> Self {
        let mut all = [[0; 65]; 6];
        for (to, from) in all.iter_mut().zip(texts) {
            // One less: the NUL.
            let (_nul, room) = to.split_last_mut().unwrap_or((&mut 0, &mut []));
            for (to, from) in room.iter_mut().zip(from) {
                *to = *from;
            }
        }
        Self { texts: all }
    }
}

pub(crate) const PR_SET_PDEATHSIG: u64 = 1;
pub(crate) const PR_GET_PDEATHSIG: u64 = 2;
pub(crate) const PR_GET_DUMPABLE: u64 = 3;
pub(crate) const PR_SET_DUMPABLE: u64 = 4;
pub(crate) const PR_SET_NAME: u64 = 15;
pub(crate) const PR_GET_NAME: u64 = 16;
pub(crate) const PR_SET_NO_NEW_PRIVS: u64 = 38;
pub(crate) const PR_GET_NO_NEW_PRIVS: u64 = 39;

/// Bytes of a process's name, its NUL included.
pub(crate) const NAME_BYTES: usize = 16;

pub(crate) const FUTEX_WAIT: u32 = 0;
pub(crate) const FUTEX_WAKE: u32 = 1;
pub(crate) const FUTEX_WAIT_BITSET: u32 = 9;
pub(crate) const FUTEX_WAKE_BITSET: u32 = 10;
/// Bits beside the operation: private, and the clock of the time.
pub(crate) const FUTEX_PRIVATE: u32 = 128;
pub(crate) const FUTEX_CLOCK_REALTIME: u32 = 256;

/// The only size of a robust list's head that there is.
pub(crate) const ROBUST_LIST_HEAD_BYTES: u64 = 24;

pub(crate) const GRND_NONBLOCK: u64 = 1;
pub(crate) const GRND_RANDOM: u64 = 2;
pub(crate) const GRND_INSECURE: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// As WIFEXITED, WEXITSTATUS, WTERMSIG and their like take the word apart.
    #[test]
    fn a_status_is_what_the_macros_of_c_expect() {
        let word = Status::Exited(3).word();
        assert_eq!((word & 0x7f, word >> 8 & 0xff), (0, 3));
        let killed = Status::Killed {
            signal: 11,
            core: true,
        };
        let word = killed.word();
        assert_eq!((word & 0x7f, word >> 8 & 0xff), (11, 0));
        let word = Status::Stopped(20).word();
        assert_eq!((word & 0xff, word >> 8 & 0xff), (0x7f, 20));
        assert_eq!(Status::Continued.word(), 0xffff);
        let ended = Status::Killed {
            signal: 9,
            core: false,
        };
        for status in [
            Status::Exited(200),
            ended,
            Status::Stopped(19),
            Status::Continued,
        ] {
            assert_eq!(Status::from_word(status.word()), status);
        }
    }

    #[test]
    fn a_name_of_the_system_ends_with_a_nul() {
        let long = [b'x'; 100];
        let names = UtsName::new([b"Linux", &long, b"", b"", b"aarch64", b""]);
        let [system, node, ..] = names.texts;
        assert_eq!(system.get(..6), Some(&b"Linux\0"[..]));
        assert_eq!(node.iter().filter(|byte| **byte == b'x').count(), 64);
        assert_eq!(node.last(), Some(&0));
    }
}
