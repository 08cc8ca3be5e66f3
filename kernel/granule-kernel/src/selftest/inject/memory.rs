//! The hook over table entries: detects splits of live leaves in the kernel's tables and makes the chosen one
//! appear as a TLB conflict.

#![allow(unsafe_code, reason = "invalid entries that are only its own then")]

use super::super::crash;
use super::pending::{self, Chosen};
use crate::arch::cpu;
use crate::mm::environment::BareEnvironment;
use crate::mm::hook::TableHook;
use crate::mm::kernel_tables::Kernel;
use granule::arch::{Descriptor, Kind, Level, PhysicalAddress, VirtualAddress};
use granule::table::{BitChange, TableEnvironment, Visibility};
use granule_kcore::conflict_injection::{links, meant, ungroups};

/// Counts the splits of live leaves, and turns the chosen one into a simulated TLB conflict.
pub(crate) struct Injection;

impl TableHook for Injection {
    fn is_on(&self) -> bool {
        pending::is_on() || crash::counts_stores()
    }

    #[cold]
    fn as_meant(&self, table: PhysicalAddress, index: usize, stored: Descriptor) -> Descriptor {
        if pending::concerns(entry(table, index), 1) {
            meant(stored)
        } else {
            stored
        }
    }

    #[cold]
    fn before_read(&self, table: PhysicalAddress, first: usize, count: usize) {
        if pending::concerns(entry(table, first), count) {
            pending::mend();
        }
    }

    #[cold]
    fn before_write(&self, table: PhysicalAddress, first: usize, count: usize) {
        crash::before_store();
        let entry = entry(table, first);
        if pending::concerns(entry, count) || pending::leads(entry, count) {
            pending::mend();
        }
    }

    #[cold]
    unsafe fn store(
        &self,
        memory: &mut BareEnvironment<'_>,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        crash::before_store();
        // Entries on the path to pending ones may point elsewhere from now on, and their table may be freed.
        if pending::leads(entry(table, index), 1) {
            pending::mend();
        }
        if pending::concerns(entry(table, index), 1) {
            pending::change(entry(table, index), |_| descriptor);
            return;
        }
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe {
            let old = memory.load(table, index);
            let change = BitChange {
                of: Descriptor::VALID,
                clear: !0,
                set: descriptor.0,
            };
            if !links(old, descriptor) || inject(memory, table, index, 1, old, change).is_none() {
                memory.store(table, index, descriptor, visibility);
            }
        }
    }

    #[cold]
    unsafe fn update(
        &self,
        memory: &mut BareEnvironment<'_>,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller keeps the rules of the inner call.
        unsafe {
            crash::before_store();
            if pending::concerns(entry(table, first), count) {
                return self.update_each(memory, table, first, count, change, visibility);
            }
            let old = memory.load(table, first);
            let changed = if ungroups(old, change) {
                inject(memory, table, first, count, old, change)
            } else {
                None
            };
            match changed {
                Some(changed) => changed,
                None => memory.update(table, first, count, change, visibility),
            }
        }
    }
}

impl Injection {
    /// [`TableEnvironment::update`] of entries of which some are pending.
    ///
    /// # Safety
    ///
    /// As for that function.
    unsafe fn update_each(
        &self,
        memory: &mut BareEnvironment<'_>,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let mut changed = 0;
        for index in first..first + count {
            // SAFETY: the caller answers for all of the entries.
            unsafe {
                let descriptor = self.as_meant(table, index, memory.load(table, index));
                if change.concerns(descriptor) {
                    let new = change.apply(descriptor);
                    self.store(memory, table, index, new, visibility);
                    changed += 1;
                }
            }
        }
        changed
    }
}

/// Locates the `count` entries from index `first` of `table`, the first of which is `descriptor`, if they are
/// leaves of the linear map. The virtual address of such a leaf follows from its output address, and a walk
/// to that address finds the level.
fn find(
    kernel: &Kernel,
    memory: &BareEnvironment<'_>,
    table: PhysicalAddress,
    first: usize,
    count: usize,
    descriptor: Descriptor,
) -> Option<Chosen> {
    let geometry = &kernel.geometry;
    let size = geometry.page_size();
    let mut level = geometry.start_level();
    loop {
        let output = geometry.address_of(descriptor, level);
        let start = VirtualAddress(output.0.wrapping_add(kernel.placement.distance()));
        if geometry.offset(start).is_some()
            && let Some(path) = walk(kernel, memory, start, level, entry(table, first))
        {
            return Some(Chosen {
                first: entry(table, first),
                count,
                start,
                bytes: size.entry_bytes(level) * count as u64,
                path,
            });
        }
        if level == Level::L3 {
            return None;
        }
        level = level.next();
    }
}

/// The entries on the path to `start`, if it leads to `wanted` at `level`.
fn walk(
    kernel: &Kernel,
    memory: &BareEnvironment<'_>,
    start: VirtualAddress,
    level: Level,
    wanted: u64,
) -> Option<[u64; Level::ALL.len()]> {
    let geometry = &kernel.geometry;
    let offset = geometry.offset(start)?;
    let size = geometry.page_size();
    let mut path = [0; Level::ALL.len()];
    let mut steps = path.iter_mut();
    let mut table = kernel.root;
    let mut at = geometry.start_level();
    while at != level {
        let index = size.index(offset, at);
        // SAFETY: the root, or a table that a table points to.
        let descriptor = unsafe { memory.load(table, index) };
        if descriptor.kind(geometry, at) != Kind::Table {
            return None;
        }
        *steps.next()? = entry(table, index);
        table = geometry.address_of(descriptor, at);
        at = at.next();
    }
    (entry(table, size.index(offset, level)) == wanted).then_some(path)
}

/// Counts a split of these entries. If it is the chosen one, applies `change` to them, leaves them
/// invalid, and returns how many. Returns `None` if they are not in the kernel's linear map, or not the
/// chosen ones.
#[inline(never)]
fn inject(
    memory: &mut BareEnvironment<'_>,
    table: PhysicalAddress,
    first: usize,
    count: usize,
    old: Descriptor,
    change: BitChange,
) -> Option<usize> {
    let kernel = crate::mm::kernel_tables::kernel()?;
    let chosen = find(kernel, memory, table, first, count, old)?;
    if !pending::count_split() {
        return None;
    }
    let slot = pending::slot()?;
    let shown = PhysicalAddress(chosen.first & !(kernel.page() - 1));
    let shown = Descriptor::leaf(&kernel.geometry, Level::L3, shown, slot.attributes);
    // Break-before-make (RDDMVT): the slot's output address changes.
    for descriptor in [Descriptor::INVALID, shown] {
        // SAFETY: the slot's own entry, which only `prepare` and this code write. One split at a time is
        // chosen, and the previous one is mended.
        unsafe { memory.store(slot.table, slot.index, descriptor, Visibility::Live) };
        cpu::tlbi_vmalle1_all();
    }
    // SAFETY: the slot shows the table, and only this function's caller writes it.
    Some(unsafe { pending::break_entries(&chosen, change.of, change.clear, change.set) })
}

const fn entry(table: PhysicalAddress, index: usize) -> u64 {
    table.0 + index as u64 * 8
}
