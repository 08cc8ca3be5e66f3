//! All results that an access may have, under everything that TLBs and walkers may hold.

use super::cpu::Cpu;
use super::leaf::LeafView;
use super::stale_range::{StaleKind, StaleRange};
use super::stale_tlb::StaleTlb;
use super::tables::Root;
use super::trees::Trees;
use super::walk::{self, EntryAt, TableAt, Walked};
use crate::access::{Access, FaultKind, Outcome, Translation};
use crate::arch::context::{Context, Space};
use crate::arch::descriptor::{Attributes, EntryKind, Rights};
use crate::config::Config;

/// A tree for a lookup: the top table, the context and the ASID.
type Tree = (TableAt, Context, Option<u16>);

/// An entry, or a fault, that a lookup may find.
struct Candidate {
    outcome: Result<(LeafView, u64), FaultKind>,
    context: Option<Context>,
}

/// The parts of the state that decide what the accesses of one CPU find.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) trees: Trees<'a>,
    pub(crate) stale: &'a StaleTlb,
    pub(crate) cpu: &'a Cpu,
    /// The CPU's bit.
    pub(crate) bit: u64,
    pub(crate) config: &'a Config,
}

impl Lookup<'_> {
    /// All results that an access may have now.
    pub(crate) fn outcomes(self, va: u64, access: Access) -> Vec<Outcome> {
        let registers = self.cpu.registers_of(access.regime);
        let space = Space::of(access.regime, va);
        let mut outcomes = Vec::new();
        // A CPU may walk the trees that it left until its next ISB.
        let lingering = self.trees_of(space, |root| root.lingering & self.bit != 0);
        if !registers.mmu_on() {
            push(&mut outcomes, self.flat(va));
            if lingering.is_empty() {
                return outcomes;
            }
        }
        let mut candidates = Vec::new();
        let mut contexts: Vec<Tree> = Vec::new();
        if registers.mmu_on() {
            match self.trees.root(self.cpu.roots[space.index()]) {
                Some(root) => {
                    contexts.push((TableAt::top(&root.key), root.key.context, root.key.asid))
                }
                None => {
                    push(&mut outcomes, Outcome::Fault(FaultKind::Translation));
                    // Walks are disabled, but lookups still hit entries of the TLB.
                    contexts.extend(self.trees_of(space, |root| root.holders & self.bit != 0));
                }
            }
        }
        contexts.extend(lingering);
        for (top, context, asid) in &contexts {
            let Some(address) = context.canonical(va) else {
                push(&mut outcomes, Outcome::Fault(FaultKind::Translation));
                continue;
            };
            self.walk_candidates(context, *top, address, &mut candidates);
            let mut stale = |stale: &StaleRange| {
                if stale.cpus & self.bit != 0 && stale.matches(*asid) {
                    self.stale_candidate(stale, address, &mut candidates);
                }
            };
            self.stale.visit(space, address, address, &mut stale);
            for (other, range) in &self.cpu.draining {
                if *other == space
                    && let Some((from, count)) = range.touched(address, address)
                {
                    stale(&range.part(from, count));
                }
            }
        }
        self.results_of(&candidates, access, &mut outcomes);
        outcomes
    }

    /// The trees of a half that `which` selects.
    fn trees_of(self, space: Space, which: impl Fn(&Root) -> bool) -> Vec<Tree> {
        self.trees
            .tables
            .roots()
            .filter(|(_, root)| root.key.context.space == space && which(root))
            .map(|(_, root)| (TableAt::top(&root.key), root.key.context, root.key.asid))
            .collect()
    }

    /// An access with the MMU off.
    const fn flat(self, va: u64) -> Outcome {
        if va >> self.config.pa_bits != 0 {
            return Outcome::Fault(FaultKind::AddressSize);
        }
        let all = Rights {
            read: true,
            write: true,
            execute: true,
        };
        Outcome::Memory(Translation {
            address: va,
            memory: 0,
            shareability: 2,
            privileged: all,
            user: all,
        })
    }

    /// The possible ends of a walk: in the tables now, or in the tables before a store that the CPU
    /// need not see yet.
    fn walk_candidates(
        self,
        context: &Context,
        table: TableAt,
        va: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        let mut unsure = false;
        let mut end = None;
        let memory = self.trees.memory;
        let walked = walk::walk(memory, context, table, va, |entry: &EntryAt| {
            end = Some(*entry);
            let (event, by) = memory.fresh(entry.location);
            unsure |= event > self.cpu.synchronised[by as usize];
        });
        if unsure {
            candidates.push(Candidate {
                outcome: Err(FaultKind::Translation),
                context: None,
            });
        }
        match walked {
            Walked::Leaf(entry) => {
                candidates.push(Candidate {
                    outcome: Ok((LeafView::of_entry(&entry, context), va)),
                    context: Some(*context),
                });
            }
            Walked::Fault(kind, _) => candidates.push(Candidate {
                outcome: Err(kind),
                context: None,
            }),
        }
        if let Some(entry) = end.filter(|entry| entry.kind != EntryKind::Table) {
            self.member_candidates(&entry, context, va, candidates);
        }
    }

    /// The entries of other members that a lookup of one member of a contiguous group, valid or not, may use:
    /// each member with the bit may serve for all of the group (RJQQTC, RNGLXZ).
    fn member_candidates(
        self,
        entry: &EntryAt,
        context: &Context,
        va: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        let own = LeafView::of_entry(entry, context);
        let place = (entry.location, entry.level);
        for (distance, raw) in walk::serving_members(self.trees.memory, context, place) {
            let mut leaf = LeafView::of_entry(&EntryAt { raw, ..*entry }, context);
            leaf.output = leaf.output.wrapping_sub((distance << entry.shift) as u64);
            let is_leaf = entry.kind == EntryKind::Leaf;
            if !is_leaf || leaf.output != own.output || leaf.attributes != own.attributes {
                candidates.push(Candidate {
                    outcome: Ok((leaf, va)),
                    context: Some(*context),
                });
            }
        }
    }

    fn stale_candidate(self, stale: &StaleRange, va: u64, candidates: &mut Vec<Candidate>) {
        let context = self.trees.tables.context(stale.context);
        match stale.kind {
            StaleKind::Leaf => candidates.push(Candidate {
                outcome: Ok((LeafView::of_stale(stale, 0, context), va)),
                context: Some(*context),
            }),
            StaleKind::Table => {
                self.walk_candidates(context, stale.table_below(0, context), va, candidates);
            }
        }
    }

    fn results_of(self, candidates: &[Candidate], access: Access, outcomes: &mut Vec<Outcome>) {
        let mut shape: Option<(u32, bool)> = None;
        for candidate in candidates {
            let (leaf, va) = match &candidate.outcome {
                Err(kind) => {
                    push(outcomes, Outcome::Fault(*kind));
                    continue;
                }
                Ok(found) => found,
            };
            let attributes = &leaf.attributes;
            let new_shape = (leaf.shift, attributes.contiguous);
            if shape.is_some_and(|other| other != new_shape) && self.config.bbm_level < 3 {
                push(outcomes, Outcome::Conflict);
            }
            shape = Some(new_shape);
            // A lookup may use a block with nT=1 or fault on it (RMRRPW).
            if attributes.no_translation {
                push(outcomes, Outcome::Fault(FaultKind::Translation));
            }
            let hardware = candidate
                .context
                .is_some_and(|context| context.hardware_access);
            push(
                outcomes,
                outcome_of(leaf, *va, attributes, access, hardware),
            );
        }
    }
}

fn outcome_of(
    leaf: &LeafView,
    va: u64,
    attributes: &Attributes,
    access: Access,
    hardware: bool,
) -> Outcome {
    if !attributes.accessed && !hardware {
        return Outcome::Fault(FaultKind::AccessFlag);
    }
    let rights = if access.user {
        attributes.user
    } else {
        attributes.privileged
    };
    if !access.allowed(rights) {
        return Outcome::Fault(FaultKind::Permission);
    }
    Outcome::Memory(Translation {
        address: leaf.output + (va - leaf.va),
        memory: attributes.memory,
        shareability: attributes.shareability,
        privileged: attributes.privileged,
        user: attributes.user,
    })
}

fn push(outcomes: &mut Vec<Outcome>, outcome: Outcome) {
    if !outcomes.contains(&outcome) {
        outcomes.push(outcome);
    }
}
