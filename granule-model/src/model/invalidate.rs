//! TLBIs: each waits for a DSB, which removes the stale entries that the TLBI must remove.
//!
//! A stale entry that the TLBI need not remove stays, with the reason, so that a violation can name
//! the invalidation that did not help.

use super::Model;
use crate::arch::context::Space;
use crate::arch::regime::Regime;
use crate::arch::tlbi::{Tlbi, TlbiScope};
use crate::rules::tlbi_operand;
use crate::state::cpu::{Guest, PendingTlbi};
use crate::state::ids::RootId;
use crate::state::invalidation::{self, Removes, must_remove};
use crate::state::stale_range::{Settle, StaleKind, StaleRange};
use crate::state::stale_tlb::Fate;
use crate::violation::Miss;
use granule_trace::System;

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
            removes: invalidation::read(op, ds, self.config.lpa2, guest.vmid),
            event: self.report.now(),
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
        let pending = std::mem::take(&mut self.cpus[cpu].tlbis);
        for one in pending {
            if shared || one.op.scope == TlbiScope::Local {
                self.complete(cpu, &one);
            } else {
                self.cpus[cpu].tlbis.push(one);
            }
        }
    }

    fn complete(&mut self, cpu: u32, pending: &PendingTlbi) {
        let mask = match pending.op.scope {
            TlbiScope::Local => 1 << cpu,
            TlbiScope::InnerShareable | TlbiScope::OuterShareable => self.cpus.mask(),
        };
        self.complete_in(cpu, pending.op.regime, mask, pending);
        if pending.op.regime != Regime::Stage2
            && let Some(removes) = pending.removes_of(Regime::Stage2)
        {
            let guest = PendingTlbi {
                removes,
                ..*pending
            };
            self.complete_in(cpu, Regime::Stage2, mask, &guest);
        }
    }

    /// Completes the part of a TLBI that concerns one regime.
    fn complete_in(&mut self, cpu: u32, regime: Regime, mask: u64, pending: &PendingTlbi) {
        let all = |space: Space| (space, 0, u64::MAX);
        match pending.removes {
            Removes::All | Removes::Asid(_) => {
                for space in Space::all().filter(|space| space.regime() == regime) {
                    self.remove(cpu, all(space), mask, pending);
                }
                self.release_roots(regime, mask, pending);
                if pending.removes == Removes::All || regime == Regime::Stage2 {
                    self.note_emptied(cpu, regime, mask, pending);
                }
            }
            Removes::Combined(_) => {
                self.remove(cpu, all(Space::of(regime, 0)), mask, pending);
            }
            Removes::Addresses { first, last, .. } => {
                let space = Space::of(regime, first);
                self.remove(cpu, (space, first, last), mask, pending);
            }
            Removes::Nothing | Removes::Unpredictable(_) => {}
        }
    }

    /// Removes the stale entries that an invalidation must remove from the TLBs of the CPUs in
    /// `mask`.
    fn remove(
        &mut self,
        cpu: u32,
        (space, first, last): (Space, u64, u64),
        mask: u64,
        pending: &PendingTlbi,
    ) {
        let own = 1u64 << cpu;
        let event = pending.event;
        let now = self.report.now();
        let (memory, tables) = (&self.memory, &self.tables);
        let draining = &mut self.cpus[cpu].draining;
        self.stale.rewrite(space, first, last, |range| {
            memory.visit(1);
            if range.cpus & mask == 0 {
                return note(range, event, Miss::LocalOnly);
            }
            let context = tables.context(range.context);
            let gone = must_remove(pending.removes, range, context).and(match range.settle {
                Settle::At(since) if since < event => Ok(()),
                Settle::At(_) if range.combined => Err(Miss::Stage2Cached),
                Settle::At(_) | Settle::Dsb(_) => Err(Miss::StoreNotVisible),
                Settle::Isb(_) => Err(Miss::RegisterNotInEffect),
            });
            if let Err(miss) = gone {
                // The operation that came before says more.
                if miss == Miss::Stage2Cached && range.missed.is_some() && !range.combined {
                    return Fate::Keep;
                }
                return note(range, event, miss);
            }
            if range.cpus & own & mask != 0 {
                let mut drain = range.clone();
                drain.cpus = own;
                // The list is bounded: a CPU that never executes an ISB loses the oldest of these
                // warnings.
                if draining.len() >= MOST_DRAINING {
                    draining.drain(..MOST_DRAINING / 2);
                }
                draining.push((space, drain));
            }
            let rest = range.cpus & !mask;
            let mut left = Vec::new();
            let by_address = matches!(pending.removes, Removes::Addresses { .. });
            if context.space.regime() == Regime::Stage2
                && by_address
                && range.kind == StaleKind::Leaf
            {
                // What a walk of the guest combined with the entry stays until another TLBI, which
                // must come after this one completed: until now a walk may have combined it again.
                left.push(StaleRange {
                    cpus: range.cpus & mask,
                    settle: Settle::At(now),
                    combined: true,
                    missed: Some((event, Miss::Stage2Only)),
                    ..range.clone()
                });
            }
            if rest != 0 {
                let mut kept = range.clone();
                kept.cpus = rest;
                kept.missed = Some((event, Miss::LocalOnly));
                left.push(kept);
            }
            if left.is_empty() {
                Fate::Remove
            } else {
                Fate::Replace(left)
            }
        });
    }

    /// Forgets the trees that no CPU walks or holds entries of.
    fn release_roots(&mut self, regime: Regime, mask: u64, pending: &PendingTlbi) {
        let candidates: Vec<RootId> = match pending.removes {
            Removes::Asid(asid) => {
                let space = Space::of(regime, 0);
                self.tables
                    .roots_of(space, Some(asid))
                    .into_iter()
                    .collect()
            }
            _ => self.tables.roots().map(|(id, _)| id).collect(),
        };
        self.memory.visit(candidates.len() as u64);
        let ids: Vec<RootId> = candidates
            .into_iter()
            .filter_map(|id| Some((id, self.tables.root(id)?)))
            .filter(|(_, root)| {
                root.key.context.space.regime() == regime
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

    /// Notes that all of a regime was invalidated, or at stage 2 all of a guest.
    fn note_emptied(&mut self, cpu: u32, of: Regime, mask: u64, pending: &PendingTlbi) {
        let regime = of.index();
        for (index, state) in self.cpus.iter_mut() {
            if mask & (1 << index) == 0 {
                continue;
            }
            // A CPU that is off does not receive invalidations of others.
            if !state.started {
                continue;
            }
            // An operation on one guest leaves what was there before the trace.
            state.unknown_tlb[regime] &= pending.removes != Removes::All;
            let in_effect = index != cpu || pending.synchronised;
            if in_effect {
                for space in Space::all().filter(|space| space.regime() == of) {
                    let at = space.index();
                    if state.roots[at].is_none() && state.ceased[at] < pending.event {
                        state.fields[at] = None;
                    }
                }
            }
            if in_effect && state.field_changed[regime].is_some_and(|since| since < pending.event) {
                state.field_changed[regime] = None;
            }
        }
    }
}

/// Keeps a stale range with the reason why the invalidation did not remove it.
fn note(range: &StaleRange, event: u64, miss: Miss) -> Fate {
    if range.missed.is_some_and(|(_, known)| known == miss) {
        return Fate::Keep;
    }
    let mut noted = range.clone();
    noted.missed = Some((event, miss));
    Fate::Replace(vec![noted])
}
