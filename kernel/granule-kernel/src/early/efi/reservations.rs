//! The list of memory that later kernels must keep: the stub installs an empty one, because only
//! firmware's boot services can, and a Linux that is started after this kernel adds to it.

use super::firmware::{Failure, Firmware};
use super::pages::Pages;
use granule_boot::tree::Range;
use uefi_raw::{Guid, Status, guid};

/// Linux's list (`LINUX_EFI_MEMRESERVE_TABLE_GUID`).
const LIST: Guid = guid!("888eb0c6-8ede-4ff5-a8f0-9aee5cb977c2");
/// A part of the list without room: how much room there is, how much of it is used, and the next part.
const EMPTY: [u8; 16] = [0; 16];

/// An installed list. It is taken out again unless the boot goes on, or ended where that may not be done
/// (`Leaving::leave`).
pub(super) struct Reservations<'f> {
    firmware: &'f Firmware,
    pages: Pages<'f>,
}

impl<'f> Reservations<'f> {
    /// Installs an empty list. `None` if there is a list, or firmware refuses: no kernel needs it to boot.
    pub(super) fn install(firmware: &'f Firmware) -> Result<Option<Self>, Failure> {
        if firmware.configured(&LIST).is_some() {
            return Ok(None);
        }
        let mut pages = Pages::new(firmware, EMPTY.len())?;
        let bytes = pages.bytes_mut();
        for (to, from) in bytes.iter_mut().zip(EMPTY) {
            *to = from;
        }
        let installed = firmware.configure(&LIST, bytes.as_ptr()) == Status::SUCCESS;
        Ok(installed.then_some(Self { firmware, pages }))
    }

    pub(super) const fn range(&self) -> Range {
        self.pages.range()
    }
}

impl Drop for Reservations<'_> {
    fn drop(&mut self) {
        // Before its memory is given back. An error would mean that it is no longer there.
        let _ = self.firmware.configure(&LIST, core::ptr::null());
    }
}
