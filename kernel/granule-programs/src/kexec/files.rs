//! Opening and reading files, and what an error number is called.

#![allow(unsafe_code, reason = "memory that was just mapped")]

use core::fmt;

use granule_programs::calls::{self, CLOSE, HERE, LSEEK, MOUNT, OPENAT, READ, WRITE, call};

/// Bytes of a path, its NUL included, as the kernel takes them.
const PATH_BYTES: usize = 4096;

/// The error that a call returned, by its number.
#[derive(Clone, Copy)]
pub(crate) struct Errno(pub(crate) i64);

const ENOENT: i64 = 2;
const ENAMETOOLONG: i64 = 36;

/// Flags of `openat`. What is written is with the device when the call returns.
const WRITE_ONLY: u64 = 1;
const DATA_SYNC: u64 = 0o10000;

/// File systems of Linux that an initramfs comes without: the type, and where they are mounted. Here both are there.
const MOUNTS: [(&core::ffi::CStr, &core::ffi::CStr); 2] =
    [(c"proc", c"/proc"), (c"devtmpfs", c"/dev")];

/// The errors that the calls of this program can end with.
const NAMES: [(i64, &str); 26] = [
    (1, "EPERM: not permitted"),
    (2, "ENOENT: there is no such file"),
    (4, "EINTR: interrupted"),
    (5, "EIO: the device fails"),
    (6, "ENXIO: there is no such device"),
    (7, "E2BIG: it is too long"),
    (8, "ENOEXEC: it is not a kernel that can be entered"),
    (9, "EBADF: it cannot be read"),
    (12, "ENOMEM: there is no memory for it"),
    (13, "EACCES: not permitted"),
    (14, "EFAULT: a bad address"),
    (16, "EBUSY: another is at it, or something still runs"),
    (19, "ENODEV: there is no such device"),
    (20, "ENOTDIR: its path leads through a file"),
    (21, "EISDIR: it is a directory"),
    (22, "EINVAL: it is not as it must be"),
    (23, "ENFILE: too many files are open"),
    (24, "EMFILE: too many files are open"),
    (27, "EFBIG: it is too big"),
    (28, "ENOSPC: there is no room for it"),
    (30, "EROFS: it can only be read"),
    (36, "ENAMETOOLONG: its name is too long"),
    (38, "ENOSYS: this kernel has no such call"),
    (40, "ELOOP: its path has too many links"),
    (95, "EOPNOTSUPP: this kernel cannot do that"),
    (99, "EADDRNOTAVAIL: where it is to lie is not free RAM"),
];

impl fmt::Display for Errno {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => to.write_str(name),
            None => write!(to, "error {}", self.0),
        }
    }
}

/// A call's result: what is not negative, or the error.
pub(crate) fn done(result: i64) -> Result<u64, Errno> {
    u64::try_from(result).map_err(|_| Errno(result.saturating_neg()))
}

/// An open file; closed with its owner.
pub(crate) struct File {
    pub(crate) descriptor: u64,
}

impl File {
    pub(crate) fn open(path: &[u8]) -> Result<Self, Errno> {
        Self::open_with(path, 0)
    }

    pub(crate) fn open_to_write(path: &[u8]) -> Result<Self, Errno> {
        Self::open_with(path, WRITE_ONLY | DATA_SYNC)
    }

    /// Opens a file. The first process of Linux mounts the file system that it is to be in first.
    fn open_with(path: &[u8], flags: u64) -> Result<Self, Errno> {
        let opened = Self::open_now(path, flags);
        let in_it = |(_, at): &&(_, &core::ffi::CStr)| path.starts_with(at.to_bytes());
        if let Err(Errno(ENOENT)) = opened
            && let Some((kind, at)) = MOUNTS.iter().find(in_it)
            && call(calls::GETPID, []) == 1
        {
            let (kind, at) = (kind.as_ptr() as u64, at.as_ptr() as u64);
            done(call(MOUNT, [kind, at, kind])).or(Err(Errno(ENOENT)))?;
            return Self::open_now(path, flags);
        }
        opened
    }

    fn open_now(path: &[u8], flags: u64) -> Result<Self, Errno> {
        let mut name = [0u8; PATH_BYTES];
        // Its last byte stays, as the NUL.
        let Some(room) = name[..PATH_BYTES - 1].get_mut(..path.len()) else {
            return Err(Errno(ENAMETOOLONG));
        };
        room.copy_from_slice(path);
        let descriptor = call(OPENAT, [HERE, name.as_ptr() as u64, flags]);
        done(descriptor).map(|descriptor| Self { descriptor })
    }

    /// Reads on; 0 at the end.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        let arguments = [
            self.descriptor,
            into.as_mut_ptr() as u64,
            into.len() as u64,
            0,
            0,
            0,
        ];
        done(call(READ, arguments)).map(|bytes| bytes as usize)
    }

    /// Writes all bytes from this byte of the file on.
    pub(crate) fn write_at(&mut self, at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        done(call(LSEEK, [self.descriptor, at]))?;
        while !bytes.is_empty() {
            let arguments = [self.descriptor, bytes.as_ptr() as u64, bytes.len() as u64];
            let written = done(call(WRITE, arguments))? as usize;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    pub(crate) fn read_all<'a>(&mut self, into: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let mut length = 0;
        while length < into.len() {
            match self.read(&mut into[length..])? {
                0 => break,
                bytes => length += bytes,
            }
        }
        Ok(&into[..length])
    }
}

impl Drop for File {
    fn drop(&mut self) {
        call(CLOSE, [self.descriptor]);
    }
}

/// Anonymous memory, zeroed, as long as the program runs.
pub(crate) fn memory(bytes: usize) -> Result<&'static mut [u8], Errno> {
    let address = calls::map(bytes as u64, calls::READ_WRITE)
        .map_err(|error| Errno(error.saturating_neg()))?;
    // SAFETY: the kernel has just mapped so many bytes there, readable, writable and zeroed, and
    // nothing else has a pointer to them; they are never unmapped.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, bytes) })
}
