//! Where the initramfs comes from, in this order: the boot loader's offer (`LoadFile2`), `/chosen` of the
//! firmware's tree, the files that `initrd=` names.

use super::files::Volume;
use super::firmware::{Failure, Firmware, OrFailure};
use super::pages::Pages;
use granule_boot::tree::{Range, Tree};
use granule_kcore::efi::initrd;
use uefi_raw::{Handle, Status};

/// The initramfs that the tree names.
pub(super) fn in_tree(tree: &Tree<'_>) -> Option<Range> {
    let chosen = tree.root()?.child(b"chosen")?;
    let start = chosen.number(b"linux,initrd-start")?;
    let end = chosen.number(b"linux,initrd-end")?;
    let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
    Some(Range { start, bytes })
}

/// Loads the initramfs. `None` if there is none, or the tree names one.
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
    if in_tree(tree).is_some() || initrd::files(line).next().is_none() {
        return Ok(None);
    }
    from_files(firmware, device, line).map(Some)
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
