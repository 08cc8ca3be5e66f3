//! The identity map beyond the boot: what a CPU stands on while it is off the kernel's tables.
//!
//! The boot's identity map has the one page of code that switches tables. For parking it also takes
//! a writable page, and a root in which nothing is mapped, which both halves can be set to.

use crate::handover::Handover;
use crate::memory::map::Request;
use crate::memory::supply::Supply;
use crate::memory::walker::{self, Flush};
use crate::memory::window::EarlyTables;
use crate::trace::bring_up;
use crate::{boot, image, refuse};
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::registers::Ttbr;
use granule::arch::{
    Attributes, Descriptor, Geometry, Half, Kind, Permissions, PhysicalAddress, VirtualAddress,
};
use granule::table::{
    Counters, Leaves, Maintenance, TableAllocator, TableError, TableMemory, Visibility,
};
use granule_kcore::devicetree::memory::Memory;

/// TTBR values: the identity map, and nothing at all for each half.
static IDENTITY: AtomicU64 = AtomicU64::new(0);
static EMPTY: AtomicU64 = AtomicU64::new(0);
/// Virtual minus physical address of the image.
static IMAGE_DISTANCE: AtomicU64 = AtomicU64::new(0);

/// TTBR0 of the identity map.
pub(super) fn identity() -> u64 {
    IDENTITY.load(Ordering::Relaxed)
}

/// TTBR0 or TTBR1 with nothing mapped.
pub(super) fn empty() -> u64 {
    EMPTY.load(Ordering::Relaxed)
}

/// The physical address of something in the image.
pub(super) fn physical(address: u64) -> u64 {
    address.wrapping_sub(IMAGE_DISTANCE.load(Ordering::Relaxed))
}

/// The lower half as the boot set it up.
pub(super) fn lower_half(request: &Request<'_>, handover: &Handover) -> Option<Geometry> {
    // TCR.T0SZ.
    let bits = 64 - (handover.mmu.tcr & 0x3f) as u32;
    let cpu = handover.entry.features();
    request.geometry.with_half(&cpu, Half::Lower, bits).ok()
}

/// Adds the writable page at `page`, an address in the image, to the identity map, and makes the
/// empty root.
pub(super) fn prepare(
    request: &Request<'_>,
    handover: &Handover,
    lower: Geometry,
    memory: &mut Memory,
    page: u64,
) -> Result<(), TableError> {
    let size = request.geometry.page_size();
    let bytes = size.bytes();
    let mut capabilities = request.capabilities;
    capabilities.geometry = lower;
    let root = boot::root(handover.mmu.ttbr0, &lower);
    let supply = Supply::Early(EarlyTables::new(memory, bytes));
    let counters = Counters::new();
    let mut parts = walker::parts(capabilities, request.reach, &counters, supply, Flush::Now);
    let exhausted = TableError::OutOfTables { needed: 1 };
    let empty = parts.allocate(1).ok_or(exhausted)?.first;
    // SAFETY: a page that was just allocated, for a table, which nobody else knows.
    unsafe {
        parts.fill(
            empty,
            0,
            size.entries(),
            Descriptor::INVALID,
            0,
            Visibility::Private,
        );
    }
    parts.dsb_ishst();
    EMPTY.store(Ttbr::new(&lower, empty, 0).0, Ordering::Relaxed);
    IDENTITY.store(handover.mmu.ttbr0, Ordering::Relaxed);
    IMAGE_DISTANCE.store(handover.mmu.virt_offset, Ordering::Relaxed);

    // SAFETY: the tree that TTBR0 holds, in the static pool; nobody else changes it.
    let mut tables = unsafe { walker::open(root, parts)? };
    let page = physical(page) & !(bytes - 1);
    debug_assert!(page >= handover.entry.load && page < handover.entry.load + image::bytes());
    let writable = Attributes::normal(Permissions::READ_WRITE);
    tables.map(
        VirtualAddress(page),
        PhysicalAddress(page),
        bytes,
        writable,
        Leaves::PAGES,
    )?;
    let (mut leaves, mut sound) = (0, true);
    tables.visit_all(&mut |found| {
        if found.kind == Kind::Leaf {
            leaves += 1;
            let permissions = Permissions::decode(found.descriptor, lower.regime());
            sound &= !permissions.writable_and_executable();
        }
        true
    });
    if leaves != 2 || !sound {
        refuse::self_check_failed(format_args!(
            "the identity map has {leaves} leaves, expected one to execute and one to write"
        ));
    }
    Ok(())
}

/// Takes this CPU off the identity map: until it is parked, its lower half has nothing in it.
pub(super) fn leave() {
    // SAFETY: the kernel runs in the upper half; nothing is reached through the lower one.
    unsafe { bring_up::set_ttbr0_el1(empty()) };
    bring_up::tlbi_vmalle1_local();
}
