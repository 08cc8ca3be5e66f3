//! Writes of translation registers, and the trees that CPUs walk because of them.

use super::Model;
use crate::arch::context::{RootKey, Space};
use crate::arch::descriptor::{self, Kind};
use crate::arch::regime::Regime;
use crate::rules;
use crate::rules::cache_visibility::{self, Walks};
use crate::state::caches::line_mask;
use crate::state::cpu::Cpu;
use crate::state::ids::{RootId, pages_of};
use crate::state::snapshot::{self, Replaced};
use crate::state::stale_range::Settle;
use crate::state::tables::Path;
use crate::state::trees::Trees;
use crate::state::walk::TableAt;
use granule_trace::System;
use std::collections::BTreeSet;

impl Model {
    /// Resets the CPU.
    pub(super) fn reset(&mut self, cpu: u32) {
        let bit = 1 << cpu;
        let now = self.report.now();
        let ids: Vec<RootId> = self.tables.roots().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(root) = self.tables.root_mut(id) {
                if root.walking & bit != 0 {
                    root.left = now;
                }
                root.walking &= !bit;
                root.lingering &= !bit;
            }
        }
        let kept = &self.cpus[cpu];
        // Stores made before the reset keep their state.
        let (dsb, own_dsb, stored) = (kept.dsb, kept.own_dsb, kept.stored);
        self.cpus[cpu] = Cpu {
            dsb,
            own_dsb,
            stored,
            ..Cpu::new(self.config.cpus, self.config.tlb_unknown_at_reset)
        };
        self.start(cpu);
    }

    /// The CPU's first event: it has fetched its code and loaded its data with the MMU off.
    pub(super) fn start(&mut self, cpu: u32) {
        self.cpus[cpu].started = true;
        self.cpus[cpu].unknown_code = self.config.caches_unknown_at_reset;
        self.caches.note_change();
        // No event gives the state of this CPU's instruction caches: the CPU that switched it on is
        // responsible for them.
        cache_visibility::check_past_caches(&self.memory, cpu, false, &mut self.report);
    }

    /// A write (MSR) of a translation register.
    pub(super) fn write_register(
        &mut self,
        cpu: u32,
        regime: Regime,
        register: System,
        value: u64,
    ) {
        let report = &mut self.report;
        let state = &mut self.cpus[cpu];
        let old = *state.registers_of(regime);
        let mut new = old;
        new.set(register, value);
        state.registers[regime.index()] = new;
        let before = state.unsynchronised;
        state.unsynchronised = before.or(Some(report.now()));
        if new.mmu_on() && !old.mmu_on() {
            rules::registers::check_mmu_on((cpu, state), regime, before, report);
        }
        if old.mmu_on() && !new.mmu_on() {
            cache_visibility::check_past_caches(&self.memory, cpu, true, report);
        }
        self.caches.note_change();
        for space in Space::all().filter(|space| space.regime() == regime) {
            let registers = (&old, &new);
            let report = &mut self.report;
            rules::registers::check_fields_in_use(&self.config, cpu, space, registers, report);
            self.switch_root(cpu, space, new.root(space, &self.config));
        }
    }

    /// The CPU walks another tree, or none, from now on (or from its next ISB).
    fn switch_root(&mut self, cpu: u32, space: Space, key: Option<RootKey>) {
        let bit = 1u64 << cpu;
        let now = self.report.now();
        let old = self.cpus[cpu].roots[space.index()];
        let old_key = old.and_then(|id| self.tables.root(id)).map(|root| root.key);
        if old_key == key {
            return;
        }
        if let Some(root) = old.and_then(|id| self.tables.root_mut(id)) {
            root.lingering |= bit;
            self.cpus[cpu].left.extend(old);
        }
        let state = &mut self.cpus[cpu];
        let Some(key) = key else {
            state.roots[space.index()] = None;
            state.ceased[space.index()] = now;
            return;
        };
        let fields = key.fields();
        if state.fields[space.index()].is_some_and(|held| held.contradict(&fields)) {
            let regime = space.regime().index();
            state.field_changed[regime].get_or_insert(now);
        }
        state.fields[space.index()] = Some(fields);
        let mut new_tables = Vec::new();
        let id = match self.tables.find_root(&key) {
            Some(id) => id,
            None => {
                self.table_memory.check_owner(
                    &self.memory,
                    cpu,
                    (key.base, None),
                    key.context.format,
                    &mut self.report,
                );
                let id = self.tables.add_root(&mut self.memory, key, &mut new_tables);
                let top = TableAt::top(&key);
                let trees = Trees::new(&self.memory, &self.tables);
                if trees.has_global(&key, &top, 0, top.entries - 1) {
                    self.tables.set_global(id);
                }
                id
            }
        };
        let Some(root) = self.tables.root_mut(id) else {
            return;
        };
        root.walking |= bit;
        root.holders |= bit;
        root.lingering &= !bit;
        let has_global = root.has_global;
        let walks = Walks::of(std::iter::once(&*root));
        self.cpus[cpu].roots[space.index()] = Some(id);
        self.check_new_tables(cpu, &new_tables, None, walks);
        let trees = Trees::new(&self.memory, &self.tables);
        self.ordering
            .check_walker(trees, &self.cpus, (cpu, id), &mut self.report);
        if old_key.is_some_and(|old| old.context.cached_walks != key.context.cached_walks) {
            self.check_tree_lines(cpu, &key, walks);
        }
        self.displace(cpu, id, &key, has_global);
        let path = Path {
            root: id,
            at: TableAt::top(&key),
        };
        self.check_made(&path, (key.context.base(), key.last()), bit);
    }

    /// Makes stale what the CPU may hold of other trees and a lookup in the new tree may find.
    fn displace(&mut self, cpu: u32, new: RootId, key: &RootKey, has_global: bool) {
        let bit = 1u64 << cpu;
        let space = key.context.space;
        let ids: BTreeSet<RootId> = if has_global {
            self.tables.roots().map(|(id, _)| id).collect()
        } else {
            let mut ids = self.tables.roots_of(space, key.asid);
            ids.extend(self.tables.with_global());
            ids
        };
        self.memory.visit(ids.len() as u64);
        let others: Vec<(RootId, bool)> = ids
            .into_iter()
            .filter_map(|id| Some((id, self.tables.root(id)?)))
            .filter(|(id, root)| {
                *id != new && root.key.context.space == space && root.holders & bit != 0
            })
            .filter_map(|(id, root)| {
                let same_asid = match (root.key.asid, key.asid) {
                    (Some(a), Some(b)) => a == b,
                    _ => true,
                };
                let all = same_asid || has_global;
                (all || root.has_global).then_some((id, all))
            })
            .collect();
        for (id, all) in others {
            let Some(root) = self.tables.root(id) else {
                continue;
            };
            let settle = if root.walking & bit != 0 {
                Settle::Isb(cpu)
            } else {
                Settle::At(root.left)
            };
            let replaced = Replaced {
                cpus: bit,
                settle,
                removed: false,
                all,
                event: self.report.now(),
            };
            let trees = Trees::new(&self.memory, &self.tables);
            let ranges = snapshot::tree(trees, root, replaced);
            snapshot::add(&self.memory, &self.tables, &mut self.stale, ranges);
            if all && let Some(root) = self.tables.root_mut(id) {
                root.walking &= !bit;
                root.lingering &= !bit;
                root.holders &= !bit;
                self.tables.drop_root_if_unused(&mut self.memory, id);
            }
        }
    }

    /// Checks the tables of a tree whose walks become cached or uncached: walkers then read them
    /// from another place.
    fn check_tree_lines(&mut self, cpu: u32, key: &RootKey, walks: Walks) {
        let top = TableAt::top(key);
        let mut tables = vec![(top.base, top.entries * 8)];
        let format = key.context.format;
        let whole = (key.context.base(), key.last());
        Trees::new(&self.memory, &self.tables).entries(key, whole, |entry| {
            if entry.kind == Kind::Table {
                let base = descriptor::table_address(entry.raw, format);
                tables.push((base, 1 << format.granule.shift()));
            }
        });
        for (base, bytes) in tables {
            for number in pages_of(base, bytes) {
                let lines = (number, line_mask(number, base, bytes));
                let report = &mut self.report;
                cache_visibility::check_walked(&self.memory, cpu, lines, walks, report);
            }
        }
    }
}
