//! The error of every function that changes the linear map.

use granule::arch::VirtualAddress;
use granule::table::TableError;
use thiserror::Error;

/// Why a change of the linear map was refused. The map is unchanged.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum LinearError {
    #[error("the linear map does not change before the page allocator has taken over")]
    TooEarly,
    #[error(
        "{bytes:#x} bytes at {start:#x} are not whole pages of the linear map; give the \
         linear-map address of a page and a number of pages"
    )]
    Outside { start: u64, bytes: u64 },
    #[error(
        "{bytes:#x} bytes at {start} include the alias of the kernel's image, which never changes"
    )]
    Image { start: VirtualAddress, bytes: u64 },
    #[error(
        "{bytes:#x} bytes at {start} include guard pages, which change through their pool only"
    )]
    Guarded { start: VirtualAddress, bytes: u64 },
    #[error(
        "{address} would be writable and executable: make it read-only (set_memory_ro) before \
         executable, not executable (set_memory_nx) before writable"
    )]
    WritableExecutable { address: VirtualAddress },
    #[error("{0}")]
    Table(#[from] TableError),
}
