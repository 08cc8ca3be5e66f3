//! TLBIs: each waits for a DSB, which removes the stale entries that the TLBI must remove.
//!
//! A stale entry that the TLBI need not remove stays, with the reason, so that a violation can name
//! the invalidation that did not help.

use super::Model;
use crate::arch::context::Space;
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;
use crate::arch::tlbi::{Tlbi, TlbiScope};
use crate::rules::tlbi_operand;
use crate::state::cpu::{Guest, PendingTlbi};
use crate::state::ids::{PAGE_SHIFT, RootId};
use crate::state::invalidation::{self, Removes, must_remove};
use crate::state::stale_range::{Settle, StaleKind, StaleRange};
use crate::state::stale_tlb::Fate;
use crate::state::tables::Table;
use crate::state::trees::Trees;
use crate::state::walk;
use crate::violation::Miss;
use granule_trace::System;

/// A TLBI as far as it concerns one half: the addresses, and the CPUs that it reaches.
struct Part {
    space: Space,
    first: u64,
    last: u64,
    mask: u64,
    pending: PendingTlbi,
}

/// The levels of a walk, for the count of entries looked at.
const LEVELS: u64 = 4;
/// Stale ranges kept for a CPU between their invalidation and its ISB.
const MOST_DRAINING: usize = 1 << 16;

impl Model {
    /// Issues a TLBI, which a DSB has to complete.
    pub(super) fn tlbi(&mut self, cpu: u32, system: System, op: Tlbi) {
        let state = &mut self.cpus[cpu];
        let ds = state.registers_of(op.regime).ds(op.regime);
        let stage2 = state.registers_of(Regime::Stage2);
        let guest = Guest {
            vmid: stage2.vmid(),
            in_host: stage2.in_host(),
        };
        let pending = PendingTlbi {
            op,
            removes: invalidation::read(op, ds, &self.config, guest.vmid),
            event: self.report.now(),
            dsb: state.dsb,
            synchronised: state.unsynchronised.is_none(),
            guest,
        };
        match state.tlbis.last_mut() {
            // A repeated TLBI removes what the earlier one does, and entries that became stale
            // since.
            Some(last) if last.same_as(&pending) => *last = pending,
            _ => state.tlbis.push(pending),
        }
        let instruction = (system, op.operand);
        tlbi_operand::check(cpu, instruction, pending.removes, &mut self.report);
    }

