//! Writes of translation registers, and the trees that CPUs walk because of them.

use crate::arch::context::{RootKey, Space, regime_of};
use crate::arch::descriptor::{self, Kind};
use crate::event::Register;
use crate::model::store::Replaced;
use crate::model::{Found, Model};
use crate::rules::reachable::Walks;
use crate::state::cpu::{Cpu, regime_index};
use crate::state::memory::{self, Memory};
use crate::state::stale_range::{Runs, Settle};
use crate::state::tables::{Path, RootId};
use crate::state::walk::{self, TableAt};
use crate::violation::Rule;
use std::collections::BTreeSet;

impl Model {
    /// The CPU starts anew.
    pub(crate) fn reset(&mut self, cpu: u32) {
        let bit = 1 << cpu;
        let now = self.now;
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
        let kept = &self.cpus[cpu as usize];
        // Stores made before stay what they are.
        let (dsb, own_dsb, stored) = (kept.dsb, kept.own_dsb, kept.stored);
        self.cpus[cpu as usize] = Cpu {
            dsb,
            own_dsb,
            stored,
            ..Cpu::new(self.config.cpus, self.config.tlb_unknown_at_reset)
        };
        self.start(cpu);
    }

    /// The CPU does its first thing, which it fetched and found its data for with the MMU off.
    pub(crate) fn start(&mut self, cpu: u32) {
        self.cpus[cpu as usize].started = true;
        self.cpus[cpu as usize].unknown_code = self.config.caches_unknown_at_reset;
        self.lines_changed = true;
        // Its instruction caches are as who switched it on left them, which is not told.
        self.check_past_caches(cpu, false);
    }

    /// MSR.
    pub(crate) fn write_register(&mut self, cpu: u32, register: Register, value: u64) {
        let regime = regime_of(register);
        let index = regime_index(regime);
        let machine = self.config;
        let now = self.now;
        let state = &mut self.cpus[cpu as usize];
        let old = state.registers[index];
        let mut new = old;
        new.set(register, value);
        state.registers[index] = new;
        let before = state.unsynchronised;
        state.unsynchronised = before.or(Some(now));
        if new.mmu_on() && !old.mmu_on() {
            let whole = (0, u64::MAX);
            if let Some(event) = before {
                let found = Found::at(
                    Rule::MissingIsb,
                    cpu,
                    whole,
                    "may start to translate with register values from before (no ISB)",
                );
                self.report(found.because_of(event));
            }
            if std::mem::take(&mut self.cpus[cpu as usize].unknown_tlb[index]) {
                self.report(Found::at(
                    Rule::UnknownTlb,
                    cpu,
                    whole,
                    "may use whatever its TLB held at reset: it was never invalidated",
                ));
            }
        }
        if old.mmu_on() && !new.mmu_on() {
            self.check_past_caches(cpu, true);
        }
        self.lines_changed = true;
        for space in Space::all().filter(|space| space.regime() == regime) {
            let (from, to) = (old.root(space, &machine), new.root(space, &machine));
            if let (Some(from), Some(_)) = (from, to) {
                let moved = old.granule(space) != new.granule(space)
                    || old.ds(regime) != new.ds(regime)
                    || old.output_size(regime) != new.output_size(regime);
                if moved {
                    self.report(Found::at(
                        Rule::FieldInUse,
                        cpu,
                        (from.context.base(), last_of(&from)),
                        "may read the tables with the wrong granule or descriptor format",
                    ));
                }
            }
            self.switch_root(cpu, space, to);
        }
    }

