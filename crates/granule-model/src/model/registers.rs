//! Writes of translation registers, and the trees that CPUs walk because of them.

use super::Model;
use super::unchecked::{MOST_UNCHECKED, Unchecked};
use crate::arch::context::{Fields, Registers, RootKey, Space};
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;
use crate::rules;
use crate::rules::cache_visibility::{self, Walks};
use crate::rules::shape::Change;
use crate::rules::{asid_sizes, held_together};
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

/// The most trees that a CPU's comparisons are kept for.
const MOST_COMPARED: usize = 1 << 12;

impl Model {
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
                // Where its TLB is unknown when it starts again, all of it must be invalidated first.
                if self.config.tlb_unknown_at_reset {
                    root.holders &= !bit;
                }
            }
            self.tables.drop_root_if_unused(&mut self.memory, id);
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
        // Stage 2 translates nothing for the hypervisor that writes its registers: what they must not be
        // used with is checked where a guest is entered.
        let is_own = regime != Regime::Stage2;
        if is_own && new.mmu_on() && !old.mmu_on() {
            rules::registers::check_mmu_on((cpu, state), regime, before, report);
        }
        if is_own && old.mmu_on() && !new.mmu_on() {
            cache_visibility::check_past_caches(&self.memory, cpu, true, report);
        }
        self.caches.note_change();
        for space in Space::all().filter(|space| space.regime() == regime) {
            let registers = (&old, &new);
            let report = &mut self.report;
            rules::registers::check_fields_in_use(&self.config, cpu, space, registers, report);
            self.check_shape(cpu, space, (&old, &new), before);
            let key = new.root(space, &self.config);
            if key.is_some() {
                self.hold_fields(cpu, space, new.fields(space));
            } else if new.refusal(space, &self.config).is_some() {
                self.refuse(cpu, space);
            }
            self.switch_root(cpu, space, key);
        }
    }

    /// Asks the rule about a half's granule and size, and notes a change that walks have to wait
    /// for.
    fn check_shape(
        &mut self,
        cpu: u32,
        space: Space,
        (old, new): (&Registers, &Registers),
        before: Option<u64>,
    ) {
        let at = space.index();
        if space.regime() != Regime::El10 {
            return;
        }
        if !(old.mmu_on() && new.mmu_on()) {
            // Turning the MMU on has a rule of its own.
            let state = &mut self.cpus[cpu];
            (state.walked[at], state.reshaped[at]) = (false, None);
            return;
        }
        let memory = &self.memory;
        let holds = |key: &RootKey| !TableAt::top(key).is_empty(memory);
        let change = Change {
            space,
            old,
            new,
            before,
        };
        let state = (cpu, &mut self.cpus[cpu]);
        change.check(&self.config, state, holds, &mut self.report);
    }

    /// A CPU translates a half by these fields from now on.
    fn hold_fields(&mut self, cpu: u32, space: Space, fields: Fields) {
        let (at, now) = (space.index(), self.report.now());
        let state = &mut self.cpus[cpu];
        state.walked[at] = true;
        if state.fields[at].is_some_and(|held| held.contradict(&fields)) {
            let since = state.field_changed[at].map_or(now, |(since, _)| since);
            state.field_changed[at] = Some((since, Settle::Isb(cpu)));
        }
        state.fields[at] = Some(fields);
    }

    /// A half goes unchecked if this is so at the CPU's next ISB: fields that are written one after the
    /// other, or before the MMU is turned off, need not fit before.
    fn refuse(&mut self, cpu: u32, space: Space) {
        let waits = |one: &(u32, Space, u64)| (one.0, one.1) == (cpu, space);
        if !self.refused.iter().any(waits) {
            self.refused.push((cpu, space, self.report.now() - 1));
        }
    }

    /// Notes, once for each reason, the halves that a CPU translates by registers that name no tables.
    pub(super) fn leave_unchecked(&mut self, cpu: u32) {
        let config = &self.config;
        let registers = &self.cpus[cpu];
        let (unchecked, refused) = (&mut self.unchecked, &mut self.refused);
        refused.retain(|(of, space, event)| {
            if *of != cpu {
                return true;
            }
            let registers = registers.registers_of(space.regime());
            if let Some(reason) = registers.refusal(*space, config) {
                let known = |one: &Unchecked| one.space == *space && one.reason == reason;
                if unchecked.len() < MOST_UNCHECKED && !unchecked.iter().any(known) {
                    unchecked.push(Unchecked {
                        cpu,
                        event: *event,
                        space: *space,
                        reason,
                    });
                }
            }
            false
        });
    }

    /// The CPU walks another tree, or none, from now on (or from its next ISB).
    fn switch_root(&mut self, cpu: u32, space: Space, key: Option<RootKey>) {
        let bit = 1u64 << cpu;
        let old = self.cpus[cpu].roots[space.index()];
        let old_key = old.and_then(|id| self.tables.root(id)).map(|root| root.key);
        let in_force = space.upper().then(|| {
            let registers = self.cpus[cpu].registers_of(space.regime());
            registers.asid_in_force()
        });
        if old_key == key {
            // The tree stays, and is walked under another ASID.
            if let (Some(id), Some(asid)) = (old, in_force)
                && self.tables.walked_under(id, asid)
            {
                self.displace(cpu, id);
            }
            return;
        }
        if let Some(root) = old.and_then(|id| self.tables.root_mut(id)) {
            root.lingering |= bit;
            self.cpus[cpu].left.extend(old);
        }
        let state = &mut self.cpus[cpu];
        let Some(key) = key else {
            state.roots[space.index()] = None;
            state.ceased[space.index()] = Settle::Isb(cpu);
            return;
        };
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
                for leaf in trees.globals(&key, &top, (key.context.base(), key.last())) {
                    self.tables.add_global(id, (leaf.va, leaf.last()));
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
        let walks = Walks::of(std::iter::once(&*root));
        self.cpus[cpu].roots[space.index()] = Some(id);
        self.check_new_tables(cpu, &new_tables, None, walks);
        let trees = Trees::new(&self.memory, &self.tables);
        self.ordering
            .check_walker(trees, &self.cpus, (cpu, id), &mut self.report);
        if old_key.is_some_and(|old| old.context.cached_walks != key.context.cached_walks) {
            self.check_tree_lines(cpu, &key, walks);
        }
        if let Some(asid) = in_force {
            self.tables.walked_under(id, asid);
        }
        self.check_asid(cpu, id);
        self.displace(cpu, id);
        self.check_tree_made(cpu, id);
    }

    /// Checks that the ASID of a tree that a CPU walks is of one granule.
    pub(super) fn check_asid(&mut self, cpu: u32, id: RootId) {
        let (tables, report) = (&mut self.tables, &mut self.report);
        asid_sizes::check(tables, &self.memory, (cpu, id), report);
    }

    /// Compares a tree that a CPU walks from now on with what the CPU may hold, unless neither has
    /// changed since that was done.
    pub(super) fn check_tree_made(&mut self, cpu: u32, id: RootId) {
        let Some(root) = self.tables.root(id) else {
            return;
        };
        let key = root.key;
        let now = (root.version, self.stale.added(key.context.space));
        let compared = &mut self.cpus[cpu].compared;
        if compared.len() >= MOST_COMPARED {
            compared.clear();
        }
        if compared.insert(id, now) == Some(now) {
            return;
        }
        let path = Path {
            root: id,
            at: TableAt::top(&key),
        };
        self.check_made(&path, (key.context.base(), key.last()), 1 << cpu);
    }

    /// Makes stale what the CPU may hold of other trees and a lookup in the new tree may find.
    pub(super) fn displace(&mut self, cpu: u32, new: RootId) {
        let bit = 1u64 << cpu;
        let Some(root) = self.tables.root(new) else {
            return;
        };
        let (space, asid) = (root.key.context.space, root.key.asid);
        let ids: BTreeSet<RootId> = if root.globals.is_empty() {
            let mut ids = self.tables.roots_of(space, asid);
            ids.extend(self.tables.with_global());
            ids
        } else {
            self.tables.roots().map(|(id, _)| id).collect()
        };
        self.memory.visit(ids.len() as u64);
        let mut others: Vec<(RootId, bool)> = Vec::new();
        for id in ids {
            let held = self
                .tables
                .root(id)
                .is_some_and(|root| root.key.context.space == space && root.holders & bit != 0);
            if id != new && held {
                others.extend(self.displaced(new, id).map(|all| (id, all)));
            }
        }
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
                by: Some(self.cpus.actor(cpu)),
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

    /// Returns the entries of another tree that a lookup in a new one may find in the CPU's TLB:
    /// everything (`true`), global leaves only, or nothing that matters (`None`).
    fn displaced(&mut self, new: RootId, other: RootId) -> Option<bool> {
        let (one, two) = (self.tables.root(new)?, self.tables.root(other)?);
        let space = one.key.context.space;
        let same_asid = match (one.key.asid, two.key.asid) {
            (Some(a), Some(b)) => a == b,
            _ if space.upper() => one.asids.meets(&two.asids),
            _ => true,
        };
        let (has_asid, new_has_global) = (one.key.asid.is_some(), !one.globals.is_empty());
        if same_asid {
            // A kernel parks a CPU on an empty tree while the ASID stays: what the CPU holds is
            // still that of the ASID, and the other tree stays in use.
            let parks = has_asid && space.regime() == Regime::El10;
            return (!parks || !self.tables.is_empty(&self.memory, new)).then_some(true);
        }
        if (one.globals.is_empty() && two.globals.is_empty()) || self.tables.are_apart(new, other) {
            return None;
        }
        let trees = Trees::new(&self.memory, &self.tables);
        let compared = held_together::compare(trees, one, two);
        for (id, globals) in [new, other].into_iter().zip(compared.globals) {
            if let Some(root) = self.tables.root_mut(id) {
                root.globals = globals;
            }
        }
        if compared.alike {
            self.tables.set_apart(new, other);
            return None;
        }
        Some(new_has_global)
    }

    /// Checks the tables of a tree whose walks become cached or uncached: walkers then read them
    /// from another place.
    fn check_tree_lines(&mut self, cpu: u32, key: &RootKey, walks: Walks) {
        let top = TableAt::top(key);
        let mut tables = vec![(top.base, top.entries * 8)];
        let format = key.context.format;
        let whole = (key.context.base(), key.last());
        Trees::new(&self.memory, &self.tables).entries(key, whole, |entry| {
            if entry.kind == EntryKind::Table {
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
