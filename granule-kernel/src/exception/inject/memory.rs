//! Table memory that finds live splits and makes the chosen one look like a TLB conflict.

use super::pending::{self, Chosen};
use super::{links, meant, ungroups};
use crate::cpu;
use granule::arch::page_size::Level;
use granule::arch::{Descriptor, Geometry, PhysicalAddress, VirtualAddress};
use granule::table::{BitChange, TableMemory, Visibility};

/// Table memory of the kernel's half, whose splits are counted and of which one may be made to
/// look like a TLB conflict. Where no injection is asked for each call costs one more load and
/// branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injecting<M> {
    memory: M,
    geometry: Geometry,
    root: PhysicalAddress,
    distance: u64,
}

impl<M: TableMemory> Injecting<M> {
    /// Round `memory`, which reaches the tree of `geometry` below `root`, in which the linear map
    /// is at `distance` from what it maps.
    pub(crate) const fn new(
        memory: M,
        geometry: Geometry,
        root: PhysicalAddress,
        distance: u64,
    ) -> Self {
        Self {
            memory,
            geometry,
            root,
            distance,
        }
    }

    /// The `count` entries from index `first` of `table`, if they are leaves of the linear map, of
    /// which the first is `descriptor`: such a leaf's address follows from its output, and a walk to
    /// that says at which level it is.
    fn find(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
    ) -> Option<Chosen> {
        let size = self.geometry.page_size();
        let mut level = self.geometry.start_level();
        loop {
            let output = self.geometry.address_of(descriptor, level);
            let start = VirtualAddress(output.0.wrapping_add(self.distance));
            if self.geometry.offset(start).is_some()
                && let Some(path) = self.walk(start, level, entry(table, first))
            {
                return Some(Chosen {
                    first: entry(table, first),
                    count,
                    start,
                    bytes: size.entry_bytes(level) * count as u64,
                    path,
                });
            }
            if level.is_last() {
                return None;
            }
            level = level.next();
        }
    }

    /// The entries on the way to `start`, if the way leads to `wanted` at `level`.
    fn walk(
        &self,
        start: VirtualAddress,
        level: Level,
        wanted: u64,
    ) -> Option<[u64; Level::ALL.len()]> {
        let offset = self.geometry.offset(start)?;
        let size = self.geometry.page_size();
        let mut path = [0; Level::ALL.len()];
        let mut steps = path.iter_mut();
        let mut table = self.root;
        let mut at = self.geometry.start_level();
        while at != level {
            let index = size.index(offset, at);
            // SAFETY: the root, or a table that a table led to.
            let descriptor = unsafe { self.memory.load(table, index) };
            if !descriptor.is_table(at) {
                return None;
            }
            *steps.next()? = entry(table, index);
            table = self.geometry.address_of(descriptor, at);
            at = at.next();
        }
        (entry(table, size.index(offset, level)) == wanted).then_some(path)
    }

    /// Counts a split of these entries; if it is the chosen one changes them as `change` says, and leaves them invalid; how many those were.
    /// None if they are not in the linear map, or not the chosen ones.
    #[inline(never)]
    fn inject(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        old: Descriptor,
        change: BitChange,
    ) -> Option<usize> {
        let chosen = self.find(table, first, count, old)?;
        if !pending::count_split() {
            return None;
        }
        let slot = pending::slot()?;
        let page = self.geometry.page_size().bytes();
        let shown = PhysicalAddress(chosen.first & !(page - 1));
        let shown = Descriptor::leaf(&self.geometry, Level::L3, shown, slot.attributes);
        // Break before make (RDDMVT): the slot's output changes.
        for descriptor in [Descriptor::INVALID, shown] {
            // SAFETY: the slot's own entry, which only `prepare` and this write. One split at a
            // time is chosen, and the one before is mended.
            unsafe {
                self.memory
                    .store(slot.table, slot.index, descriptor, Visibility::Live);
            }
            cpu::tlbi_vmalle1_all();
        }
        // SAFETY: the slot shows the table; who called this is the only one who writes it.
        Some(unsafe { pending::break_entries(&chosen, change.of, change.clear, change.set) })
    }
}

/// The physical address of an entry.
const fn entry(table: PhysicalAddress, index: usize) -> u64 {
    table.0 + index as u64 * 8
}

