//! Files whose bytes the kernel moves when a program reads or writes: disks, the memory of a crashed kernel, and
//! requests to the kernel. [`Env::transfer`](crate::env::Env::transfer) moves them.

use crate::abi::Errno;
use crate::abi::file::{O_ACCMODE, O_WRONLY, S_IFBLK, S_IFREG};

/// The owner of the bytes of such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The disk of a module: block device 1, 0, where the archive has one.
    RamDisk,
    /// The disk of the machine: block device 254, 0, as `/dev/vda`.
    Disk,
    /// The memory of the kernel that crashed, as an ELF core: `/proc/vmcore`.
    Vmcore,
    /// Requests to the kernel by their first byte: `/proc/sysrq-trigger`.
    Sysrq,
}

impl Source {
    /// The sources whose names are added once there is one.
    pub const LATER: [Self; 2] = [Self::Disk, Self::Vmcore];

    /// The source of a block device.
    pub(super) fn of_block_device(numbers: (u32, u32)) -> Option<Self> {
        let mut all = [Self::RamDisk, Self::Disk].into_iter();
        all.find(|source| source.numbers() == Some(numbers))
    }

    /// The numbers of the block device, if it is one.
    pub(super) const fn numbers(self) -> Option<(u32, u32)> {
        match self {
            Self::RamDisk => Some((1, 0)),
            Self::Disk => Some((254, 0)),
            Self::Vmcore | Self::Sysrq => None,
        }
    }

    /// The folder, the name and the mode of the file, if one is added.
    pub(super) const fn place(self) -> Option<(&'static [u8], &'static [u8], u32)> {
        match self {
            Self::RamDisk => None,
            Self::Disk => Some((b"dev", b"vda", S_IFBLK | 0o660)),
            Self::Vmcore => Some((b"proc", b"vmcore", S_IFREG | 0o400)),
            Self::Sysrq => Some((b"proc", b"sysrq-trigger", S_IFREG | 0o200)),
        }
    }

    /// Whether it can be opened with these flags.
    pub(super) const fn may_open(self, flags: u32) -> Result<(), Errno> {
        let access = flags & O_ACCMODE;
        match self {
            Self::Vmcore if access != 0 => Err(Errno::EACCES),
            Self::Sysrq if access != O_WRONLY => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }
}

/// The bytes of each source that there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    ram_disk: Option<u64>,
    disk: Option<u64>,
    vmcore: Option<u64>,
}

impl Sizes {
    pub(super) const fn get(&self, source: Source) -> Option<u64> {
        match source {
            Source::RamDisk => self.ram_disk,
            Source::Disk => self.disk,
            Source::Vmcore => self.vmcore,
            Source::Sysrq => Some(0),
        }
    }

    pub(super) const fn set(&mut self, source: Source, bytes: Option<u64>) {
        match source {
            Source::RamDisk => self.ram_disk = bytes,
            Source::Disk => self.disk = bytes,
            Source::Vmcore => self.vmcore = bytes,
            Source::Sysrq => {}
        }
    }
}
