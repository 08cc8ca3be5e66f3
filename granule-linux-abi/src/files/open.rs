//! One open file: what it is, how it was opened, and where in it the next read begins.

use super::tree::{NodeId, Status};
use crate::abi::Errno;
use crate::abi::file::{O_ACCMODE, O_RDWR, O_WRONLY, SEEK_CUR, SEEK_END, SEEK_SET};

/// A device that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Reads the end of the file, swallows what is written.
    Null,
    /// Reads zeros, swallows what is written.
    Zero,
    /// A program writes to it, and reads the end of the file.
    Console,
}

impl Device {
    /// The device of these numbers.
    pub(super) const fn of(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (1, 3) => Some(Self::Null),
            (1, 5) => Some(Self::Zero),
            // console, ttyAMA0.
            (5, 1) | (204, 64) => Some(Self::Console),
            _ => None,
        }
    }
}

/// What is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A file of the tree.
    File(NodeId),
    /// A directory of the tree.
    Directory(NodeId),
    /// A device, and its node.
    Device(Device, NodeId),
    /// What the kernel says of itself.
    Status(Status, NodeId),
    /// What a pipe is read from.
    PipeOut(u16),
    /// What a pipe is written to.
    PipeIn(u16),
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    /// The kind of open file.
    pub what: What,
    /// Descriptors that are it, of whatever process.
    pub(super) owners: u32,
    /// O_*.
    pub flags: u32,
    /// In bytes; of a directory, what [`listing`](super::about) makes of it.
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

    /// Whether it has an offset that `lseek` can use.
    pub const fn seeks(&self) -> bool {
        match self.what {
            What::File(_) | What::Directory(_) | What::Status(..) => true,
            What::Device(device, _) => !matches!(device, Device::Console),
            What::PipeOut(_) | What::PipeIn(_) => false,
        }
    }

    /// `lseek` in a file of `size` bytes: the new offset.
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
        // Devices that seek have no offset worth the name.
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
