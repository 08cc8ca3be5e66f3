//! Releases a CPU that waits in firmware's loop until the address of its entry is written to memory: the
//! `spin-table` of the arm64 boot protocol.

#![allow(unsafe_code, reason = "the word that a CPU in firmware's loop reads")]

use super::inputs::BringUp;
use crate::arch::cpu;
use crate::mm::walker;
use crate::trace::bring_up;
use granule::arch::{Attributes, Permissions, PhysicalAddress, VirtualAddress};
use granule::hw::cache;
use granule::table::{Leaves, Piece, TableError};
use granule_kcore::layout::RELEASE_VADDR;

/// Writes `entry` to the eight bytes at physical address `release` and wakes the CPUs that wait.
///
/// Firmware may have reserved the memory, so no other mapping need show it. It is mapped while it is written only.
pub(super) fn release(
    machine: &mut BringUp<'_, '_>,
    release: u64,
    entry: u64,
) -> Result<(), TableError> {
    let page = machine.request.geometry.page_size().bytes();
    let first = release & !(page - 1);
    machine.map(Piece {
        start: VirtualAddress(RELEASE_VADDR),
        output: PhysicalAddress(first),
        bytes: page,
        attributes: Attributes::normal(Permissions::READ_WRITE),
        leaves: Leaves::PAGES,
    })?;
    let address = RELEASE_VADDR + (release - first);
    // SAFETY: just mapped, and aligned, as the reader of the tree checks. The tree gives the memory to this
    // purpose, so it is nobody's value.
    unsafe { (address as *mut u64).write_volatile(entry) };
    // The CPU reads with its caches bypassed.
    cache::clean_and_invalidate(address..address + size_of::<u64>() as u64);
    bring_up::command_left(release, size_of::<u64>() as u64);
    cpu::send_event();
    machine.with_tables(|tables| walker::unmap(tables, VirtualAddress(RELEASE_VADDR), page))
}
