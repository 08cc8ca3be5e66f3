//! Files: flags, modes, and the structures that describe files.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The working directory, in place of a descriptor.
pub const AT_FDCWD: i32 = -100;
/// Describe the link itself, not its target.
pub const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
/// Mount nothing along the path.
pub const AT_NO_AUTOMOUNT: u32 = 0x800;
/// An empty path means the descriptor itself.
pub const AT_EMPTY_PATH: u32 = 0x1000;

/// The access mode in the open flags: read, write or both.
pub const O_ACCMODE: u32 = 0o3;
pub const O_WRONLY: u32 = 0o1;
pub const O_RDWR: u32 = 0o2;
pub const O_CREAT: u32 = 0o100;
pub const O_EXCL: u32 = 0o200;
pub const O_TRUNC: u32 = 0o1000;
pub const O_APPEND: u32 = 0o2000;
pub const O_NONBLOCK: u32 = 0o4000;
/// These two values differ from those of most architectures.
pub const O_DIRECTORY: u32 = 0o40000;
pub const O_NOFOLLOW: u32 = 0o100000;
pub const O_CLOEXEC: u32 = 0o2000000;
pub const O_PATH: u32 = 0o10000000;
/// Set for every 64-bit program; F_GETFL returns it.
pub const O_LARGEFILE: u32 = 0o400000;

pub const F_SETFD: u32 = 2;
pub const F_GETFL: u32 = 3;
pub const F_DUPFD_CLOEXEC: u32 = 1030;
/// The only descriptor flag.
pub const FD_CLOEXEC: u64 = 1;

/// The `ioctl` that turns O_NONBLOCK on and off.
pub const FIONBIO: u32 = 0x5421;

pub const SEEK_SET: u32 = 0;
pub const SEEK_CUR: u32 = 1;
pub const SEEK_END: u32 = 2;

pub const S_IFMT: u32 = 0o170000;
pub const S_IFIFO: u32 = 0o010000;
pub const S_IFCHR: u32 = 0o020000;
pub const S_IFDIR: u32 = 0o040000;
pub const S_IFBLK: u32 = 0o060000;
pub const S_IFREG: u32 = 0o100000;
pub const S_IFLNK: u32 = 0o120000;

/// The most bytes of a path, its NUL included.
pub const PATH_MAX: usize = 4096;
/// Writes up to this size go into a pipe in one piece.
pub const PIPE_BUF: usize = 4096;
/// The most bytes that one read or write moves.
pub const MAX_RW_COUNT: u64 = 0x7fff_f000;

/// A device number in the 64-bit form of `stat`: twelve bits of major, twenty of minor.
pub const fn device_number(major: u32, minor: u32) -> u64 {
    ((minor & 0xff) | (major & 0xfff) << 8) as u64 | ((minor & !0xff) as u64) << 12
}

/// `struct stat`, as `fstat` and `newfstatat` fill it.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub pad1: u64,
    pub size: i64,
    pub blksize: i32,
    pub pad2: i32,
    pub blocks: i64,
    pub atime: [i64; 2],
    pub mtime: [i64; 2],
    pub ctime: [i64; 2],
    pub unused: [u32; 2],
}
layout!(Stat, 128, mode at 16, rdev at 32, size at 48, blksize at 56, blocks at 64, atime at 72);

/// Bytes of an entry of `getdents64` before its name. No C structure without padding has this size of 19.
pub const DIRECTORY_ENTRY_HEAD: usize = 19;

/// The head of a directory entry in memory order; `next` is the position of the next entry, for `lseek`. The
/// name follows, with a NUL; the whole is padded to a multiple of 8 bytes, `length`.
pub fn directory_entry_head(
    ino: u64,
    next: u64,
    length: u16,
    kind: u8,
) -> [u8; DIRECTORY_ENTRY_HEAD] {
    let mut bytes = [0; DIRECTORY_ENTRY_HEAD];
    let (first, rest) = bytes.split_at_mut(8);
    first.copy_from_slice(&ino.to_le_bytes());
    let (second, rest) = rest.split_at_mut(8);
    second.copy_from_slice(&next.to_le_bytes());
    let [low, high] = length.to_le_bytes();
    rest.copy_from_slice(&[low, high, kind]);
    bytes
}

pub const POLLIN: u16 = 0x1;
pub const POLLOUT: u16 = 0x4;
pub const POLLERR: u16 = 0x8;
pub const POLLHUP: u16 = 0x10;
pub const POLLNVAL: u16 = 0x20;
pub const POLLRDNORM: u16 = 0x40;
pub const POLLWRNORM: u16 = 0x100;

/// A request of `ppoll` for one descriptor, and the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct PollFd {
    pub fd: i32,
    pub events: u16,
    pub revents: u16,
}
layout!(PollFd, 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_packed_as_user_space_unpacks_them() {
        // makedev(5, 1) and makedev(0x123, 0x45678) by glibc's macro.
        assert_eq!(device_number(5, 1), 0x501);
        assert_eq!(device_number(0x123, 0x45678), 0x4561_2378);
    }

    #[test]
    fn a_directory_entry_is_little_endian_and_unpadded() {
        assert_eq!(
            directory_entry_head(0x0102, 3, 0x18, 4),
            [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x18, 0, 4]
        );
    }
}
