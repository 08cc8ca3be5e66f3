//! What is known of an address in the linear map at which an access faulted: for the last words.
//!
//! Whoever asks may have been interrupted anywhere, so nothing here waits for a lock: what cannot be
//! told is not told.

use super::{live, pages};
use granule::arch::{Kind, VirtualAddress};
use granule_kcore::frames::Frame;

/// Why an access to `address` faults, where it is one of the reasons made here.
pub(crate) fn why(address: u64) -> Option<&'static str> {
    live::try_look(|kernel, live, tree| {
        let page = kernel.page();
        let start = VirtualAddress(address & !(page - 1));
        let physical = kernel.placement.physical_address(start)?;
        let mut hidden = false;
        tree.visit(start, page, &mut |entry| {
            hidden |= entry.kind == Kind::Hidden;
            true
        })
        .ok()?;
        let frame = Frame::containing(physical, kernel.geometry.page_size());
        if !hidden {
            None
        } else if live.meets_pool(start.0, page) {
            Some("that is a guard page")
        } else if kernel.debug_pagealloc && pages::is_free(frame) == Some(true) {
            Some(
                "that page is free: it was used after it was freed, or never allocated (debug_pagealloc=on)",
            )
        } else {
            Some("that page was made invalid (set_direct_map_invalid, set_memory_valid)")
        }
    })?
}
