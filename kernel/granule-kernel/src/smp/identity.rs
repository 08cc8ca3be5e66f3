//! Extends the identity map for use after the boot, when a CPU is off the kernel's tables.
//!
//! The boot's identity map contains the one page of code that switches tables. Parking also needs
//! writable pages, and an empty root that TTBR0 and TTBR1 can be set to.

#![allow(unsafe_code, reason = "a page that was just allocated for a table")]

use crate::arch::image;
use crate::cpu::identity;
use crate::fatal::refuse;
use crate::handover::{BootRoots, Handover};
use crate::mm::early_tables::EarlyTables;
use crate::mm::environment::Flush;
use crate::mm::map::Request;
use crate::mm::table_allocator::KernelTableAllocator;
use crate::mm::walker;
use core::ops::Range;
use granule::arch::registers::Ttbr;
use granule::arch::{Attributes, Descriptor, Permissions, PhysicalAddress, VirtualAddress};
use granule::table::{Leaves, Maintenance, TableEnvironment, TableError, Visibility};
use granule_kcore::devicetree::memory::Memory;
use granule_trace::recorder::Counters;

/// Adds the pages of `writable`, addresses in the image, to the identity map, and makes the empty root.
pub(super) fn prepare(
    request: &Request<'_>,
    handover: &Handover,
    roots: &BootRoots,
    memory: &mut Memory,
    writable: Range<u64>,
) -> Result<(), TableError> {
    let size = request.geometry.page_size();
    let bytes = size.bytes();
    let lower = roots.lower;
    let allocator = KernelTableAllocator::Early(EarlyTables::new(memory, bytes));
    let counters = Counters::new();
    let mut environment = request.environment(allocator, &counters, Flush::Now);
    let exhausted = TableError::OutOfTables { needed: 1 };
    let empty = environment.allocate().ok_or(exhausted)?;
    // SAFETY: the page was just allocated for a table and is not in use yet.
    unsafe {
        environment.fill(
            empty,
            0,
            size.entries(),
            Descriptor::INVALID,
            0,
            Visibility::Private,
        );
    }
    environment.invalidate(Maintenance::DsbIshst);
    // SAFETY: the page is an empty root table, which never changes.
    let empty_root = unsafe { Ttbr::from_root(&lower, empty, 0) };
    identity::set(
        handover.mmu.ttbr0,
        empty_root.bits(),
        handover.mmu.virt_offset,
    );

    // SAFETY: the tree in TTBR0, in the static pool; nothing else changes it.
    let mut tables = unsafe { walker::open(roots.identity, lower, environment)? };
    let start = identity::physical(writable.start) & !(bytes - 1);
    let end = identity::physical(writable.end).next_multiple_of(bytes);
    debug_assert!(start >= handover.entry.load && end <= handover.entry.load + image::bytes());
    let (at, to) = (VirtualAddress(start), PhysicalAddress(start));
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    tables.map(at, to, end - start, attributes, Leaves::PAGES)?;
    let (leaves, sound) = walker::leaves(&tables);
    let pages = (end - start) / bytes;
    if leaves != 1 + pages || !sound {
        refuse::self_check_failed(format_args!(
            "the identity map has {leaves} leaves, expected one to execute and {pages} to write"
        ));
    }
    Ok(())
}
