//! What one boot leaves for the next in RAM that survives a reset: `granule.persist=START,BYTES`.
//!
//! The next boot may have another page size, so all of it is stamped (`granule_boot::stamp`). Two things
//! are left: how often the machine was booted, which is readable under every page size, and what
//! the linear map was like, which means something under its own page size only and is refused under
//! another one. [`granule_kcore::persist`] has the bytes; here is where the RAM is.

use crate::arch::cache;
use crate::dev::console::println;
use crate::mm::map::LinearMap;
use granule::arch::{Geometry, PhysicalAddress};
use granule::linear::Placement;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::Parameters;
use granule_kcore::persist::{self as area, Figures, Left};
use granule_kexec::Extent;

/// RAM that is the next boot's, too: inside a bank, mapped, and reserved for this alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Persist {
    start: u64,
    bytes: u64,
}

/// The RAM that the command line names, which is reserved then; says why if it cannot be used. To be
/// called when all else is reserved, and nothing allocated.
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
    /// Where it is, and all of it.
    pub(crate) const fn extent(&self) -> Extent {
        Extent::new(self.start, self.bytes)
    }

    /// Reads what the last boot left and leaves this one's.
    pub(crate) fn exchange(
        &self,
        placement: &Placement,
        geometry: &Geometry,
        map: &LinearMap,
    ) -> Option<Left> {
        let start = placement.virtual_address(PhysicalAddress(self.start))?.0;
        // SAFETY: `find` saw that these bytes are RAM in the linear map and reserved them, so
        // that nobody else has them; this is called once, by the boot CPU alone. Any bytes are
        // valid, and whatever the last boot left is checked before it is believed.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start as *mut u8, area::BYTES) };
        let figures = Figures::of(geometry, &map.census);
        let left = area::exchange(bytes, geometry.page_size(), &figures);
        // A reset may forget what is in the caches.
        cache::clean_to_poc(start..start + area::BYTES as u64);
        Some(left)
    }
}
