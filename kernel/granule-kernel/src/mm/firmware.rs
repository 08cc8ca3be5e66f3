//! Reads memory information from the device tree, through the tree's boot-time mapping.

#![allow(unsafe_code, reason = "the device tree through the boot's mapping")]

use crate::fatal::refuse;
use crate::handover::Handover;
use granule_kcore::devicetree::memory::{self as tree, Memory};
use granule_kcore::layout;
use granule_kcore::parameters::Parameters;

/// Calls `look` with the device tree's bytes. The mapping goes away, so access is by closure: no
/// borrow of the tree can outlive the call and be used after `free_initmem::free`.
pub(crate) fn with_tree<R>(handover: &Handover, look: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the boot tables map the tree, read-only, in its window, and keep it mapped until
    // `free_initmem::free` unmaps it, which comes after every call of this function; the
    // bytes live no longer than this call.
    look(unsafe {
        core::slice::from_raw_parts(
            layout::dtb_vaddr(handover.entry.dtb) as *const u8,
            handover.tree.bytes as usize,
        )
    })
}

/// Adds to `memory` the RAM and the reservations that the device tree describes. The kernel's own
/// reservations are not included. `warn` is called for memory that is not used as the tree states it.
pub(crate) fn memory(
    handover: &Handover,
    parameters: &Parameters<'_>,
    memory: &mut Memory,
    warn: impl FnMut(tree::Warning<'_>),
) {
    let read = |tree: &[u8]| tree::memory(tree, parameters.persist.clone(), memory, warn);
    refuse::unless_ok(with_tree(handover, read));
}
