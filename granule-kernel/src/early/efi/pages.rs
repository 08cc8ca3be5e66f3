//! Memory of the firmware that the stub allocates, and gives back unless the boot goes on.

use super::firmware::{Failure, Firmware};
use granule_boot::tree::Range;
use uefi_raw::Status;
use uefi_raw::table::boot::PAGE_SIZE;

/// Pages of the type `EfiLoaderData`, of which `bytes` bytes are used.
pub(super) struct Pages<'f> {
    firmware: &'f Firmware,
    start: u64,
    bytes: usize,
}

impl<'f> Pages<'f> {
    /// Pages for `bytes` bytes, anywhere.
    pub(super) fn new(firmware: &'f Firmware, bytes: usize) -> Result<Self, Failure> {
        match firmware.allocate(None, count(bytes)) {
            Ok(start) => Ok(Self {
                firmware,
                start,
                bytes,
            }),
            Err(status) => Err(out_of_memory(status)),
        }
    }

    /// The pages that `start..start + bytes` lies in. `None` if they are not free.
    pub(super) fn at(firmware: &'f Firmware, start: u64, bytes: u64) -> Option<Self> {
        let inside = start % PAGE_SIZE as u64;
        let bytes = usize::try_from(bytes.checked_add(inside)?).ok()?;
        let start = start.wrapping_sub(inside);
        let start = firmware.allocate(Some(start), count(bytes)).ok()?;
        Some(Self {
            firmware,
            start,
            bytes,
        })
    }

    /// The used bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are this value's alone, and mapped flat. Firmware's memory always has a value.
        unsafe { core::slice::from_raw_parts(self.start as *const u8, self.bytes) }
    }

    /// The used bytes, to write them.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { core::slice::from_raw_parts_mut(self.start as *mut u8, self.bytes) }
    }

    /// The first bytes.
    pub(super) fn first(&self, bytes: usize) -> &[u8] {
        self.bytes().get(..bytes).unwrap_or_default()
    }

    /// The memory of the used bytes.
    pub(super) const fn range(&self) -> Range {
        Range {
            start: self.start,
            bytes: self.bytes as u64,
        }
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        // SAFETY: the pages are of `allocate`, and no reference to their bytes outlives this value.
        unsafe { self.firmware.free(self.start, count(self.bytes)) };
    }
}

/// Pages for so many bytes; one for none, because firmware refuses to allocate no page.
fn count(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_SIZE).max(1)
}

const fn out_of_memory(status: Status) -> Failure {
    Failure {
        what: Some("the firmware has no memory left for the kernel: more RAM is needed"),
        status,
    }
}
