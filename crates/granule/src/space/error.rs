//! Errors of operations on address spaces.
//!
//! Each error names the address and the remedy. The kernel chooses its answer to a program (ENOMEM,
//! EFAULT, a signal).

use super::rights::Access;
use crate::arch::{PageSize, VirtualAddress};
use crate::table::TableError;
use core::fmt;

/// Why an operation on a [`Space`](super::Space) was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpaceError {
    /// The range is not whole pages of the lower half, or no pages are left for tables.
    Tables(TableError),
    /// No VMA covers an address.
    NotMapped {
        /// The first such address.
        address: VirtualAddress,
    },
    /// A VMA covers an address already.
    Occupied {
        /// The first such address.
        address: VirtualAddress,
    },
    /// The VMA does not allow the access.
    Denied {
        /// The address.
        address: VirtualAddress,
        /// The access.
        access: Access,
    },
    /// The space would have more VMAs than it may.
    TooManyVmas {
        /// The most that it may have, [`most_vmas`](super::Settings::most_vmas).
        most: usize,
    },
    /// Nodes for VMAs are missing. What needs them has changed nothing, and succeeds once they are
    /// [lent](super::Space::lend_vma_nodes).
    OutOfVmaNodes {
        /// The number of nodes that are missing.
        missing: usize,
    },
    /// No frame is left for a page.
    OutOfFrames {
        /// The page.
        address: VirtualAddress,
    },
    /// The space that is to become a copy has VMAs already, or CPUs walk it.
    NotEmpty,
    /// The frames are not of the space's page size.
    WrongFrames {
        /// Their page size.
        given: PageSize,
        /// The page size of the space.
        page: PageSize,
    },
}

impl From<TableError> for SpaceError {
    fn from(error: TableError) -> Self {
        Self::Tables(error)
    }
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tables(error) => error.fmt(f),
            Self::NotMapped { address } => write!(f, "there is no VMA at {address}"),
            Self::Occupied { address } => write!(f, "there is a VMA at {address} already"),
            Self::Denied { address, access } => {
                write!(f, "the VMA at {address} does not allow to {access}")
            }
            Self::TooManyVmas { most } => write!(
                f,
                "a space may have {most} VMAs and no more: allow more by `most_vmas`, or use larger ranges"
            ),
            Self::OutOfVmaNodes { missing } => write!(
                f,
                "{missing} nodes for VMAs are missing: lend them and try again"
            ),
            Self::OutOfFrames { address } => {
                write!(f, "out of memory for the page at {address}")
            }
            Self::WrongFrames { given, page } => write!(
                f,
                "the frames are for {given} pages: a space with {page} pages takes frames of that size"
            ),
            Self::NotEmpty => write!(
                f,
                "only a space without VMAs that no CPU walks yet can become a copy"
            ),
        }
    }
}

impl core::error::Error for SpaceError {}
