//! Where the initramfs comes from, in this order: the boot loader's offer (`LoadFile2`), `/chosen` of the
//! firmware's tree, the files that `initrd=` names.

#![allow(unsafe_code, reason = "the boot loader's initramfs in memory")]

use super::files::Volume;
use super::firmware::{Failure, Firmware, OrFailure};
use super::memory::MemoryMap;
use super::pages::Pages;
use granule_boot::efi::Descriptor;
use granule_boot::tree::{Range, Tree};
use granule_kcore::efi::{initrd, place};
use uefi_raw::{Handle, Status};

/// Loads the initramfs. `None` if there is none, or it is where the tree has it.
pub(super) fn load<'f>(
    firmware: &'f Firmware,
    device: Handle,
    tree: &Tree<'_>,
    line: &[u8],
) -> Result<Option<Pages<'f>>, Failure> {
    if let Some(offered) = firmware.offered(&initrd::DEVICE_PATH) {
        let bytes = offered.bytes()?;
        if bytes == 0 {
            return Ok(None);
        }
        let mut pages = Pages::new(firmware, bytes)?;
        offered.load(pages.bytes_mut())?;
        return Ok(Some(pages));
    }
    if let Some(range) = tree.initial_ramdisk() {
        return beside_kept(firmware, range);
    }
    if initrd::files(line).next().is_none() {
        return Ok(None);
    }
    from_files(firmware, device, line).map(Some)
}

/// A copy of the tree's initramfs, if it shares a page with memory that firmware keeps: the kernel could not map
/// that page.
fn beside_kept(firmware: &Firmware, range: Range) -> Result<Option<Pages<'_>>, Failure> {
    let map = MemoryMap::new(firmware)?;
    // One that lies in such memory itself is for the kernel to refuse.
    let is_in = |region: &Descriptor| region.is_kept() && region.part_of(range).is_some();
    if !place::shares_a_page(map.regions(), range) || map.regions().any(|one| is_in(&one)) {
        return Ok(None);
    }
    let mut pages = Pages::new(firmware, range.bytes as usize)?;
    // SAFETY: the tree gives this place of the initramfs, the firmware's map is flat, and the pages
    // are others.
    let from =
        unsafe { core::slice::from_raw_parts(range.start as *const u8, range.bytes as usize) };
    for (to, from) in pages.bytes_mut().iter_mut().zip(from) {
        *to = *from;
    }
    Ok(Some(pages))
}

/// One file behind the other, each at a multiple of four bytes, as the parts of an archive are.
fn from_files<'f>(
    firmware: &'f Firmware,
    device: Handle,
    line: &[u8],
) -> Result<Pages<'f>, Failure> {
    let volume = Volume::open(firmware, device)?;
    let mut bytes = 0_usize;
    for name in initrd::files(line) {
        let file = volume.file(&path(name)?)?;
        bytes = bytes
            .saturating_add(file.bytes()?)
            .checked_next_multiple_of(4)
            .or_failure(Status::LOAD_ERROR, "the files of initrd= are too large")?;
    }
    let mut pages = Pages::new(firmware, bytes)?;
    let mut room = pages.bytes_mut();
    for name in initrd::files(line) {
        let file = volume.file(&path(name)?)?;
        let bytes = file.bytes()?;
        let (to, rest) = room.split_at_mut_checked(bytes).or_failure(
            Status::LOAD_ERROR,
            "a file of initrd= changed while it was read",
        )?;
        file.read(to)?;
        let padding = bytes.wrapping_neg() % 4;
        let (zeros, rest) = rest.split_at_mut_checked(padding).unwrap_or_default();
        zeros.fill(0);
        room = rest;
    }
    Ok(pages)
}

fn path(name: &[u8]) -> Result<[u16; initrd::MOST_UNITS], Failure> {
    initrd::path(name).or_failure(
        Status::INVALID_PARAMETER,
        "initrd= names no file: expected a path of at most 259 letters in UTF-8",
    )
}
