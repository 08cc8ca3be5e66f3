//! One open file: its kind, its flags and its offset.

use super::file_tree::{NodeId, Status};
use super::source::Source;
use crate::abi::Errno;
use crate::abi::file::{O_ACCMODE, O_RDWR, O_WRONLY, SEEK_CUR, SEEK_END, SEEK_SET};

/// A device that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A read is at the end of the file; writes are discarded.
    Null,
    /// A read gives zeros; writes are discarded.
    Zero,
    /// A read is at the end of the file; writes go to the console.
    Console,
}

impl Device {
    /// The device with these numbers.
    pub(super) const fn of(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (1, 3) => Some(Self::Null),
            (1, 5) => Some(Self::Zero),
            // The devices console and ttyAMA0.
            (5, 1) | (204, 64) => Some(Self::Console),
            _ => None,
        }
    }
}

/// The kind of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A file of the tree.
    File(NodeId),
    /// A directory of the tree.
    Directory(NodeId),
    /// A device, and its node.
    Device(Device, NodeId),
    /// Bytes that the kernel moves, and their node.
    Moved(Source, NodeId),
    /// A text from the kernel.
    Status(Status, NodeId),
    /// The reading end of a pipe.
    PipeOut(u16),
    /// The writing end of a pipe.
    PipeIn(u16),
}

/// One open file.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    /// The kind of the open file.
    pub what: What,
    /// Descriptors of any process that refer to this open file.
    pub(super) owners: u32,
    /// The O_* flags.
    pub flags: u32,
    /// The offset in bytes; for a directory, a position of [`listing`](super::about).
    pub offset: u64,
}

impl OpenFile {
    pub(super) const fn new(what: What, flags: u32) -> Self {
        Self {
            what,
            owners: 1,
            flags,
            offset: 0,
        }
    }

    /// Whether it was opened for reading.
    pub const fn may_read(&self) -> bool {
        self.flags & O_ACCMODE != O_WRONLY
    }

    /// Whether it was opened for writing.
    pub const fn may_write(&self) -> bool {
        matches!(self.flags & O_ACCMODE, O_WRONLY | O_RDWR)
    }

    /// Whether `lseek` works on the file.
    pub const fn seeks(&self) -> bool {
        match self.what {
            What::File(_) | What::Directory(_) | What::Moved(..) | What::Status(..) => true,
            What::Device(device, _) => !matches!(device, Device::Console),
            What::PipeOut(_) | What::PipeIn(_) => false,
        }
    }

    /// `lseek` in a file of `size` bytes. Returns the new offset.
    pub fn seek(&mut self, by: i64, from: u32, size: u64) -> Result<u64, Errno> {
        if !self.seeks() {
            return Err(Errno::ESPIPE);
        }
        let base = match from {
            SEEK_SET => 0,
            SEEK_CUR => self.offset,
            SEEK_END => size,
            _ => return Err(Errno::EINVAL),
        };
        // The offset of a seekable device has no meaning.
        if let What::Device(..) = self.what {
            return Ok(0);
        }
        let offset = i64::try_from(base)
            .ok()
            .and_then(|base| base.checked_add(by));
        let offset = offset.ok_or(Errno::EOVERFLOW)?;
        self.offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        Ok(self.offset)
    }
}
