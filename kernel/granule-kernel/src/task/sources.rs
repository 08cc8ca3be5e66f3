//! Files whose bytes the kernel moves. The implementation stands above user space, so user space calls it through
//! these functions.

use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Transfer;
use granule_linux_abi::files::source::Source;

/// The sources of bytes.
pub(crate) struct Sources {
    /// The bytes of a source that is there as long as programs run, if it is.
    pub(crate) bytes: fn(Source) -> Option<u64>,
    /// Moves bytes from or to a source, from this byte of it on.
    pub(crate) transfer: fn(Source, u64, Transfer<'_>) -> Result<(), Errno>,
}

/// The implementation, set at boot before the first program.
pub(crate) static SOURCES: spin::Once<Sources> = spin::Once::new();

pub(super) fn bytes(source: Source) -> Option<u64> {
    (SOURCES.get()?.bytes)(source)
}

pub(super) fn transfer(source: Source, at: u64, bytes: Transfer<'_>) -> Result<(), Errno> {
    (SOURCES.get().ok_or(Errno::ENXIO)?.transfer)(source, at, bytes)
}
