//! The last steps: the end of the boot services, the final tree, and what is read with the MMU off.

#![allow(unsafe_code, reason = "the jump to the copied image")]

use super::firmware::{Failure, Firmware};
use super::memory::MemoryMap;
use super::pages::Pages;
use super::reservations::Reservations;
use crate::arch::image;
use granule::hw::cache;
use granule_boot::tree::{Range, Tree};
use granule_kcore::efi::description::{self, Description};
use uefi_raw::Status;
use uefi_raw::table::boot::MemoryType;

unsafe extern "C" {
    fn efi_leave(tree: u64, image: u64) -> !;
    static efi_leave_end: u8;
}

/// The number of times that a memory map may have changed until its key was used. Firmware that
/// needs more has timers that allocate for ever.
const TRIES: u32 = 8;

/// All that the kernel gets.
pub(super) struct Leaving<'f> {
    pub(super) firmware: &'f Firmware,
    /// The firmware's tree.
    pub(super) old: Tree<'f>,
    pub(super) description: Description<'f>,
    pub(super) copy: Pages<'f>,
    pub(super) reservations: Option<Reservations<'f>>,
    pub(super) map: MemoryMap<'f>,
    /// The new tree.
    pub(super) tree: Pages<'f>,
}

impl Leaving<'_> {
    /// Ends the boot services and enters the copy. Returns why it could not.
    pub(super) fn leave(mut self) -> Failure {
        // Once to see that it can be written, and once with the final map: its length does not change.
        if let Err(failure) = self.describe() {
            return failure;
        }
        if let Err(failure) = self.exit() {
            // After a call of ExitBootServices nothing but memory may be given back, so the list stays installed.
            core::mem::forget(self.reservations.take());
            return failure;
        }
        self.map.make_flat();
        self.description.map = self.map.facts();
        // An error cannot be printed here. The kernel would find the tree damaged, and report that.
        let _ = self.describe();
        self.clean();
        // SAFETY: the boot services have ended, and what the copy reads with the MMU off is clean. The tree is a
        // tree, and the copy is the image at a place that suits it.
        unsafe { efi_leave(self.tree.range().start, self.copy.range().start) }
    }

    /// Ends the boot services with the final memory map. A map that has changed since it was read is read
    /// again, as the specification demands.
    fn exit(&mut self) -> Result<(), Failure> {
        let mut what = Some("the firmware gives no memory map");
        let mut status = Status::INVALID_PARAMETER;
        for _ in 0..TRIES {
            if let Err(status) = self.map.read(self.firmware) {
                return Err(Failure { what, status });
            }
            status = self.firmware.exit(self.map.key());
            if status == Status::SUCCESS {
                return Ok(());
            }
            what = None;
            if status != Status::INVALID_PARAMETER {
                break;
            }
        }
        Err(Failure { what, status })
    }

    fn describe(&mut self) -> Result<(), Failure> {
        let into = self.tree.bytes_mut();
        let written = description::write(&self.old, &self.description, into);
        written
            .map(drop)
            .map_err(|error| Failure::unreadable(error.text()))
    }

    /// Cleans to the point of coherency: the kernel reads past the caches until its tables are there.
    fn clean(&self) {
        let clean = |start: u64, bytes: u64| cache::clean(start..start.saturating_add(bytes));
        let code = efi_leave as *const () as u64;
        clean(code, (&raw const efi_leave_end as u64).wrapping_sub(code));
        clean(self.copy.range().start, image::loaded().len() as u64);
        let initrd = self
            .description
            .initrd
            .or_else(|| self.old.initial_ramdisk());
        let list = self.reservations.as_ref().map(Reservations::range);
        let ranges = [
            Some(self.tree.range()),
            Some(self.map.range()),
            initrd,
            list,
        ];
        for Range { start, bytes } in ranges.into_iter().flatten() {
            clean(start, bytes);
        }
        for (start, bytes) in self.firmware.tables() {
            clean(start, bytes);
        }
        // The tables of ACPI.
        let acpi = [MemoryType::ACPI_RECLAIM, MemoryType::ACPI_NON_VOLATILE];
        for region in self.map.regions() {
            if let Some(range) = region.range()
                && acpi.contains(&MemoryType(region.kind))
                && region.is_ordinary()
            {
                clean(range.start, range.bytes);
            }
        }
    }
}