    /// The CPU walks another tree from now on (or from its next ISB), or none.
    fn switch_root(&mut self, cpu: u32, space: Space, key: Option<RootKey>) {
        let bit = 1u64 << cpu;
        let old = self.cpus[cpu as usize].roots[space.index()];
        let old_key = old.and_then(|id| self.tables.root(id)).map(|root| root.key);
        if old_key == key {
            return;
        }
        if let Some(root) = old.and_then(|id| self.tables.root_mut(id)) {
            root.lingering |= bit;
            self.cpus[cpu as usize].left.extend(old);
        }
        let state = &mut self.cpus[cpu as usize];
        let Some(key) = key else {
            state.roots[space.index()] = None;
            state.ceased[space.index()] = self.now;
            return;
        };
        let fields = key.context.fields();
        if state.fields[space.index()].is_some_and(|held| held != fields) {
            let regime = regime_index(space.regime());
            state.field_changed[regime].get_or_insert(self.now);
        }
        state.fields[space.index()] = Some(fields);
        let context = self.context_id(&key.context);
        let mut new_tables = Vec::new();
        let id = match self.tables.find_root(&key) {
            Some(id) => id,
            None => {
                self.check_owner(cpu, key.base, None, key.context.format);
                let id = self
                    .tables
                    .add_root(&mut self.memory, key, context, &mut new_tables);
                let global = self.any_global(&key);
                if global {
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
        self.cpus[cpu as usize].roots[space.index()] = Some(id);
        self.check_new_tables(cpu, &new_tables, None, walks);
        self.check_unseen(cpu, id);
        if old_key.is_some_and(|old| old.context.cached_walks != key.context.cached_walks) {
            self.check_tree_lines(cpu, &key, walks);
        }
        self.displace(cpu, id, &key, has_global);
        let path = Path {
            root: id,
            at: TableAt::top(&key),
        };
        self.meet(&path, key.context.base(), last_of(&key), bit);
    }

    /// What the CPU may hold of other trees, and a lookup in the new one may find, is stale.
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
            let path = Path {
                root: id,
                at: TableAt::top(&root.key),
            };
            let replaced = Replaced {
                settle,
                removed: false,
            };
            let runs = self.snapshot_tree(&path, bit, replaced, all);
            self.add_stale(runs);
            if all && let Some(root) = self.tables.root_mut(id) {
                root.walking &= !bit;
                root.lingering &= !bit;
                root.holders &= !bit;
                self.tables.drop_root_if_unused(&mut self.memory, id);
            }
        }
    }

    /// All that can be reached from a root as stale runs.
    fn snapshot_tree(&self, path: &Path, cpus: u64, replaced: Replaced, all: bool) -> Runs {
        let mut runs = Runs::default();
        let Some(root) = self.tables.root(path.root) else {
            return runs;
        };
        let context = root.key.context;
        let last = last_of(&root.key);
        walk::entries(
            &self.memory,
            &context,
            &path.at,
            context.base(),
            last,
            &mut |entry| {
                if let Some(run) = self.stale_entry(path, entry, cpus, replaced, all) {
                    runs.push(run);
                }
            },
        );
        runs
    }

    /// Walks that begin to be cached, or cease to be, find the tables in another place.
    fn check_tree_lines(&mut self, cpu: u32, key: &RootKey, walks: Walks) {
        let top = TableAt::top(key);
        let mut tables = vec![(top.base, top.entries * 8)];
        let format = key.context.format;
        walk::entries(
            &self.memory,
            &key.context,
            &top,
            key.context.base(),
            last_of(key),
            &mut |entry| {
                if entry.kind == Kind::Table {
                    let base = descriptor::table_address(entry.raw, format);
                    tables.push((base, 1 << format.granule.shift()));
                }
            },
        );
        for (base, bytes) in tables {
            for number in Memory::numbers(base, bytes) {
                let mask = memory::line_mask(number, base, bytes);
                self.check_walked_lines(cpu, number, mask, walks);
            }
        }
    }

    fn any_global(&self, key: &RootKey) -> bool {
        let mut global = false;
        walk::entries(
            &self.memory,
            &key.context,
            &TableAt::top(key),
            key.context.base(),
            last_of(key),
            &mut |entry| {
                global |= entry.kind == Kind::Leaf && entry.raw & descriptor::NOT_GLOBAL == 0;
            },
        );
        global
    }
}

/// The last address that a tree translates.
pub(crate) const fn last_of(key: &RootKey) -> u64 {
    key.context
        .base()
        .wrapping_add((1u64 << key.context.va_bits) - 1)
}
