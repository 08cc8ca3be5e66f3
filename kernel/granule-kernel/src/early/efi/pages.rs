//! Memory of the firmware that the stub allocates, and gives back unless the boot goes on. It begins and ends
//! where pages of every size do, so that no kernel loses a part of it to firmware's memory in the same page.

#![allow(unsafe_code, reason = "pages that firmware allocated")]

use super::firmware::{Failure, Firmware};
use granule_boot::tree::Range;
use granule_kcore::efi::place::{UNIT, to_allocate};
use uefi_raw::Status;
use uefi_raw::table::boot::PAGE_SIZE;

/// Pages of the type `EfiLoaderData`, of which `bytes` bytes are used.
pub(super) struct Pages<'f> {
    firmware: &'f Firmware,
    /// The allocation: the first address, and the number of pages.
    allocated: (u64, usize),
    start: u64,
    bytes: usize,
}

impl<'f> Pages<'f> {
    /// Pages for `bytes` bytes, anywhere.
    pub(super) fn new(firmware: &'f Firmware, bytes: usize) -> Result<Self, Failure> {
        let most = to_allocate(bytes as u64, PAGE_SIZE as u64);
        let most = most.and_then(|most| usize::try_from(most).ok());
        let pages = most.map(count).ok_or(Status::OUT_OF_RESOURCES);
        let pages = pages.map_err(out_of_memory)?;
        let first = firmware.allocate(None, pages).map_err(out_of_memory)?;
        Ok(Self {
            firmware,
            allocated: (first, pages),
            // The end of what was allocated is a number, so this is one too.
            start: first.checked_next_multiple_of(UNIT).unwrap_or(first),
            bytes,
        })
    }

    /// The pages that `start..start + bytes` lies in. `None` if they are not free.
    pub(super) fn at(firmware: &'f Firmware, start: u64, bytes: u64) -> Option<Self> {
        let inside = start % PAGE_SIZE as u64;
        let bytes = usize::try_from(bytes.checked_add(inside)?).ok()?;
        let start = start.wrapping_sub(inside);
        let start = firmware.allocate(Some(start), count(bytes)).ok()?;
        Some(Self {
            firmware,
            allocated: (start, count(bytes)),
            start,
            bytes,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are this value's alone, and mapped flat. Firmware's memory always has a value.
        unsafe { core::slice::from_raw_parts(self.start as *const u8, self.bytes) }
    }

    /// The used bytes, to write them.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { core::slice::from_raw_parts_mut(self.start as *mut u8, self.bytes) }
    }

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
        unsafe { self.firmware.free(self.allocated.0, self.allocated.1) };
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
