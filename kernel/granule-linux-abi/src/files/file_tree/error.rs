//! Errors of archives.

use super::super::cpio::CpioError;
use thiserror::Error;

/// Why a tree cannot be made.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum ArchiveError {
    #[error("{0}")]
    Cpio(#[from] CpioError),
    #[error(
        "initramfs: the entry whose content is at byte {0:#x} has a name with `..` or a part of more than 255 bytes in it, or \
         what one entry has as a directory another has as something else"
    )]
    Name(usize),
    #[error("initramfs: it has 4 GiB or more; make it smaller")]
    TooLarge,
    /// The storage is smaller than [`nodes_needed`](super::nodes_needed).
    #[error("initramfs: there is no memory for its names")]
    NoRoom,
}