// SAFETY: every access goes to the inner memory, whose implementer vouched for it, but for those to
// pending entries: these are read and changed as what they mean, and walkers see them invalid, which
// is what this is for.
unsafe impl<M: TableMemory> TableMemory for Injecting<M> {
    #[inline(always)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: the caller's promise is handed on.
        let stored = unsafe { self.memory.load(table, index) };
        if pending::is_on() {
            return as_meant(stored, entry(table, index));
        }
        stored
    }

    unsafe fn find_mapped(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        if pending::is_on() {
            mend_read(entry(table, first), count);
        }
        // SAFETY: the caller's promise is handed on.
        unsafe { self.memory.find_mapped(table, first, count) }
    }

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        // SAFETY: the caller's promise is handed on.
        unsafe {
            if pending::is_on() && visibility != Visibility::Private {
                self.store_watched(table, index, descriptor, visibility);
            } else {
                self.memory.store(table, index, descriptor, visibility);
            }
        }
    }

    #[inline(always)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        if pending::is_on() && visibility != Visibility::Private {
            let entry = entry(table, index);
            if pending::concerns(entry, 1) || pending::leads(entry, 1) {
                pending::mend();
            }
        }
        // SAFETY: the caller's promise is handed on.
        unsafe { self.memory.exchange(table, index, descriptor, visibility) }
    }

    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        if pending::is_on() && visibility != Visibility::Private {
            mend_for(entry(table, first), count);
        }
        // SAFETY: the caller's promise is handed on.
        unsafe {
            self.memory
                .fill(table, first, count, descriptor, step, visibility);
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller's promise is handed on.
        unsafe {
            if pending::is_on() && visibility != Visibility::Private && count > 0 {
                self.update_watched(table, first, count, change, visibility)
            } else {
                self.memory.update(table, first, count, change, visibility)
            }
        }
    }
}

/// What was stored in an entry as it was meant.
#[cold]
#[inline(never)]
fn as_meant(stored: Descriptor, entry: u64) -> Descriptor {
    if pending::concerns(entry, 1) {
        meant(stored)
    } else {
        stored
    }
}

/// Before `count` entries from `entry` on are looked at.
#[cold]
#[inline(never)]
fn mend_read(entry: u64, count: usize) {
    if pending::concerns(entry, count) {
        pending::mend();
    }
}

/// Before `count` entries from `entry` on are written.
#[cold]
#[inline(never)]
fn mend_for(entry: u64, count: usize) {
    if pending::concerns(entry, count) || pending::leads(entry, count) {
        pending::mend();
    }
}

impl<M: TableMemory> Injecting<M> {
    /// [`TableMemory::store`] to a table that may be live.
    ///
    /// # Safety
    ///
    /// As for that.
    #[cold]
    #[inline(never)]
    unsafe fn store_watched(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        // What leads to pending entries may lead elsewhere from now on, and their table be given
        // back.
        if pending::leads(entry(table, index), 1) {
            pending::mend();
        }
        if pending::concerns(entry(table, index), 1) {
            pending::change(entry(table, index), |_| descriptor);
            return;
        }
        // SAFETY: the caller's promise is handed on.
        unsafe {
            let old = self.memory.load(table, index);
            let change = BitChange {
                of: Descriptor::VALID,
                clear: !0,
                set: descriptor.0,
            };
            if !links(old, descriptor) || self.inject(table, index, 1, old, change).is_none() {
                self.memory.store(table, index, descriptor, visibility);
            }
        }
    }

    /// [`TableMemory::update`] of entries of a table that may be live.
    ///
    /// # Safety
    ///
    /// As for that.
    #[cold]
    #[inline(never)]
    unsafe fn update_watched(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller's promise is handed on.
        unsafe {
            if pending::concerns(entry(table, first), count) {
                return self.update_each(table, first, count, change, visibility);
            }
            let old = self.memory.load(table, first);
            let changed = if ungroups(old, change) {
                self.inject(table, first, count, old, change)
            } else {
                None
            };
            match changed {
                Some(changed) => changed,
                None => self.memory.update(table, first, count, change, visibility),
            }
        }
    }

    /// [`TableMemory::update`] of entries of which some are pending.
    ///
    /// # Safety
    ///
    /// As for that.
    unsafe fn update_each(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let mut changed = 0;
        for index in first..first + count {
            // SAFETY: the caller vouches for all of the entries.
            unsafe {
                let descriptor = self.load(table, index);
                if change.concerns(descriptor) {
                    self.store(table, index, change.apply(descriptor), visibility);
                    changed += 1;
                }
            }
        }
        changed
    }
}
