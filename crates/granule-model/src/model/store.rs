//! Stores of descriptors.
//!
//! A store to a table that no walker can reach is only recorded. A store to a table that some
//! walker can reach turns the replaced entries into stale ranges, and links and unlinks tables.
//! Then the rules compare the new entries with what may still be cached.

use super::Model;
use crate::arch::context::Space;
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;
use crate::config::Policy;
use crate::rules::break_before_make::{self, Made};
use crate::rules::cache_visibility::Walks;
use crate::rules::lost_update::{self, Stored};
use crate::rules::{address_size, table_memory};
use crate::state::caches::line_mask;
use crate::state::ids::{PAGE_SHIFT, PER_PAGE, RootId, TableId};
use crate::state::memory::Pending;
use crate::state::sharing::Spans;
use crate::state::snapshot::{self, Replaced};
use crate::state::stale_range::{Settle, StaleKind, StaleRanges};
use crate::state::tables::Path;
use crate::state::trees::Trees;
use crate::state::walk::EntryAt;
use granule_trace::Visibility;
use std::collections::BTreeSet;

/// A change of one entry of a page.
#[derive(Clone, Copy)]
struct Change {
    /// The index in the page.
    index: usize,
    /// The address of the entry.
    location: u64,
    old: u64,
    new: u64,
}

/// The CPU that stores, and the form of its store.
#[derive(Clone, Copy)]
pub(super) struct Storer {
    pub(super) cpu: u32,
    pub(super) visibility: Visibility,
}

impl Model {
    /// Stores `count` descriptors from `address`: `next` makes each from its index and the old
    /// value.
    pub(super) fn store_descriptors(
        &mut self,
        by: Storer,
        address: u64,
        count: u64,
        next: impl Fn(u64, u64) -> u64,
    ) {
        let mut done = 0;
        while done < count {
            let at = address + done * 8;
            let first = (at >> 3) as usize % PER_PAGE;
            let some = (PER_PAGE - first).min((count - done) as usize);
            self.store_in_page(by, at, some, |index, old| next(done + index as u64, old));
            done += some as u64;
        }
    }

    fn store_in_page(
        &mut self,
        by: Storer,
        address: u64,
        count: usize,
        next: impl Fn(usize, u64) -> u64,
    ) {
        let number = address >> PAGE_SHIFT;
        let first = (address >> 3) as usize % PER_PAGE;
        // A value that was stored earlier is where all walkers see it, past barriers and caches.
        let is_seen = by.visibility == Visibility::Earlier;
        if !is_seen {
            let mask = line_mask(number, address, count as u64 * 8);
            let cached = self.cpus[by.cpu].data_cached();
            self.lines_stored(by.cpu, number, mask, cached);
        }
        let now = self.report.now();
        let trees = Trees::new(&self.memory, &self.tables);
        let is_table = trees.table_within(address, count as u64 * 8).is_some();
        let page = self.memory.page_mut(number);
        if !is_table {
            let mut made_valid = None;
            let mut may_only_fault = page.unknown(first, count).is_none();
            // To a walker that misses such a store the page looks used.
            let mut clears_access = may_only_fault && !self.config.strict;
            let values = page.values_mut();
            for index in 0..count {
                let value = &mut values[first + index];
                let new = next(index, *value);
                if new & descriptor::VALID != 0 && new != *value {
                    made_valid = Some(index);
                }
                may_only_fault &= *value & descriptor::VALID == 0;
                clears_access &= *value & !new == descriptor::ACCESSED
                    && new & !*value == 0
                    && new & descriptor::VALID != 0;
                *value = new;
            }
            page.mark_written(first, count);
            page.granule = None;
            let cpu = by.cpu;
            // A DSB made what this CPU stored before visible, which the next store must not make younger.
            let dsb = self.cpus[cpu].dsb;
            page.pending
                .retain(|one| one.cpu != cpu || dsb <= one.event);
            let same = |one: &&mut Pending| {
                let (from, to) = one.entries;
                let touches = from <= first + count && first <= to;
                touches && one.cpu == cpu && one.may_only_fault == may_only_fault
            };
            match page.pending.iter_mut().find(same) {
                _ if is_seen || clears_access => (),
                Some(pending) => {
                    let (from, to) = pending.entries;
                    pending.entries = (from.min(first), to.max(first + count));
                    pending.event = now;
                }
                None => page.pending.push(Pending {
                    cpu,
                    event: now,
                    entries: (first, first + count),
                    may_only_fault,
                }),
            }
            if page.may_be_walked
                && let Some(index) = made_valid
            {
                let may_be_walked = table_memory::check_unlinked(
                    Trees::new(&self.memory, &self.tables),
                    &self.stale,
                    &self.cpus,
                    address + index as u64 * 8,
                    &mut self.report,
                );
                self.memory.page_mut(number).may_be_walked = may_be_walked;
            }
            return;
        }
        page.mark_written(first, count);
        let mut changes: Vec<Change> = (0..count)
            .filter_map(|index| {
                let old = page.value(first + index);
                let new = next(index, old);
                (old != new).then_some(Change {
                    index: first + index,
                    location: address + index as u64 * 8,
                    old,
                    new,
                })
            })
            .collect();
        let stored = changes.iter().map(|change| (change.location, change.new));
        let misused = self.misused_tables(by.cpu, number, stored);
        changes.retain(|it| !misused.iter().any(|table| table.contains(&it.location)));
        if !changes.is_empty() {
            self.change_reachable(by, number, &changes);
        }
    }

