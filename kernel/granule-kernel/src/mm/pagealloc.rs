//! `debug_pagealloc=on`: free pages are invalid in the linear map, so that an access to one faults.
//!
//! The map is then in pages and nothing is merged. Allocation makes a page valid and freeing makes it
//! invalid, each by one store to the page's own entry, without a lock and without memory. So both are allowed
//! in any context, even during a change of the tables, which allocates its own table pages this way.

#![allow(unsafe_code, reason = "pages whose entries only the caller changes")]

use super::kernel_tables::{self, Flush, Kernel};
use super::pages::{self, Pages};
use super::walker;
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule_kcore::frames::tables::Source;

/// Makes every free page invalid, and from here on every page when it is freed, if the command line
/// requested it. No CPU may allocate during this call.
pub(crate) fn invalidate_free_pages() {
    let Some(kernel) = kernel_tables::kernel().filter(|kernel| kernel.debug_pagealloc) else {
        return;
    };
    kernel_tables::change(Flush::Now, |_, _, tree| {
        let size = kernel.geometry.page_size();
        Pages.with(|frames| {
            frames.each_free(|frame, order| {
                let bytes = size.bytes() << order;
                let present_invalid = address(kernel, frame.address(size)).map(|start| {
                    let done = tree.set_invalid(start, bytes);
                    walker::assume_visible(tree, start, bytes);
                    done
                });
                assert!(
                    matches!(present_invalid, Some(Ok(()))),
                    "debug_pagealloc: free memory at {frame} cannot be made invalid: {present_invalid:?}"
                );
            });
        });
    });
    pages::watch_by(set);
}

/// Makes pages valid when they are allocated, and invalid when they are freed.
fn set(start: PhysicalAddress, bytes: u64, valid: bool) {
    let Some(kernel) = kernel_tables::kernel() else {
        return;
    };
    let Some(address) = address(kernel, start) else {
        return;
    };
    // SAFETY: the whole map is in pages and nothing is merged. Only the owner of a page changes its entry,
    // and the caller owns these pages.
    let set = unsafe { kernel_tables::set_valid(kernel, address, bytes, valid) };
    assert!(
        set.is_ok(),
        "debug_pagealloc: {bytes:#x} bytes at {address} cannot be made valid={valid}: {set:?}"
    );
}

fn address(kernel: &Kernel, start: PhysicalAddress) -> Option<VirtualAddress> {
    kernel.placement.virtual_address(start)
}
