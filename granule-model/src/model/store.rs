//! Stores of descriptors.
//!
//! A store to a table that no walker can reach is only written down. One to a table that some
//! can reach turns what it replaces into stale runs, links and unlinks tables, and is compared
//! with what may still be cached ([`meet`](crate::rules::break_before_make)).

use crate::arch::descriptor::{self, Kind};
use crate::event::Order;
use crate::model::{Found, Model};
use crate::rules::reachable::Walks;
use crate::state::memory::{self, PAGE_SHIFT, PER_PAGE};
use crate::state::stale_range::{Run, RunKind, Runs, Settle};
use crate::state::tables::{Path, TableId};
use crate::state::walk::{self, EntryAt};
use crate::violation::Rule;

/// What a stale run that is kept counts among visits: it takes memory.
const VISITS_OF_A_RUN: u64 = 32;

/// A change of one entry of a page: index, before, after.
type Change = (usize, u64, u64);

/// Who stores, and what it means for what was there before.
#[derive(Clone, Copy)]
pub(crate) struct Replaced {
    pub(crate) settle: Settle,
    /// Replaced by an invalid entry.
    pub(crate) removed: bool,
}

impl Model {
    /// `count` descriptors from `address`: what `next` makes of the index and the old value.
    pub(crate) fn store_run(
        &mut self,
        cpu: u32,
        address: u64,
        count: u64,
        order: Order,
        next: impl Fn(u64, u64) -> u64,
    ) {
        let mut done = 0;
        while done < count {
            let at = address + done * 8;
            let first = (at >> 3) as usize % PER_PAGE;
            let some = (PER_PAGE - first).min((count - done) as usize);
            self.store_in_page(cpu, at, first, some, order, |index, old| {
                next(done + index as u64, old)
            });
            done += some as u64;
        }
    }

    fn store_in_page(
        &mut self,
        cpu: u32,
        address: u64,
        first: usize,
        count: usize,
        order: Order,
        next: impl Fn(usize, u64) -> u64,
    ) {
        let number = address >> PAGE_SHIFT;
        let mask = memory::line_mask(number, address, count as u64 * 8);
        self.lines_stored(cpu, number, mask);
        let now = self.now;
        let page = self.memory.page_mut(number);
        page.mark_written(first, count);
        if page.tables.is_empty() {
            let mut made_valid = None;
            let values = page.values_mut();
            for index in 0..count {
                let value = &mut values[first + index];
                let new = next(index, *value);
                if new & descriptor::VALID != 0 && new != *value {
                    made_valid = Some(index);
                }
                *value = new;
            }
            match page.pending.iter_mut().find(|(other, _)| *other == cpu) {
                Some(pending) => pending.1 = now,
                None => page.pending.push((cpu, now)),
            }
            if page.may_be_walked
                && let Some(index) = made_valid
            {
                self.stored_in_unlinked(address + index as u64 * 8);
            }
            return;
        }
        let changes: Vec<Change> = (0..count)
            .filter_map(|index| {
                let old = page.value(first + index);
                let new = next(index, old);
                (old != new).then_some((first + index, old, new))
            })
            .collect();
        if !changes.is_empty() {
            self.change_live(cpu, number, &changes, order);
        }
    }

    /// A valid entry was stored in a table that was unlinked once.
    fn stored_in_unlinked(&mut self, location: u64) {
        let number = location >> PAGE_SHIFT;
        self.memory.visit(self.stale.table_buckets());
        let contexts = &self.contexts;
        let pointing =
            self.stale
                .pointing_into(number << PAGE_SHIFT, 1 << PAGE_SHIFT, |run, index| {
                    let context = &contexts[run.context as usize];
                    descriptor::table_address(run.entry_value(index), context.format)
                });
        match pointing {
            Some(run) => {
                let found = Found::of_run(
                    Rule::UnlinkedInUse,
                    &run,
                    "may find the entry through a cached pointer to the unlinked table",
                );
                self.report_of_run(found.located(location), &run);
            }
            None => self.memory.page_mut(number).may_be_walked = false,
        }
    }