    /// Stores to a page with tables that walkers can reach.
    fn change_reachable(&mut self, by: Storer, number: u64, changes: &[Change]) {
        let mut paths = self.paths_to(number);
        let trees = Trees::new(&self.memory, &self.tables);
        for (id, paths) in &paths {
            for change in changes {
                let stored = Stored {
                    cpu: by.cpu,
                    location: change.location,
                    old: change.old,
                    new: change.new,
                    visibility: by.visibility,
                };
                self.updates
                    .check(trees, *id, paths, stored, &mut self.report);
            }
        }
        let mut unlinked = false;
        for (id, paths) in &paths {
            unlinked |= self.replace(by.cpu, *id, paths, changes);
        }
        let roots: BTreeSet<RootId> = paths
            .iter()
            .flat_map(|(_, paths)| paths.iter().map(|path| path.root))
            .collect();
        let were_empty: Vec<RootId> = roots
            .iter()
            .copied()
            .filter(|id| self.tables.was_empty(*id))
            .collect();
        roots.iter().for_each(|id| self.tables.touch(*id));
        if unlinked {
            // Some tables that point back to themselves may be gone now.
            paths = self.paths_to(number);
        }
        let now = self.report.now();
        let page = self.memory.page_mut(number);
        let mut made_valid = None;
        for change in changes {
            page.values_mut()[change.index] = change.new;
            if change.old & descriptor::VALID == 0 && change.new & descriptor::VALID != 0 {
                page.mark_fresh(change.index, now, by.cpu);
                made_valid = Some(change.location);
            }
        }
        let state = &mut self.cpus[by.cpu];
        let takes_faults = self.config.policies.has(Policy::SpuriousFaults);
        if let Some(location) = made_valid {
            state.made_valid = (now, location);
        }
        let first = paths.first().and_then(|(_, paths)| paths.first());
        let root = first.and_then(|path| self.tables.root(path.root));
        let regime = root.map_or(Regime::El10, |root| root.key.context.space.regime());
        // An entry that was invalid and stays invalid faults, whichever value the walker sees.
        if let Some(change) = changes.iter().find(|Change { old, new, .. }| {
            (old | new) & descriptor::VALID != 0
                && !(takes_faults && descriptor::may_only_fault(*old, *new, regime))
        }) {
            state.stored = (now, change.location);
        }
        if changes
            .iter()
            .any(|change| change.new & descriptor::VALID != 0)
            && self.memory.has_lines_for_others()
        {
            // Memory that was stored before may be mapped only now, or be executable only now.
            self.caches.note_change();
        }
        for (id, paths) in &paths {
            self.make(by, *id, paths, changes);
        }
        for id in were_empty {
            self.fill_parked(id);
        }
    }

    /// A tree that was empty has entries: they meet what its CPUs kept of others.
    fn fill_parked(&mut self, id: RootId) {
        if self.tables.is_empty(&self.memory, id) {
            return;
        }
        let walking = self.tables.root(id).map_or(0, |root| root.walking);
        for cpu in (0..self.cpus.count()).filter(|cpu| walking & (1 << cpu) != 0) {
            self.check_asid(cpu, id);
            self.displace(cpu, id);
            self.check_tree_made(cpu, id);
        }
    }

