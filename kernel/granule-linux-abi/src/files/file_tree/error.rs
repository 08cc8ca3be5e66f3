//! Errors of archives.

use super::super::cpio::CpioError;
use core::fmt;

/// Why a tree cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    /// The archive cannot be read.
    Cpio(CpioError),
    /// The name of the entry with content at this offset goes through a non-directory, has `..` or a part
    /// of more than 255 bytes, or turns a directory into something else.
    Name(usize),
    /// The archive has 4 GiB or more.
    TooLarge,
    /// The storage is smaller than [`nodes_needed`](super::nodes_needed).
    NoRoom,
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpio(error) => error.fmt(f),
            Self::Name(at) => write!(
                f,
                "initramfs: the entry whose content is at byte {at:#x} has a name with `..` or a \
                 part of more than 255 bytes in it, or what one entry has as a directory another \
                 has as something else"
            ),
            Self::TooLarge => f.write_str("initramfs: it has 4 GiB or more; make it smaller"),
            Self::NoRoom => f.write_str("initramfs: there is no memory for its names"),
        }
    }
}

impl From<CpioError> for ArchiveError {
    fn from(error: CpioError) -> Self {
        Self::Cpio(error)
    }
}