    fn change_live(&mut self, cpu: u32, number: u64, changes: &[Change], order: Order) {
        let page_base = number << PAGE_SHIFT;
        let mut paths = self.paths_to(number);
        for (id, paths) in &paths {
            for &(index, old, new) in changes {
                let location = page_base + index as u64 * 8;
                self.check_update(cpu, *id, paths, location, (old, new), order);
            }
        }
        let mut unlinked = false;
        for (id, paths) in &paths {
            unlinked |= self.replace(cpu, *id, paths, page_base, changes);
        }
        if unlinked {
            // Where tables point back to themselves some of them may be gone now.
            paths = self.paths_to(number);
        }
        let now = self.now;
        let page = self.memory.page_mut(number);
        let mut made_valid = None;
        for &(index, old, new) in changes {
            page.values_mut()[index] = new;
            if old & descriptor::VALID == 0 && new & descriptor::VALID != 0 {
                page.mark_fresh(index, now, cpu);
                made_valid = Some(page_base + index as u64 * 8);
            }
        }
        let state = &mut self.cpus[cpu as usize];
        if let Some(location) = made_valid {
            state.made_valid = (now, location);
        }
        // What was invalid and stays so is a fault to a walker, whichever value it sees.
        if let Some((index, ..)) = changes
            .iter()
            .find(|(_, old, new)| (old | new) & descriptor::VALID != 0)
        {
            state.stored = (now, page_base + *index as u64 * 8);
        }
        for (id, paths) in &paths {
            self.made(cpu, *id, paths, page_base, changes, order);
        }
    }

    /// The tables in a page, with all ways to each.
    fn paths_to(&self, number: u64) -> Vec<(TableId, Vec<Path>)> {
        let tables = self
            .memory
            .page(number)
            .map_or(&[][..], |page| &page.tables);
        tables
            .iter()
            .map(|&id| (id, self.tables.paths(&self.memory, id, &self.contexts)))
            .collect()
    }

    /// The indices of a table that the changes of a page concern.
    fn index_in(&self, id: TableId, location: u64) -> Option<u64> {
        let table = self.tables.table(id)?;
        let index = location.checked_sub(table.base)? / 8;
        (index < table.entries).then_some(index)
    }

    /// Before the stores: what they replace in a table becomes stale. Whether tables were
    /// unlinked.
    fn replace(
        &mut self,
        cpu: u32,
        id: TableId,
        paths: &[Path],
        page_base: u64,
        changes: &[Change],
    ) -> bool {
        if changes
            .iter()
            .all(|(_, old, _)| old & descriptor::VALID == 0)
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
        for path in paths {
            let mut runs = Runs::default();
            for &(index, old, new) in changes {
                let location = page_base + index as u64 * 8;
                let kind = descriptor::kind(old, level, format);
                let (Some(index), true) = (self.index_in(id, location), kind != Kind::Invalid)
                else {
                    continue;
                };
                let replaced = Replaced {
                    settle: Settle::Dsb(cpu),
                    removed: descriptor::kind(new, level, format) == Kind::Invalid,
                };
                let shift = format.granule.level_shift(level);
                let entry = EntryAt {
                    raw: old,
                    kind,
                    level,
                    shift,
                    va: path.at.va + (index << shift),
                    location,
                    hierarchy: path.at.hierarchy,
                };
                let holders = self.tables.root(path.root).map_or(0, |root| root.holders);
                self.snapshot_entry(path, &entry, holders, replaced, true, &mut runs);
            }
            self.add_stale(runs);
        }
        let mut unlinked = false;
        for &(index, old, _) in changes {
            let location = page_base + index as u64 * 8;
            if descriptor::kind(old, level, format) == Kind::Table
                && let Some(index) = self.index_in(id, location)
            {
                self.tables.unlink(&mut self.memory, id, index, old);
                unlinked = true;
            }
        }
        unlinked
    }

    /// Turns an entry, and all that can be reached through it, into stale runs of `cpus`. With
    /// `all` false only global leaves.
    pub(crate) fn snapshot_entry(
        &self,
        path: &Path,
        entry: &EntryAt,
        cpus: u64,
        replaced: Replaced,
        all: bool,
        runs: &mut Runs,
    ) {
        let Some(root) = self.tables.root(path.root) else {
            return;
        };
        let context = root.key.context;
        let mut push = |entry: &EntryAt| {
            if let Some(run) = self.stale_entry(path, entry, cpus, replaced, all) {
                runs.push(run);
            }
        };
        push(entry);
        if entry.kind == Kind::Table {
            walk::entries(
                &self.memory,
                &context,
                &path.at.below(entry.raw, entry.va, &context),
                entry.va,
                entry.last(),
                &mut push,
            );
        }
    }