    fn paths_to(&self, number: u64) -> Vec<(TableId, Vec<Path>)> {
        let trees = Trees::new(&self.memory, &self.tables);
        let tables = trees.tables_in(number).iter();
        tables.map(|&id| (id, trees.paths(id))).collect()
    }

    fn index_in(&self, id: TableId, location: u64) -> Option<u64> {
        let table = self.tables.table(id)?;
        let index = location.checked_sub(table.base)? / 8;
        (index < table.entries).then_some(index)
    }

    /// Before the stores: makes the entries stale that they replace in a table. Returns whether
    /// tables were unlinked.
    fn replace(&mut self, cpu: u32, id: TableId, paths: &[Path], changes: &[Change]) -> bool {
        if changes
            .iter()
            .all(|change| change.old & descriptor::VALID == 0)
        {
            return false;
        }
        let Some((level, format)) = self
            .tables
            .table(id)
            .map(|table| (table.level, table.format))
        else {
            return false;
        };
        let shift = format.granule.level_shift(level);
        for path in paths {
            let mut ranges = StaleRanges::default();
            for change in changes {
                let kind = descriptor::kind(change.old, level, format);
                let (Some(index), true) = (
                    self.index_in(id, change.location),
                    kind != EntryKind::Invalid,
                ) else {
                    continue;
                };
                let replaced = Replaced {
                    cpus: self.holders(path),
                    settle: Settle::Dsb(cpu),
                    removed: descriptor::kind(change.new, level, format) == EntryKind::Invalid,
                    all: true,
                    event: self.report.now(),
                    by: Some(self.cpus.actor(cpu)),
                };
                let entry = EntryAt {
                    raw: change.old,
                    kind,
                    level,
                    shift,
                    va: path.at.va + (index << shift),
                    location: change.location,
                    hierarchy: path.at.hierarchy,
                };
                let trees = Trees::new(&self.memory, &self.tables);
                snapshot::entry(trees, path, &entry, replaced, &mut ranges);
            }
            snapshot::add(&self.memory, &self.tables, &mut self.stale, ranges);
        }
        let mut unlinked = false;
        for change in changes {
            if descriptor::kind(change.old, level, format) == EntryKind::Table
                && let Some(index) = self.index_in(id, change.location)
            {
                self.tables.unlink(&mut self.memory, id, index, change.old);
                unlinked = true;
            }
        }
        unlinked
    }

    /// The CPUs that may hold entries of the tree of a path.
    fn holders(&self, path: &Path) -> u64 {
        self.tables.root(path.root).map_or(0, |root| root.holders)
    }

    /// After the stores: links and compares the new entries of a table.
    fn make(&mut self, by: Storer, id: TableId, paths: &[Path], changes: &[Change]) {
        let Some((level, format)) = self
            .tables
            .table(id)
            .map(|table| (table.level, table.format))
        else {
            return;
        };
        let mut new_tables = Vec::new();
        let mut globals = Spans::default();
        let mut touched: Option<(u64, u64)> = None;
        for &Change { location, new, .. } in changes {
            let Some(index) = self.index_in(id, location) else {
                continue;
            };
            touched = Some(touched.map_or((index, index), |(from, _)| (from, index)));
            match descriptor::kind(new, level, format) {
                EntryKind::Invalid => {}
                EntryKind::Leaf => {
                    if new & descriptor::NOT_GLOBAL == 0 {
                        globals.add(index, index);
                    }
                    if descriptor::refuses(new, level, format) {
                        self.blocks.note(location, self.report.now());
                    }
                }
                EntryKind::Table => {
                    globals.add(index, index);
                    self.table_memory.check_target(
                        &self.memory,
                        by.cpu,
                        (new, location),
                        format,
                        &mut self.report,
                    );
                    self.tables
                        .link(&mut self.memory, id, index, new, &mut new_tables);
                }
            }
        }
        let Some((from, to)) = touched else { return };
        let root = paths.first().and_then(|path| self.tables.root(path.root));
        let context = root.map(|root| root.key.context);
        for change in changes {
            if let (Some(context), Some(_)) = (&context, self.index_in(id, change.location)) {
                let entry = (change.new, level, change.location);
                address_size::check(by.cpu, context, entry, &mut self.report);
            }
        }
        for path in paths {
            for (from, to) in globals.iter() {
                self.note_globals(path, from, to);
            }
        }
        let walks = Walks::of(paths.iter().filter_map(|path| self.tables.root(path.root)));
        self.check_new_tables(by.cpu, &new_tables, Some(by.visibility), walks);
        let shift = format.granule.level_shift(level);
        for path in paths {
            let first = path.at.va + (from << shift);
            let last = path.at.va + (to << shift) + ((1 << shift) - 1);
            self.check_made(path, (first, last), self.holders(path));
        }
        self.groups.check(
            Trees::new(&self.memory, &self.tables),
            &self.config,
            by.cpu,
            (id, from, to),
            paths.first(),
            &mut self.report,
        );
    }

