//! Memory that must stay free of what the stub allocates, though firmware takes it for free: what the tree
//! reserves, and the ranges that words of the command line name. It is taken before anything else is, and stays
//! taken. What is placed where does not belong here.

#![allow(unsafe_code, reason = "pages that firmware allocated")]

use super::firmware::{Failure, Firmware, OrFailure};
use super::memory::MemoryMap;
use super::pages::Pages;
use granule_boot::efi::Descriptor;
use granule_boot::tree::{Range, Tree};
use granule_kcore::efi::place::UNIT;
use granule_kcore::efi::wanted;
use granule_kcore::trace::area::Area;
use uefi_raw::Status;
use uefi_raw::table::boot::PAGE_SIZE;

/// Bytes of an entry of the list: start and number of pages.
const ENTRY: usize = 16;

/// The memory that is held, and given back unless the boot goes on.
pub(super) struct Held<'f> {
    firmware: &'f Firmware,
    /// Start and number of pages of each piece.
    list: Pages<'f>,
    count: usize,
    /// Pieces that the list has no room for.
    lost: usize,
}

impl<'f> Held<'f> {
    fn new(firmware: &'f Firmware) -> Result<Self, Failure> {
        Ok(Self {
            firmware,
            // As much as it gets anyway: thousands of pieces.
            list: Pages::new(firmware, UNIT as usize)?,
            count: 0,
            lost: 0,
        })
    }

    /// Takes the parts of a range that are free. What another range has taken is held already.
    fn hold(&mut self, map: impl Iterator<Item = Descriptor>, range: Range) {
        for region in map.filter(Descriptor::is_free) {
            let Some(part) = region.part_of(range) else {
                continue;
            };
            let whole = part.outward(PAGE_SIZE as u64);
            let pages = (whole.bytes as usize).div_ceil(PAGE_SIZE);
            let at = self.count.saturating_mul(ENTRY);
            let entry = self.list.bytes_mut().get_mut(at..);
            let Some(entry) = entry.and_then(|it| it.first_chunk_mut::<ENTRY>()) else {
                self.lost = self.lost.saturating_add(1);
                continue;
            };
            if self.firmware.allocate(Some(whole.start), pages).is_err() {
                continue;
            }
            let both = u128::from(whole.start) << 64 | pages as u128;
            *entry = both.to_le_bytes();
            self.count = self.count.saturating_add(1);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (entries, _) = self.list.bytes().as_chunks::<ENTRY>();
        for entry in entries.iter().take(self.count) {
            let both = u128::from_le_bytes(*entry);
            // SAFETY: the pages are of `allocate`, and nothing here refers to them.
            unsafe {
                self.firmware
                    .free((both >> 64) as u64, both as u64 as usize)
            };
        }
    }
}

/// Takes memory that the tree reserves, the area of a trace, and the range that is kept for the next boot: the
/// firmware may have no record of any of them.
pub(super) fn hold<'f>(
    firmware: &'f Firmware,
    tree: &Tree<'_>,
    line: &[u8],
) -> Result<Held<'f>, Failure> {
    let map = MemoryMap::new(firmware)?;
    let mut held = Held::new(firmware)?;
    // An area that cannot be read is for the kernel to refuse, on its console.
    let area = Area::of(line).unwrap_or_default();
    let area = Range {
        start: area.start,
        bytes: area.bytes,
    };
    let mut kept = map.regions().filter(Descriptor::is_kept);
    if kept.any(|region| region.part_of(area).is_some()) {
        return None.or_failure(
            Status::INVALID_PARAMETER,
            "granule.trace= names memory that the firmware keeps: name another range",
        );
    }
    held.hold(map.regions(), area);
    // If the firmware keeps the range, the kernel reports that and boots without.
    if let Some(range) = wanted::persist(line) {
        held.hold(map.regions(), range);
    }
    for range in wanted::reserved(tree) {
        held.hold(map.regions(), range);
    }
    if held.lost > 0 {
        firmware.say("granule: the device tree reserves memory in more than ");
        firmware.say("4096 pieces; the kernel may be placed in one of the others\r\n");
    }
    Ok(held)
}