    /// A DSB completes the TLBIs of a CPU: only the local ones, or (`shared`) all.
    pub(super) fn complete_tlbis(&mut self, cpu: u32, shared: bool) {
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.cpus[cpu].tlbis)
            .into_iter()
            .partition(|one| shared || one.op.scope == TlbiScope::Local);
        self.cpus[cpu].tlbis = waiting;
        self.repeat(cpu, &done);
        // Nothing orders the TLBIs before one DSB: what one of them leaves counts for the others.
        let parts: Vec<Part> = done
            .into_iter()
            .flat_map(|one| self.parts(cpu, one))
            .collect();
        let left: Vec<_> = parts.iter().map(|part| self.pointers_left(part)).collect();
        for (part, pointers) in parts.iter().zip(left) {
            self.complete(cpu, part, &pointers);
        }
    }

    /// Removes what an earlier TLBI of the CPU removed but for an erratum, if a broadcast one that was issued after the
    /// DSB of that is complete.
    fn repeat(&mut self, cpu: u32, done: &[PendingTlbi]) {
        let broadcast = done.iter().filter(|one| one.op.scope != TlbiScope::Local);
        let (false, Some(last)) = (
            self.config.single_tlbi,
            broadcast.map(|one| one.event).max(),
        ) else {
            return;
        };
        for space in Space::all() {
            self.stale.rewrite(space, 0, u64::MAX, |range| {
                self.memory.visit(1);
                if range.once == Some(cpu) && range.settle.is_before(last) {
                    Fate::Remove
                } else {
                    Fate::Keep
                }
            });
        }
    }

    /// The parts of a TLBI, one for each half of each regime that it concerns.
    fn parts(&self, cpu: u32, pending: PendingTlbi) -> Vec<Part> {
        let mask = match pending.op.scope {
            TlbiScope::Local => 1 << cpu,
            TlbiScope::InnerShareable | TlbiScope::OuterShareable => self.cpus.mask(),
        };
        let mut parts = Vec::new();
        let mut add = |regime: Regime, removes: Removes| {
            let pending = PendingTlbi { removes, ..pending };
            let mut part = |space, first, last| {
                parts.push(Part {
                    space,
                    first,
                    last,
                    mask,
                    pending,
                });
            };
            match removes {
                Removes::All | Removes::Asid(_) => {
                    for space in Space::all().filter(|space| space.regime() == regime) {
                        part(space, 0, u64::MAX);
                    }
                }
                Removes::Combined(_) => part(Space::of(regime, 0), 0, u64::MAX),
                Removes::Addresses { first, last, .. } => {
                    part(Space::of(regime, first), first, last);
                }
                Removes::Nothing | Removes::Unpredictable(_) => {}
            }
        };
        add(pending.op.regime, pending.removes);
        if pending.op.regime != Regime::Stage2
            && let Some(removes) = pending.removes_of(Regime::Stage2)
        {
            add(Regime::Stage2, removes);
        }
        parts
    }

    /// Completes a part of a TLBI. `pointers` were left by it.
    fn complete(&mut self, cpu: u32, part: &Part, pointers: &[StaleRange]) {
        self.remove(cpu, part, pointers);
        let pending = &part.pending;
        let regime = part.space.regime();
        if matches!(pending.removes, Removes::All | Removes::Asid(_)) {
            self.release_roots(part.space, part.mask, pending);
            if pending.removes == Removes::All || regime == Regime::Stage2 {
                self.note_emptied(cpu, part.space, part.mask, pending);
            }
        }
    }

    /// The pointers to tables that a TLBI leaves in the TLBs that it reaches, of those on the way to
    /// its addresses.
    fn pointers_left(&self, part: &Part) -> Vec<StaleRange> {
        let mut left = Vec::new();
        if self.stale.table_buckets() == 0 {
            return left;
        }
        self.stale
            .visit(part.space, part.first, part.last, |range| {
                self.memory.visit(1);
                if range.kind == StaleKind::Table
                    && range.cpus & part.mask != 0
                    && self.is_removed(range, &part.pending).is_err()
                {
                    let cpus = range.cpus & part.mask;
                    left.push(StaleRange {
                        cpus,
                        ..range.clone()
                    });
                }
            });
        left
    }

    /// Whether a TLBI removes a stale range from the TLBs that it reaches, or the reason why not.
    fn is_removed(&self, range: &StaleRange, pending: &PendingTlbi) -> Result<(), Miss> {
        let context = self.tables.context(range.context);
        must_remove(pending.removes, range, context).and(match range.settle {
            Settle::At(since) if since < pending.event => Ok(()),
            Settle::At(_) if range.combined => Err(Miss::Stage2Cached),
            Settle::Isb(_) => Err(Miss::RegisterNotInEffect),
            // That DSB would have settled the entries that its own CPU removed.
            _ if range.removed && range.event < pending.dsb => Err(Miss::StoreOfAnotherCpu),
            Settle::At(_) | Settle::Dsb(_) => Err(Miss::StoreNotVisible),
        })
    }

    /// Removes the stale entries that an invalidation must remove from the TLBs of the CPUs that it
    /// reaches.
    fn remove(&mut self, cpu: u32, part: &Part, pointers: &[StaleRange]) {
        let mut draining = std::mem::take(&mut self.cpus[cpu].draining);
        let mut stale = std::mem::take(&mut self.stale);
        stale.rewrite(part.space, part.first, part.last, |range| {
            self.memory.visit(1);
            self.fate(cpu, part, pointers, range, &mut draining)
        });
        self.stale = stale;
        self.cpus[cpu].draining = draining;
    }

    /// The fate of a stale range when a TLBI completes.
    fn fate(
        &self,
        cpu: u32,
        part: &Part,
        pointers: &[StaleRange],
        range: &StaleRange,
        draining: &mut Vec<(Space, StaleRange)>,
    ) -> Fate {
        let own = 1u64 << cpu;
        let (mask, pending) = (part.mask, &part.pending);
        let event = pending.event;
        if range.cpus & mask == 0 {
            return note(range, event, Miss::LocalOnly);
        }
        if let Err(miss) = self.is_removed(range, pending) {
            // The reason of the earlier operation is the more precise one.
            if miss == Miss::Stage2Cached && range.missed.is_some() && !range.combined {
                return Fate::Keep;
            }
            let beyond = range.cpus & !mask;
            if miss == Miss::StoreOfAnotherCpu && beyond != 0 {
                let part = |cpus, miss| StaleRange {
                    cpus,
                    missed: Some(range.missed_or(event, miss)),
                    ..range.clone()
                };
                return Fate::Replace(vec![
                    part(range.cpus & mask, miss),
                    part(beyond, Miss::LocalOnly),
                ]);
            }
            return note(range, event, miss);
        }
        let mut left = Vec::new();
        for (found_again, miss, run) in self.found_again(range, pointers) {
            let removed = run.cpus & mask & !found_again;
            if removed & own != 0 {
                let mut drain = run.clone();
                drain.cpus = own;
                // The list is bounded: a CPU that never executes an ISB loses the oldest of these
                // warnings.
                if draining.len() >= MOST_DRAINING {
                    draining.drain(..MOST_DRAINING / 2);
                }
                draining.push((part.space, drain));
            }
            if !self.config.single_tlbi && pending.op.scope != TlbiScope::Local {
                left.push(StaleRange {
                    cpus: removed,
                    settle: Settle::At(self.report.now()),
                    once: Some(cpu),
                    missed: Some((event, Miss::NotRepeated)),
                    ..run.clone()
                });
            }
            let by_address = matches!(pending.removes, Removes::Addresses { .. });
            if part.space.regime() == Regime::Stage2 && by_address && run.kind == StaleKind::Leaf {
                // An entry that a walk of the guest combined with this one stays until another
                // TLBI, which must come after this one completed: until now a walk may have
                // combined it again.
                left.push(StaleRange {
                    cpus: removed,
                    settle: Settle::At(self.report.now()),
                    combined: true,
                    missed: Some((event, Miss::Stage2Only)),
                    ..run.clone()
                });
            }
            for (cpus, miss) in [(run.cpus & !mask, Miss::LocalOnly), (found_again, miss)] {
                if cpus != 0 {
                    left.push(StaleRange {
                        cpus,
                        missed: Some(run.missed_or(event, miss)),
                        ..run.clone()
                    });
                }
            }
        }
        if left.is_empty() {
            Fate::Remove
        } else {
            Fate::Replace(left)
        }
    }

    /// The entries of a range, in runs, with the CPUs whose walkers find them again and by what: a cached
    /// pointer that is left, if the entry still stands in a table that is no longer linked, or another member of
    /// the entry's contiguous group.
    fn found_again(
        &self,
        range: &StaleRange,
        pointers: &[StaleRange],
    ) -> Vec<(u64, Miss, StaleRange)> {
        let groups = self.walkers_of_groups(range);
        if pointers.is_empty() && groups == 0 {
            return vec![(0, Miss::FoundAgain, range.clone())];
        }
        let mut runs: Vec<(u64, Miss, u64, u64)> = Vec::new();
        for index in 0..range.count {
            let found = pointers
                .iter()
                .filter(|pointer| self.leads_to(pointer, range, index))
                .fold(0, |cpus, pointer| cpus | pointer.cpus & range.cpus);
            let (cpus, miss) = match groups & !found {
                0 => (found, Miss::FoundAgain),
                more if self.is_served(range, index) => (found | more, Miss::GroupServes),
                _ => (found, Miss::FoundAgain),
            };
            match runs.last_mut() {
                Some((of, by, _, count)) if *of == cpus && *by == miss => *count += 1,
                _ => runs.push((cpus, miss, index, 1)),
            }
        }
        let part = |(cpus, miss, first, count)| (cpus, miss, range.part(first, count));
        runs.into_iter().map(part).collect()
    }

    /// The CPUs that hold a range of members of contiguous groups and walk the table that these stand in.
    fn walkers_of_groups(&self, range: &StaleRange) -> u64 {
        let format = self.tables.context(range.context).format;
        let may_have_hint =
            (range.value | range.entry_value(range.count - 1)) & descriptor::CONTIGUOUS != 0;
        if range.kind != StaleKind::Leaf || !may_have_hint || format.group(range.level) == 1 {
            return 0;
        }
        let trees = Trees::new(&self.memory, &self.tables);
        let mut cpus = 0;
        for &id in trees.tables_in(range.location >> PAGE_SHIFT) {
            let here = |one: &&Table| {
                let index = range.location.wrapping_sub(one.base) / 8;
                one.level == range.level && one.format == format && index < one.entries
            };
            let Some(table) = self.tables.table(id).filter(here) else {
                continue;
            };
            let offset = ((range.location - table.base) / 8) << range.shift;
            for path in trees.paths(id) {
                if let Some(root) = self.tables.root(path.root)
                    && path.at.va.wrapping_add(offset) == range.va
                    && range.matches(root.key.asid)
                {
                    cpus |= root.walking;
                }
            }
        }
        cpus & range.cpus
    }

    /// Whether an entry that is not valid any more is served by another member of its contiguous group, which may
    /// be cached for all of the group's addresses. Members that differ break another rule.
    fn is_served(&self, range: &StaleRange, index: u64) -> bool {
        let context = self.tables.context(range.context);
        let location = range.location + index * 8;
        self.memory.visit(1);
        range.entry_value(index) & descriptor::CONTIGUOUS != 0
            && descriptor::kind(self.memory.load(location), range.level, context.format)
                == EntryKind::Invalid
            && walk::serving_members(&self.memory, context, (location, range.level))
                .next()
                .is_some()
    }

    /// Whether a walk from a cached pointer reads an entry of a range, as it was when it became
    /// stale.
    fn leads_to(&self, pointer: &StaleRange, range: &StaleRange, index: u64) -> bool {
        let va = range.entry_va(index);
        let location = range.location + index * 8;
        if pointer.shift <= range.shift
            || pointer.context != range.context
            || pointer.cpus & range.cpus == 0
            || !range.matches(pointer.asid)
            || self.memory.load(location) != range.entry_value(index)
        {
            return false;
        }
        let Some((at, _)) = pointer.touched(va, va) else {
            return false;
        };
        let context = self.tables.context(pointer.context);
        let mut found = false;
        let below = pointer.table_below(at, context);
        self.memory.visit(LEVELS);
        walk::walk(&self.memory, context, below, va, |entry| {
            found |= entry.location == location;
        });
        found
    }

    /// Forgets the trees that no CPU walks or holds entries of.
    fn release_roots(&mut self, space: Space, mask: u64, pending: &PendingTlbi) {
        let candidates: Vec<RootId> = match pending.removes {
            Removes::Asid(asid) => self
                .tables
                .roots_of(space, Some(asid))
                .into_iter()
                .collect(),
            _ => self.tables.roots().map(|(id, _)| id).collect(),
        };
        self.memory.visit(candidates.len() as u64);
        let ids: Vec<RootId> = candidates
            .into_iter()
            .filter_map(|id| Some((id, self.tables.root(id)?)))
            .filter(|(_, root)| {
                root.key.context.space == space
                    && root.holders & !root.walking & mask != 0
                    && root.left < pending.event
                    && match pending.removes {
                        Removes::Asid(asid) => root.key.asid == Some(asid) && !root.has_global,
                        _ => true,
                    }
            })
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            if let Some(root) = self.tables.root_mut(id) {
                root.holders &= root.walking | !mask;
            }
            self.tables.drop_root_if_unused(&mut self.memory, id);
        }
    }

    /// Notes that all of a half was invalidated, or at stage 2 all of a guest.
    fn note_emptied(&mut self, cpu: u32, space: Space, mask: u64, pending: &PendingTlbi) {
        let regime = space.regime().index();
        for (index, state) in self.cpus.iter_mut() {
            if mask & (1 << index) == 0 {
                continue;
            }
            // A CPU that is off does not receive invalidations of others.
            if !state.started {
                continue;
            }
            match pending.removes {
                Removes::All => state.unknown_tlb[regime] = false,
                // Which VMID an operation concerns is known once VTTBR_EL2 is in effect.
                Removes::Asid(vmid) if pending.synchronised => {
                    state.known_guests.insert(vmid);
                }
                _ => {}
            }
            if index == cpu && !pending.synchronised {
                continue;
            }
            let at = space.index();
            if state.roots[at].is_none() && state.ceased[at].is_before(pending.event) {
                state.fields[at] = None;
            }
            if state.field_changed[at].is_some_and(|(_, since)| since.is_before(pending.event)) {
                state.field_changed[at] = None;
            }
            if let Some(reshape) = &mut state.reshaped[at] {
                reshape.invalidate(pending.event);
            }
        }
    }
}

/// Keeps a stale range with the reason why the invalidation did not remove it.
fn note(range: &StaleRange, event: u64, miss: Miss) -> Fate {
    let missed = range.missed_or(event, miss);
    if range.missed.is_some_and(|(_, known)| known == missed.1) {
        return Fate::Keep;
    }
    let mut noted = range.clone();
    noted.missed = Some(missed);
    Fate::Replace(vec![noted])
}
