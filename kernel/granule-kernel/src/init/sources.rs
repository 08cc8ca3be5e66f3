//! Where the bytes of files come from that the kernel moves.

use crate::kexec::crash::vmcore;
use crate::module::disk as ram_disk;
use crate::task::sources::Sources;
use crate::virtio_disk;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::env::Transfer;
use granule_linux_abi::files::source::Source;

/// The functions by which user space moves bytes.
pub(super) const SOURCES: Sources = Sources { bytes, transfer };

fn bytes(source: Source) -> Option<u64> {
    match source {
        Source::Disk => virtio_disk::bytes(),
        Source::Vmcore => vmcore::bytes(),
        // The first comes and goes with a module, and the second has no bytes.
        Source::RamDisk | Source::Sysrq => None,
    }
}

fn transfer(source: Source, at: u64, bytes: Transfer<'_>) -> Result<(), Errno> {
    match (source, bytes) {
        (Source::RamDisk, bytes) => ram_disk::transfer(at, bytes),
        (Source::Disk, bytes) => virtio_disk::transfer(at, bytes),
        (Source::Vmcore, Transfer::Read(into)) => {
            let is_whole = vmcore::read(at, into);
            is_whole.then_some(()).ok_or(Errno::EIO)
        }
        // A core is opened for reading only, and user space answers requests itself.
        (Source::Vmcore | Source::Sysrq, _) => Err(Errno::EINVAL),
    }
}
