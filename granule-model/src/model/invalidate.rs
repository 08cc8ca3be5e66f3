//! TLBIs: which stale entries each must remove, and when it has.
//!
//! An entry goes only if the architecture says that it must. Whatever need not go stays, with a
//! note of why, so that a violation can say which invalidation was in vain.

use crate::arch::context::{Context, Space};
use crate::arch::descriptor;
use crate::arch::format::Granule;
use crate::event::tlbi::{Regime, Target, Tlbi, TlbiScope};
use crate::model::{Found, Model};
use crate::state::cpu::{PendingTlbi, regime_index};
use crate::state::stale_range::{Run, RunKind, Settle};
use crate::state::stale_tlb::Fate;
use crate::state::tables::RootId;
use crate::violation::{Miss, Rule};

/// Runs kept for a CPU between their invalidation and its ISB.
const MOST_DRAINING: usize = 1 << 16;

/// An operand, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// All of the regime.
    All,
    /// All non-global entries of an ASID.
    Asid(u16),
    /// Entries that translate something from `first` to `last`.
    Addresses {
        first: u64,
        last: u64,
        last_level: bool,
        /// `None` for whatever ASID.
        asid: Option<u16>,
        /// The level hint.
        level: Option<i8>,
        /// The granule that entries must have.
        granule: Option<Granule>,
    },
    /// Nothing need go.
    Nothing,
    /// UNPREDICTABLE, because of this.
    Unpredictable(&'static str),
}

const fn sign_extend(value: u64, bits: u32) -> u64 {
    ((value << (64 - bits)) as i64 >> (64 - bits)) as u64
}

/// Reads the operand of an operation. `ds` is TCR.DS, in whose units the base of a range is;
/// `lpa2` is FEAT_LPA2, without which some level hints are reserved.
pub(crate) fn read(op: Tlbi, ds: bool, lpa2: bool) -> Reads {
    let operand = op.operand;
    let two_halves = op.regime == Regime::El10;
    let asid = (operand >> 48) as u16;
    match op.target {
        Target::All => Reads::All,
        Target::Asid => Reads::Asid(asid),
        Target::Address {
            last_level,
            all_asids,
        } => {
            let page = operand & ((1 << 44) - 1);
            let address = if two_halves {
                sign_extend(page << 12, 56)
            } else {
                page << 12
            };
            let granule = descriptor::granule_code(operand >> 46);
            let level = ((operand >> 44) & 0b11) as i8;
            // Reserved encodings are no hint.
            let hint = match (granule, level) {
                (None, _) | (Some(Granule::K16 | Granule::K64), 0) => None,
                (Some(Granule::K4), 0) | (Some(Granule::K16), 1) if !lpa2 => None,
                (Some(_), level) => Some(level),
            };
            Reads::Addresses {
                first: address,
                last: address,
                last_level,
                asid: (two_halves && !all_asids).then_some(asid),
                level: hint,
                granule: if hint.is_some() { granule } else { None },
            }
        }
        Target::Range {
            last_level,
            all_asids,
        } => {
            let Some(granule) = descriptor::granule_code(operand >> 46) else {
                return Reads::Nothing;
            };
            let unit = if ds { 16 } else { granule.shift() };
            let base = operand & ((1 << 37) - 1);
            let first = if two_halves {
                sign_extend(base, 37) << unit
            } else {
                base << unit
            };
            let num = (operand >> 39) & 0b1_1111;
            let scale = ((operand >> 44) & 0b11) as u32;
            let bytes = ((num + 1) << (5 * scale + 1)) << granule.shift();
            let Some(last) = first.checked_add(bytes - 1) else {
                return Reads::Unpredictable("the range wraps past the top of the addresses");
            };
            let level = match ((operand >> 37) & 0b11) as i8 {
                0 => None,
                1 if granule == Granule::K16 && !lpa2 => None,
                level => Some(level),
            };
            if let Some(level) = level
                && first & ((1 << granule.level_shift(level)) - 1) != 0
            {
                return Reads::Unpredictable(
                    "the base is not aligned to an entry of the level hint's level",
                );
            }
            Reads::Addresses {
                first,
                last,
                last_level,
                asid: (two_halves && !all_asids).then_some(asid),
                level,
                granule: Some(granule),
            }
        }
    }
}

