//! Explains a fault in the linear map, for the fatal report.
//!
//! The faulting code may have held any lock, so nothing here waits for one. A cause that needs a held lock is
//! left out of the report.

use super::{kernel_tables, pages};
use granule::arch::{Kind, VirtualAddress};
use granule::table::Visit;
use granule_kcore::frames::Frame;

/// Returns the reason why an access to `address` faults, if this module has one.
pub(crate) fn why(address: u64) -> Option<&'static str> {
    kernel_tables::try_look(|kernel, state, tree| {
        let page = kernel.page();
        let start = VirtualAddress(address & !(page - 1));
        let physical = kernel.placement.physical_address(start)?;
        let mut present_invalid = false;
        tree.visit(start, page, |entry| {
            present_invalid |= entry.kind == Kind::PresentInvalid;
            Visit::EVERYTHING
        })
        .ok()?;
        let frame = Frame::containing(physical, kernel.geometry.page_size());
        if !present_invalid {
            None
        } else if state.meets_pool(start.0, page) {
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
