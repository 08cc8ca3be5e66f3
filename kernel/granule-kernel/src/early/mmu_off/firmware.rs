//! Turns firmware's tables into a device tree, where the boot loader's tree names such tables.
//!
//! The library reads the tables and writes the tree (`granule_boot::expand`). This file turns addresses into
//! bytes that may be read: only memory that the EFI memory map lists, outside the image.

use super::{park, peek};
use crate::arch::image;
use crate::handover::EntryInfo;
use crate::handover::boot_record::Reason;
use granule::hw::cache;
use granule_boot::choice::Wish;
use granule_boot::efi::{Map, Physical};
use granule_boot::expand::{self, ExpandError, Expanded, Request};
use granule_boot::peek::KASLR_SEED;
use granule_boot::tree::{Range, Tree};
use granule_boot::words;
use granule_kcore::parameters::wants_digest;
use granule_kexec::Digest;

/// The tree that the kernel reads.
pub(super) struct Read {
    pub(super) bytes: &'static [u8],
    /// The notes about firmware's tables, if the tree was made of them.
    pub(super) expanded: Option<Expanded>,
    /// The digest of the tree that it was made of, if the command line requests digests.
    pub(super) given_digest: Option<u64>,
}

/// The tree of the whole machine, where `given` names firmware's tables, else `given`. `entry.dtb` becomes its
/// address. Parks if the machine cannot boot with these tables.
pub(super) fn expand(entry: &mut EntryInfo, given: &'static [u8]) -> Read {
    let as_given = Read {
        bytes: given,
        expanded: None,
        given_digest: None,
    };
    // The reader of the tree that is used reports its fault.
    let Ok(tree) = Tree::new(given) else {
        return as_given;
    };
    let made = match Request::of(&tree) {
        Ok(None) => return as_given,
        Ok(Some(request)) => write(entry, &tree, &request),
        Err(error) => Err(error),
    };
    match made {
        Ok((bytes, made)) => {
            let chosen = tree.root().and_then(|root| root.child(b"chosen"));
            let line = chosen.and_then(|chosen| chosen.text(b"bootargs"));
            let given_digest = wants_digest(line.unwrap_or_default()).then(|| digest(given));
            // The new tree has the seed too, and is wiped once it is read. This one becomes free memory.
            if let Some(seed) = chosen.and_then(|chosen| chosen.property(KASLR_SEED)) {
                peek::wipe(seed.as_ptr() as u64, seed.len() as u64);
            }
            entry.dtb = bytes.as_ptr() as u64;
            Read {
                bytes,
                expanded: Some(made),
                given_digest,
            }
        }
        Err(error) => {
            peek::learn(entry, &tree, given);
            park::park(Reason::DeviceTree, error.text().as_bytes())
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.bytes(bytes);
    digest.value()
}

fn write(
    entry: &EntryInfo,
    tree: &Tree<'static>,
    request: &Request,
) -> Result<(&'static [u8], Expanded), ExpandError> {
    let limit = 1_u64 << entry.features().pa_bits();
    let at = request.map;
    if !is_elsewhere(entry, at, limit) {
        return Err(ExpandError::MapPlace);
    }
    // SAFETY: `/chosen` names the memory map that firmware's loader left there, which lies in RAM outside the
    // image. A wrong address aborts, which the early vectors report.
    let map = unsafe { bytes(at) };
    let map = Map::new(map, request.descriptor, request.version)?;
    let chosen = tree.root().and_then(|root| root.child(b"chosen"));
    let line = chosen.and_then(|chosen| chosen.text(b"bootargs"));
    let acpi = match words::acpi(line.unwrap_or_default()) {
        Wish::Wanted(acpi) => Some(acpi),
        _ => None,
    };
    let place = image::firmware_tree();
    let room = place.end.wrapping_sub(place.start) as usize;
    let start = entry.load.wrapping_add(place.start) as *mut u8;
    // SAFETY: the image has this memory for the tree alone, and this function runs once.
    let into = unsafe { core::slice::from_raw_parts_mut(start, room) };
    let memory = Memory { entry, map, limit };
    let made = expand::expand(tree, request, map, &memory, acpi, into)?;
    // SAFETY: as above; nothing writes the tree from here on.
    let bytes = unsafe { core::slice::from_raw_parts(start, made.bytes.min(room)) };
    Ok((bytes, made))
}

/// Whether a range lies below the end of the physical addresses and outside the image.
fn is_elsewhere(entry: &EntryInfo, range: Range, limit: u64) -> bool {
    let end = range.start.checked_add(range.bytes);
    range.start != 0
        && end.is_some_and(|end| end <= limit)
        && !range.meets(peek::image_range(entry))
}

/// The bytes of a range, as they are in memory.
///
/// # Safety
///
/// The range is memory, outside the image, that nothing writes.
unsafe fn bytes(range: Range) -> &'static [u8] {
    // Firmware may have left them in a cache, which reads bypass now (arm-rules section 9).
    cache::clean(range.start..range.start.wrapping_add(range.bytes));
    // SAFETY: the caller's promise. With the MMU off a physical address is the pointer.
    unsafe { core::slice::from_raw_parts(range.start as *const u8, range.bytes as usize) }
}

/// The memory that firmware lists.
struct Memory<'a> {
    entry: &'a EntryInfo,
    map: Map<'a>,
    limit: u64,
}

impl Physical for Memory<'_> {
    fn read(&self, start: u64, bytes: u64) -> Option<&[u8]> {
        let range = Range { start, bytes };
        let may_read = is_elsewhere(self.entry, range, self.limit) && self.map.is_readable(range);
        // SAFETY: the memory map lists the range as cacheable memory; this CPU alone runs, and it writes to the
        // image only.
        may_read.then(|| unsafe { self::bytes(range) })
    }
}