/// Whether an operation must remove a stale entry that it meets.
fn must_remove(reads: Reads, run: &Run, context: &Context) -> Result<(), Miss> {
    let two_halves = context.space.regime() == Regime::El10;
    match reads {
        Reads::All => Ok(()),
        Reads::Asid(asid) => {
            // A tree whose ASID is not known could be any.
            if run.asid == Some(asid) && !run.maybe_global {
                Ok(())
            } else {
                Err(Miss::WrongAsid)
            }
        }
        Reads::Addresses {
            last_level,
            asid,
            level,
            granule,
            ..
        } => {
            if granule.is_some_and(|granule| granule != context.format.granule) {
                return Err(Miss::WrongGranule);
            }
            match run.kind {
                RunKind::Table if last_level => return Err(Miss::LastLevelOnly),
                // The hint is the level of the leaf, below the tables that lead to it.
                RunKind::Table if level.is_some_and(|level| run.level >= level) => {
                    return Err(Miss::WrongLevel);
                }
                RunKind::Leaf if level.is_some_and(|level| run.level != level) => {
                    return Err(Miss::WrongLevel);
                }
                _ => {}
            }
            let (Some(asid), true) = (asid, two_halves) else {
                return Ok(());
            };
            let wrong = match run.kind {
                // The form for one ASID removes global leaves, but of tables only those that
                // lead to nothing global.
                RunKind::Table => run.maybe_global || run.asid != Some(asid),
                RunKind::Leaf => match run.asid {
                    Some(other) => other != asid,
                    None => run.value & descriptor::NOT_GLOBAL != 0,
                },
            };
            if wrong { Err(Miss::WrongAsid) } else { Ok(()) }
        }
        Reads::Nothing | Reads::Unpredictable(_) => Err(Miss::WrongGranule),
    }
}

impl Model {
    /// A TLBI is issued; a DSB has to complete it.
    pub(crate) fn tlbi(&mut self, cpu: u32, op: Tlbi) {
        let state = &mut self.cpus[cpu as usize];
        let ds = state.registers[regime_index(op.regime)].ds(op.regime);
        let pending = PendingTlbi {
            op,
            event: self.now,
            ds,
            synchronised: state.unsynchronised.is_none(),
        };
        match state.tlbis.last_mut() {
            // The same once more removes what the one before does, and what came after that.
            Some(last) if last.same_as(&pending) => *last = pending,
            _ => state.tlbis.push(pending),
        }
        if let Reads::Unpredictable(why) = read(op, ds, self.config.lpa2) {
            let last = u64::MAX;
            self.report(Found::at(
                Rule::RangeOperand,
                cpu,
                (0, last),
                format!("executes {op}, which is UNPREDICTABLE: {why}"),
            ));
        }
    }

    /// A DSB completes the TLBIs of a CPU: the local ones, or (`shared`) all.
    pub(crate) fn complete_tlbis(&mut self, cpu: u32, shared: bool) {
        let pending = std::mem::take(&mut self.cpus[cpu as usize].tlbis);
        for one in pending {
            if shared || one.op.scope == TlbiScope::Local {
                self.complete(cpu, &one);
            } else {
                self.cpus[cpu as usize].tlbis.push(one);
            }
        }
    }

    fn complete(&mut self, cpu: u32, pending: &PendingTlbi) {
        let op = pending.op;
        let mask = match op.scope {
            TlbiScope::Local => 1 << cpu,
            TlbiScope::InnerShareable | TlbiScope::OuterShareable => self.all_cpus(),
        };
        let reads = read(op, pending.ds, self.config.lpa2);
        match reads {
            Reads::All | Reads::Asid(_) => {
                for space in Space::all().filter(|space| space.regime() == op.regime) {
                    self.remove(cpu, space, (0, u64::MAX), mask, reads, pending.event);
                }
                self.release_roots(op.regime, mask, reads, pending.event);
                if reads == Reads::All {
                    self.emptied(cpu, mask, pending);
                }
            }
            Reads::Addresses { first, last, .. } => {
                let space = Space::of(op.regime, first);
                self.remove(cpu, space, (first, last), mask, reads, pending.event);
            }
            Reads::Nothing | Reads::Unpredictable(_) => {}
        }
    }