    /// Compares the entries of a table that translate some addresses and that some CPUs may find
    /// from now on.
    pub(super) fn check_made(&mut self, path: &Path, range: (u64, u64), cpus: u64) {
        break_before_make::check(
            Trees::new(&self.memory, &self.tables),
            &mut self.stale,
            &self.cpus,
            &self.config,
            Made { path, range, cpus },
            &mut self.report,
        );
    }

    /// Notes the global leaves between two entries of a table, or below them.
    fn note_globals(&mut self, path: &Path, from: u64, to: u64) {
        let Some(key) = self.tables.root(path.root).map(|root| root.key) else {
            return;
        };
        let shift = key.context.format.granule.level_shift(path.at.level);
        let first = path.at.va + (from << shift);
        let last = path.at.va + (to << shift) + ((1 << shift) - 1);
        let trees = Trees::new(&self.memory, &self.tables);
        for leaf in trees.globals(&key, &path.at, (first, last)) {
            self.tables.add_global(path.root, (leaf.va, leaf.last()));
        }
    }

    /// A CPU loaded a descriptor. It is the last one stored there, or what hardware made of that;
    /// from here on it is the one that was loaded.
    pub(super) fn found(&mut self, cpu: u32, address: u64, descriptor: u64) {
        let old = self.memory.load(address);
        if old == descriptor {
            return;
        }
        let trees = Trees::new(&self.memory, &self.tables);
        lost_update::check_found(trees, cpu, (address, old, descriptor), &mut self.report);
        let index = (address >> 3) as usize % PER_PAGE;
        let page = self.memory.page_mut(address >> PAGE_SHIFT);
        page.mark_written(index, 1);
        page.values_mut()[index] = descriptor;
    }

    /// Updates a leaf as the MMU of some CPU does with TCR.HA and TCR.HD: sets the access flag of
    /// the leaf at a physical address, and with `dirty` makes a clean writable page dirty. An entry
    /// that is not a leaf with the bits for it stays as it is. Returns whether anything changed.
    pub fn update_by_hardware(&mut self, address: u64, dirty: bool) -> bool {
        let old = self.memory.load(address);
        let mut new = old | descriptor::ACCESSED;
        if dirty {
            let trees = Trees::new(&self.memory, &self.tables);
            new = descriptor::made_dirty(new, trees.regime_at(address));
        }
        if old & descriptor::VALID == 0 || new == old {
            return false;
        }
        let index = (address >> 3) as usize % PER_PAGE;
        self.memory.page_mut(address >> PAGE_SHIFT).values_mut()[index] = new;
        true
    }

    /// Whether the TLB of some CPU may still hold the contiguous group that translated an address, where the leaf
    /// is clean and has no hint any more. By such an entry a CPU with TCR.HD may mark any member of the group dirty,
    /// whichever it writes (RXDPXQ).
    #[must_use]
    pub fn may_mark_another_member(&self, regime: Regime, va: u64) -> bool {
        let mut may = false;
        self.stale.visit(Space::of(regime, va), va, va, |stale| {
            let value = stale.entry_value(0);
            may |= stale.kind == StaleKind::Leaf
                && value & descriptor::CONTIGUOUS != 0
                && descriptor::made_dirty(value, regime) != value
                && self.tables.context(stale.context).hardware_dirty;
        });
        may
    }
}
