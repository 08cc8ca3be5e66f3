//! Why a change of the linear map was refused: one error for all that changes it.

use core::fmt;
use granule::arch::VirtualAddress;
use granule::table::TableError;

/// Why a change of the linear map was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearError {
    /// The tables do not change at run time yet.
    TooEarly,
    /// A range is not one of whole pages of the linear map.
    Outside { start: u64, bytes: u64 },
    /// The kernel's image is among the range.
    Image { start: VirtualAddress, bytes: u64 },
    /// Guard pages are among the range.
    Guarded { start: VirtualAddress, bytes: u64 },
    /// A page would be writable and executable.
    WritableExecutable { address: VirtualAddress },
    /// The tables refuse.
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
                "{bytes:#x} bytes at {start:#x} are not whole pages of the linear map; give the linear-map address of a page and a number of pages"
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
                "{address} would be writable and executable: make it read-only (set_memory_ro) before executable, not executable (set_memory_nx) before writable"
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