    /// Removes what must go from the TLBs of the CPUs in `mask`.
    fn remove(
        &mut self,
        cpu: u32,
        space: Space,
        (first, last): (u64, u64),
        mask: u64,
        reads: Reads,
        event: u64,
    ) {
        let own = 1u64 << cpu;
        let contexts = &self.contexts;
        let memory = &self.memory;
        let draining = &mut self.cpus[cpu as usize].draining;
        self.stale.rewrite(space, first, last, |run| {
            memory.visit(1);
            if run.cpus & mask == 0 {
                return note(run, event, Miss::LocalOnly);
            }
            let context = &contexts[run.context as usize];
            let gone = must_remove(reads, run, context).and(match run.settle {
                Settle::At(since) if since < event => Ok(()),
                Settle::At(_) | Settle::Dsb(_) => Err(Miss::StoreNotVisible),
                Settle::Isb(_) => Err(Miss::RegisterNotInEffect),
            });
            if let Err(miss) = gone {
                return note(run, event, miss);
            }
            if run.cpus & own & mask != 0 {
                let mut drain = run.clone();
                drain.cpus = own;
                // Who never executes an ISB gets no more warnings from these than from so many.
                if draining.len() >= MOST_DRAINING {
                    draining.drain(..MOST_DRAINING / 2);
                }
                draining.push((space, drain));
            }
            let rest = run.cpus & !mask;
            if rest == 0 {
                return Fate::Remove;
            }
            let mut kept = run.clone();
            kept.cpus = rest;
            kept.missed = Some((event, Miss::LocalOnly));
            Fate::Replace(vec![kept])
        });
    }

    /// Trees that nobody walks any more and of which nothing is held either.
    fn release_roots(&mut self, regime: Regime, mask: u64, reads: Reads, event: u64) {
        let candidates: Vec<RootId> = match reads {
            Reads::Asid(asid) => {
                let space = Space::new(regime, false);
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
                    && root.left < event
                    && match reads {
                        Reads::Asid(asid) => root.key.asid == Some(asid) && !root.has_global,
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

    /// All of a regime was invalidated.
    fn emptied(&mut self, cpu: u32, mask: u64, pending: &PendingTlbi) {
        let regime = regime_index(pending.op.regime);
        for (index, state) in self.cpus.iter_mut().enumerate() {
            if mask & (1 << index) == 0 {
                continue;
            }
            // A CPU that is off hears nothing of what others invalidate.
            if !state.started {
                continue;
            }
            state.unknown_tlb[regime] = false;
            let in_effect = index != cpu as usize || pending.synchronised;
            if in_effect {
                for space in Space::all().filter(|space| space.regime() == pending.op.regime) {
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

    /// Reports something about a stale run.
    pub(crate) fn report_of_run(&mut self, mut found: Found, run: &Run) {
        found.missed = self.incomplete(run).or(run.missed);
        self.report(found);
    }

    /// Why an invalidation under way does not count for a stale run: no DSB has completed it.
    fn incomplete(&self, run: &Run) -> Option<(u64, Miss)> {
        if self.log.is_full() {
            // Nobody will read it.
            return None;
        }
        let pending: usize = self.cpus.iter().map(|cpu| cpu.tlbis.len()).sum();
        self.memory.visit(pending as u64);
        let context = &self.contexts[run.context as usize];
        let waiting = self.cpus.iter().flat_map(|cpu| cpu.tlbis.iter());
        waiting
            .filter(|pending| {
                let reads = read(pending.op, pending.ds, self.config.lpa2);
                let meets = match reads {
                    Reads::Addresses { first, last, .. } => run.touched(first, last).is_some(),
                    _ => true,
                };
                pending.op.regime == context.space.regime()
                    && pending.event > run.event
                    && meets
                    && must_remove(reads, run, context).is_ok()
            })
            .map(|pending| (pending.event, Miss::NotComplete))
            .max_by_key(|(event, _)| *event)
    }
}

/// Keeps a run with a note of why.
fn note(run: &Run, event: u64, miss: Miss) -> Fate {
    if run.missed.is_some_and(|(_, known)| known == miss) {
        return Fate::Keep;
    }
    let mut noted = run.clone();
    noted.missed = Some((event, miss));
    Fate::Replace(vec![noted])
}
