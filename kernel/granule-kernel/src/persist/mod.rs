//! Data that one boot leaves for the next in RAM that survives a reset: `granule.persist=START,BYTES`.
//!
//! The next boot may use another page size, so all of it is stamped (`granule_boot::stamp`). It has two
//! parts: the number of boots, which is readable under every page size, and a description of the linear map,
//! which is meaningful only under its own page size and refused under another one. [`granule_kcore::persist`]
//! defines the bytes; this file manages the RAM.

#![allow(unsafe_code, reason = "RAM that is reserved for the next boot")]

use crate::dev::console::println;
use crate::mm::map::LinearMap;
use granule::arch::{Geometry, PhysicalAddress};
use granule::hw::cache;
use granule::linear::Placement;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::Parameters;
use granule_kcore::persist::{self as area, Figures, Left};
use granule_kexec::PhysRange;

/// RAM that is kept for the next boot: inside a bank, mapped, and reserved for this use alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Persist {
    start: u64,
    bytes: u64,
}

/// Finds and reserves the RAM that the command line names. Prints why if it cannot be used. Call this after
/// everything else is reserved and before anything is allocated.
pub(crate) fn find(parameters: &Parameters<'_>, memory: &mut Memory) -> Option<Persist> {
    let range = parameters.persist.as_ref()?;
    let (start, bytes) = (range.start, range.end - range.start);
    let reserved = area::is_usable(range, memory).and_then(|()| {
        let full = "there is no room to note that it is in use";
        memory.reserve(start, bytes).map_err(|_| full)
    });
    match reserved {
        Ok(()) => Some(Persist { start, bytes }),
        Err(why) => {
            println!(
                "granule: granule.persist={start:#x},{bytes:#x}: {why}; nothing is kept for the next boot"
            );
            None
        }
    }
}

impl Persist {
    /// The whole range of the RAM.
    pub(crate) const fn extent(&self) -> PhysRange {
        PhysRange::new(self.start, self.bytes)
    }

    /// Reads the data of the previous boot and writes this boot's.
    pub(crate) fn exchange(
        &self,
        placement: &Placement,
        geometry: &Geometry,
        map: &LinearMap,
    ) -> Option<Left> {
        let start = placement.virtual_address(PhysicalAddress(self.start))?.0;
        // SAFETY: `find` saw that these bytes are RAM in the linear map and reserved them, so nothing else
        // uses them. Only the boot CPU calls this, once. Any bytes are valid, and the previous boot's data is
        // checked before it is used.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start as *mut u8, area::BYTES) };
        let figures = Figures::of(geometry, &map.stats);
        let left = area::exchange(bytes, geometry.page_size(), &figures);
        // A reset may discard the caches' contents.
        cache::clean(start..start + area::BYTES as u64);
        Some(left)
    }
}
