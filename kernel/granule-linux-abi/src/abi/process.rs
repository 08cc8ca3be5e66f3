//! Processes: clone, wait, limits, resource usage, and system information.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const WNOHANG: u32 = 1;
/// Words of `struct rusage`, which `wait4` fills with zeros.
pub const USAGE_WORDS: usize = 18;

/// The end of a process, as `wait4` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By `exit`, with the low byte of its argument.
    Exited(u8),
    /// By a signal. `core` is set if the default action is to dump core; no core file is written.
    Killed { signal: u8, core: bool },
}

impl Status {
    /// Decodes a word made by [`word`](Self::word).
    pub const fn from_word(word: u32) -> Self {
        let high = (word >> 8) as u8;
        match word & 0x7f {
            0 => Self::Exited(high),
            signal => Self::Killed {
                signal: signal as u8,
                core: false,
            },
        }
    }

    /// The status word for user space.
    pub const fn word(self) -> u32 {
        match self {
            Self::Exited(code) => (code as u32) << 8,
            // Bit 7 means that a core file was written, which never happens here.
            Self::Killed { signal, .. } => signal as u32,
        }
    }
}

pub const RLIMIT_STACK: u64 = 3;
pub const RLIMIT_NOFILE: u64 = 7;
pub const RLIM_NLIMITS: u64 = 16;
pub const RLIM_INFINITY: u64 = u64::MAX;

/// `struct rlimit64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Limit {
    pub current: u64,
    pub most: u64,
}
layout!(Limit, 16);

/// `struct sysinfo`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct SysInfo {
    pub uptime: i64,
    pub loads: [u64; 3],
    pub total_ram: u64,
    pub free_ram: u64,
    pub shared_ram: u64,
    pub buffer_ram: u64,
    pub total_swap: u64,
    pub free_swap: u64,
    pub processes: u16,
    pub pad: u16,
    pub pad2: u32,
    pub total_high: u64,
    pub free_high: u64,
    pub unit: u32,
    pub pad3: u32,
}
layout!(SysInfo, 112, processes at 80, total_high at 88, unit at 104);

/// `struct new_utsname`: six strings of 65 bytes.
#[derive(Clone, Copy, Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct UtsName {
    pub texts: [[u8; 65]; 6],
}
layout!(UtsName, 390);

impl UtsName {
    /// Makes it from system, node, release, version, machine and domain. Longer strings are cut.
    pub fn new(texts: [&[u8]; 6]) -> Self {
        let mut all = [[0; 65]; 6];
        for (to, from) in all.iter_mut().zip(texts) {
            // One byte is for the NUL.
            let (_nul, room) = to.split_last_mut().unwrap_or((&mut 0, &mut []));
            for (to, from) in room.iter_mut().zip(from) {
                *to = *from;
            }
        }
        Self { texts: all }
    }
}

pub const PR_SET_NAME: u64 = 15;
pub const PR_GET_NAME: u64 = 16;
/// Sets the page size, in bytes, of the programs that the process and its later children execute; 0 takes the
/// wish back. "GRPS" in ASCII: Linux has no such numbers.
pub const PR_SET_PAGE_SIZE: u64 = 0x4752_5053;
/// Returns what [`PR_SET_PAGE_SIZE`] set, in bytes, or 0. "GRPG" in ASCII.
pub const PR_GET_PAGE_SIZE: u64 = 0x4752_5047;

/// Bytes of a process's name, its NUL included.
pub const NAME_BYTES: usize = 16;

/// A flag of `getrandom`: fail instead of a wait for a seed. Here nothing seeds the generator after the boot, so every
/// call does.
pub const GRND_NONBLOCK: u64 = 1;
/// A flag of `getrandom`, without effect since Linux 5.6.
pub const GRND_RANDOM: u64 = 2;
/// A flag of `getrandom`: bytes even without a seed.
pub const GRND_INSECURE: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes the word as WIFEXITED, WEXITSTATUS, WTERMSIG and their like do.
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
        let ended = Status::Killed {
            signal: 9,
            core: false,
        };
        for status in [Status::Exited(200), ended] {
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
