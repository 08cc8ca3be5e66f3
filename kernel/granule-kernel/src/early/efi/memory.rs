//! The firmware's memory map, and the place of the image in it.

use super::firmware::{Failure, Firmware, MapFacts, OrFailure};
use super::pages::Pages;
use crate::arch::image;
use granule_boot::efi::{Descriptor, Map};
use granule_boot::kaslr::NOKASLR;
use granule_boot::tree::Range;
use granule_boot::words;
use granule_kcore::efi::{description, flat, place};
use granule_kcore::layout::IMAGE_ALIGN;
use uefi_raw::Status;

/// Descriptors that the map may grow by between its measuring and its end.
const SPARE: usize = 64;

/// The memory map as it was when it was read last.
pub(super) struct MemoryMap<'f> {
    buffer: Pages<'f>,
    facts: MapFacts,
}

impl<'f> MemoryMap<'f> {
    /// Reads the map, with room for a larger one.
    pub(super) fn new(firmware: &'f Firmware) -> Result<Self, Failure> {
        let (_, facts) = firmware.memory_map(&mut []);
        let spare = facts.descriptor_bytes.saturating_mul(SPARE);
        let mut map = Self {
            buffer: Pages::new(firmware, facts.bytes.saturating_add(spare))?,
            facts,
        };
        map.read(firmware).map_err(|status| Failure {
            what: Some("the firmware gives no memory map"),
            status,
        })?;
        Ok(map)
    }

    /// Reads the map again.
    pub(super) fn read(&mut self, firmware: &Firmware) -> Result<(), Status> {
        let (status, facts) = firmware.memory_map(self.buffer.bytes_mut());
        self.facts = facts;
        match status {
            Status::SUCCESS => Ok(()),
            error => Err(error),
        }
    }

    /// Marks the firmware's memory at run time as mapped flat, as it is: the stub has requested no other
    /// addresses, and a Linux that is started after this kernel calls the firmware at those in the map.
    pub(super) fn make_flat(&mut self) {
        let apart = self.facts.descriptor_bytes;
        let map = self.buffer.bytes_mut().get_mut(..self.facts.bytes);
        flat::make_flat(map.unwrap_or_default(), apart);
    }

    /// Returns the firmware's key of this map.
    pub(super) const fn key(&self) -> usize {
        self.facts.key
    }

    /// Returns the map's properties for the kernel's tree.
    pub(super) const fn facts(&self) -> description::Map {
        description::Map {
            start: self.buffer.range().start,
            bytes: self.facts.bytes as u32,
            descriptor_bytes: self.facts.descriptor_bytes as u32,
            descriptor_version: self.facts.version,
        }
    }

    /// The memory of the map.
    pub(super) const fn range(&self) -> Range {
        self.buffer.range()
    }

    /// The regions, in the firmware's order.
    pub(super) fn regions(&self) -> impl Iterator<Item = Descriptor> + Clone {
        let bytes = self.buffer.first(self.facts.bytes);
        let map = Map::new(
            bytes,
            self.facts.descriptor_bytes as u32,
            self.facts.version,
        );
        // The kernel refuses a map that cannot be read, on its console.
        map.into_iter().flatten()
    }
}

/// Copies the image, as it is in the file, to a place that suits its entry: a random one if the firmware has
/// random numbers and the command line does not contain `nokaslr`, else the lowest.
pub(super) fn image<'f>(firmware: &'f Firmware, line: &[u8]) -> Result<Pages<'f>, Failure> {
    let map = MemoryMap::new(firmware)?;
    let mut bits = [0; 8];
    let by_chance = !words::is_given(line, NOKASLR);
    let random = by_chance && firmware.random(&mut bits);
    let random = random.then_some(u64::from_le_bytes(bits));
    let bytes = image::bytes();
    let start = place::choose(map.regions(), bytes, IMAGE_ALIGN, random);
    let mut copy = start
        .and_then(|start| Pages::at(firmware, start, bytes))
        .or_failure(
            Status::OUT_OF_RESOURCES,
            "no free memory at a multiple of 2 MiB is large enough for the kernel: more RAM is needed",
        )?;
    for (to, from) in copy.bytes_mut().iter_mut().zip(image::loaded()) {
        *to = *from;
    }
    Ok(copy)
}
