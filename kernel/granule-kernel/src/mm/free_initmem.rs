//! Drops the mappings that only the boot needed: the identity map, the device tree's mapping, and
//! the unused part of the static table pool.

#![allow(unsafe_code, reason = "the boot's tables, which nothing else changes")]

use super::early_tables::{EarlyTables, give_back};
use super::environment::Flush;
use super::map::Request;
use super::table_allocator::KernelTableAllocator;
use super::walker;
use crate::arch::image;
use crate::handover::{BootRoots, Handover};
use core::ops::ControlFlow;
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::{TableError, Visit};
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::layout;
use granule_trace::recorder::Counters;

/// Unmaps these mappings and gives their memory to `memory`. Returns the number of bytes of static storage
/// in it. The identity map stays if it is still needed.
#[inline(never)]
pub(crate) fn free(
    request: &Request<'_>,
    handover: &Handover,
    roots: &BootRoots,
    memory: &mut Memory,
    unused_pool: (PhysicalAddress, PhysicalAddress),
    keep_identity: bool,
) -> Result<u64, TableError> {
    let size = request.geometry.page_size();
    let page = size.bytes();
    let before = memory.totals().free;
    // Read firmware's reservations now: the device tree's mapping is dropped below.
    let mut firmware = Memory::new(size);
    super::firmware::memory(handover, request.parameters, &mut firmware, |_| {});
    let (entry, tree_info) = (&handover.entry, &handover.tree);

    // The identity map is dropped, and its root stays in TTBR0 as an empty table. While other CPUs
    // are parked on the identity map, it stays, and TTBR0 gets another root.
    let lower = roots.lower;
    if !keep_identity {
        let allocator = KernelTableAllocator::Early(EarlyTables::keeping(memory, page, &firmware));
        let counters = Counters::new();
        let environment = request.environment(allocator, &counters, Flush::Now);
        // SAFETY: this is the tree in TTBR0; it lies in the static pool, and nothing else changes
        // it.
        let mut tables = unsafe { walker::open(roots.identity, lower, environment)? };
        let code = (entry.load + image::idmap_text().start) & !(page - 1);
        let (leaves, sound) = walker::leaves(&tables);
        if leaves != 1 || !sound {
            crate::fatal::refuse::self_check_failed(format_args!(
                "the identity map has {leaves} leaves, expected one that is not writable"
            ));
        }
        walker::unmap(&mut tables, VirtualAddress(code), page)?;
        let mut left = 0;
        let ControlFlow::Continue(()) = tables.visit_all(|_| {
            left += 1;
            Visit::EVERYTHING
        });
        if left != 0 {
            crate::fatal::refuse::self_check_failed(format_args!(
                "{left} entries of the identity map are left after it was unmapped"
            ));
        }
    }

    let allocator = KernelTableAllocator::Early(EarlyTables::keeping(memory, page, &firmware));
    let counters = Counters::new();
    let mut tables = request.open(allocator, &counters)?;
    let dtb = entry.dtb & !(page - 1);
    let dtb_bytes = (entry.dtb + tree_info.bytes).next_multiple_of(page) - dtb;
    let dtb = VirtualAddress(layout::dtb_vaddr(dtb));
    walker::unmap(&mut tables, dtb, dtb_bytes)?;
    let (start, end) = (unused_pool.0.0, unused_pool.1.0);
    let in_image = VirtualAddress(start.wrapping_add(handover.mmu.virt_offset));
    walker::unmap(&mut tables, in_image, end - start)?;
    drop(tables);
    give_back(memory, Some(&firmware), start, end);
    Ok(memory.totals().free - before)
}
