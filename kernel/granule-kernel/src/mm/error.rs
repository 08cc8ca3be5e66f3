//! The error of every function that changes the linear map.

use core::fmt;
use granule::arch::VirtualAddress;
use granule::table::TableError;

/// Why a change of the linear map was refused. The map is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearError {
    /// The page allocator has not taken over yet, so the tables cannot change.
    TooEarly,
    /// The range is not whole pages of the linear map.
    Outside { start: u64, bytes: u64 },
    /// The range contains a part of the kernel's image.
    Image { start: VirtualAddress, bytes: u64 },
    /// The range contains guard pages.
    Guarded { start: VirtualAddress, bytes: u64 },
    /// The page would become writable and executable.
    WritableExecutable { address: VirtualAddress },
    /// The page-table library refused the operation.
    Table(TableError),
}

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooEarly => write!(
                f,
                "the linear map does not change before the page allocator has taken over"
            ),
            Self::Outside { start, bytes } => write!(
                f,
                "{bytes:#x} bytes at {start:#x} are not whole pages of the linear map; give the \
                 linear-map address of a page and a number of pages"
            ),
            Self::Image { start, bytes } => write!(
                f,
                "{bytes:#x} bytes at {start} include the alias of the kernel's image, which never changes"
            ),
            Self::Guarded { start, bytes } => write!(
                f,
                "{bytes:#x} bytes at {start} include guard pages, which change through their pool only"
            ),
            Self::WritableExecutable { address } => write!(
                f,
                "{address} would be writable and executable: make it read-only (set_memory_ro) \
                 before executable, not executable (set_memory_nx) before writable"
            ),
            Self::Table(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for LinearError {}

impl From<TableError> for LinearError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}