    pub(crate) fn stale_entry(
        &self,
        path: &Path,
        entry: &EntryAt,
        cpus: u64,
        replaced: Replaced,
        all: bool,
    ) -> Option<Run> {
        let root = self.tables.root(path.root)?;
        let context = &root.key.context;
        let global = context.space.regime() != crate::event::tlbi::Regime::El10
            || entry.raw & descriptor::NOT_GLOBAL == 0;
        let (kind, asid) = match entry.kind {
            Kind::Invalid => return None,
            Kind::Leaf => {
                if !descriptor::cacheable(entry.raw, context) || (!all && !global) {
                    return None;
                }
                (RunKind::Leaf, if global { None } else { root.key.asid })
            }
            Kind::Table if !all => return None,
            Kind::Table => (RunKind::Table, root.key.asid),
        };
        Some(Run {
            va: entry.va,
            shift: entry.shift,
            count: 1,
            level: entry.level,
            kind,
            value: entry.raw,
            step: 0,
            hierarchy: entry.hierarchy,
            context: root.context,
            asid,
            maybe_global: kind == RunKind::Table
                && (root.has_global || context.space.upper() || root.key.asid.is_none()),
            location: entry.location,
            cpus,
            event: self.now,
            settle: replaced.settle,
            removed: replaced.removed,
            missed: None,
            reported: false,
            harmless: false,
        })
    }

    pub(crate) fn add_stale(&mut self, runs: Runs) {
        let runs = runs.finish();
        self.memory.visit(VISITS_OF_A_RUN * runs.len() as u64);
        for run in runs {
            let space = self.space_of(&run);
            let compared = self.stale.add(space, &run);
            self.memory.visit(compared);
        }
    }

    /// After the stores: what they made in a table is linked and compared.
    fn made(
        &mut self,
        cpu: u32,
        id: TableId,
        paths: &[Path],
        page_base: u64,
        changes: &[Change],
        order: Order,
    ) {
        let Some((level, format)) = self
            .tables
            .table(id)
            .map(|table| (table.level, table.format))
        else {
            return;
        };
        let mut new_tables = Vec::new();
        let mut linked = false;
        let mut global = false;
        let mut touched: Option<(u64, u64)> = None;
        for &(index, _, new) in changes {
            let location = page_base + index as u64 * 8;
            let Some(index) = self.index_in(id, location) else {
                continue;
            };
            touched = Some(touched.map_or((index, index), |(from, _)| (from, index)));
            match descriptor::kind(new, level, format) {
                Kind::Invalid => {}
                Kind::Leaf => {
                    global |= new & descriptor::NOT_GLOBAL == 0;
                    if descriptor::refuses(new, level, format) {
                        self.suspect_blocks.insert(location, self.now);
                    }
                }
                Kind::Table => {
                    linked = true;
                    self.check_target(cpu, new, location, format);
                    self.tables
                        .link(&mut self.memory, id, index, new, &mut new_tables);
                }
            }
        }
        let Some((from, to)) = touched else { return };
        let shift = format.granule.level_shift(level);
        for path in paths {
            if linked {
                global |= self.has_global_below(path, from, to);
            }
            if global {
                self.tables.set_global(path.root);
            }
        }
        let walks = Walks::of(paths.iter().filter_map(|path| self.tables.root(path.root)));
        self.check_new_tables(cpu, &new_tables, Some(order), walks);
        for path in paths {
            let first = path.at.va + (from << shift);
            let last = path.at.va + (to << shift) + ((1 << shift) - 1);
            let holders = self.tables.root(path.root).map_or(0, |root| root.holders);
            self.meet(path, first, last, holders);
        }
        self.check_groups(cpu, id, from, to, paths.first());
    }

    /// Whether a tree that had no global leaf has one now between two entries of a table.
    fn has_global_below(&self, path: &Path, from: u64, to: u64) -> bool {
        let Some(root) = self.tables.root(path.root) else {
            return false;
        };
        if root.has_global {
            return true;
        }
        let context = root.key.context;
        let shift = context.format.granule.level_shift(path.at.level);
        let mut global = false;
        walk::entries(
            &self.memory,
            &context,
            &path.at,
            path.at.va + (from << shift),
            path.at.va + (to << shift) + ((1 << shift) - 1),
            &mut |entry| {
                global |= entry.kind == Kind::Leaf && entry.raw & descriptor::NOT_GLOBAL == 0;
            },
        );
        global
    }
}
