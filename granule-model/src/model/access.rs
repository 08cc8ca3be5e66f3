//! Accesses: all results that one may have, under everything that TLBs and walkers may hold.

use crate::arch::context::{Context, Space};
use crate::arch::descriptor::{self, Attributes, Kind, Rights};
use crate::event::tlbi::Regime;
use crate::model::{Found, Model};
use crate::rules::change::LeafView;
use crate::rules::reachable::lines_range;
use crate::state::cpu::regime_index;
use crate::state::memory::{self, PAGE_SHIFT};
use crate::state::stale_range::{Run, RunKind};
use crate::state::tables::Root;
use crate::state::walk::{self, EntryAt, FaultKind, TableAt, Walked};
use crate::violation::Rule;

/// What kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Fetch,
}

/// An access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The regime it is translated in.
    pub regime: Regime,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// By EL0.
    pub user: bool,
}

impl Access {
    /// A load by EL1.
    pub const READ: Self = Self::kernel(AccessKind::Read);
    /// A store by EL1.
    pub const WRITE: Self = Self::kernel(AccessKind::Write);
    /// A fetch by EL1.
    pub const FETCH: Self = Self::kernel(AccessKind::Fetch);

    const fn kernel(kind: AccessKind) -> Self {
        Self {
            regime: Regime::El10,
            kind,
            user: false,
        }
    }

    const fn allowed(self, rights: Rights) -> bool {
        match self.kind {
            AccessKind::Read => rights.read,
            AccessKind::Write => rights.write,
            AccessKind::Fetch => rights.execute,
        }
    }
}

/// Where an access goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The physical address.
    pub address: u64,
    /// The byte of MAIR: 0 is Device-nGnRnE.
    pub memory: u8,
    /// 0 not, 2 outer, 3 inner shareable.
    pub shareability: u8,
    /// What EL1 (or EL2, EL3) may do there.
    pub privileged: Rights,
    /// What EL0 may do there.
    pub user: Rights,
}

/// One result that an access may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Memory is accessed.
    Memory(Translation),
    /// A fault.
    Fault(FaultKind),
    /// A TLB conflict abort: entries of different sizes match.
    Conflict,
}

/// A tree as a lookup sees it.
type Tree = (TableAt, Context, Option<u16>);

/// Something that a lookup may find.
struct Candidate {
    outcome: Result<(LeafView, u64), FaultKind>,
    context: Option<Context>,
}

impl Model {
    /// All results that an access may have now. One, where every TLB content and every order of
    /// the events so far gives the same.
    #[must_use]
    pub fn outcomes(&self, cpu: u32, va: u64, access: Access) -> Vec<Outcome> {
        let Some(state) = self.cpus.get(cpu as usize) else {
            return Vec::new();
        };
        let registers = &state.registers[regime_index(access.regime)];
        let space = Space::of(access.regime, va);
        let mut outcomes = Vec::new();
        let bit = 1u64 << cpu;
        // Trees that were left are walked until the next ISB.
        let lingering = self.trees(space, |root| root.lingering & bit != 0);
        if !registers.mmu_on() {
            push(&mut outcomes, self.flat(va));
            if lingering.is_empty() {
                return outcomes;
            }
        }
        let mut candidates = Vec::new();
        let mut contexts: Vec<Tree> = Vec::new();
        if registers.mmu_on() {
            match state.roots[space.index()].and_then(|id| self.tables.root(id)) {
                Some(root) => {
                    contexts.push((TableAt::top(&root.key), root.key.context, root.key.asid))
                }
                None => {
                    push(&mut outcomes, Outcome::Fault(FaultKind::Translation));
                    // Walks are disabled, but what the TLB holds is still found.
                    contexts.extend(self.trees(space, |root| root.holders & bit != 0));
                }
            }
        }
        contexts.extend(lingering);
        for (top, context, asid) in &contexts {
            let Some(address) = context.canonical(va) else {
                push(&mut outcomes, Outcome::Fault(FaultKind::Translation));
                continue;
            };
            self.walk_candidates(cpu, context, *top, address, &mut candidates);
            let mut stale = |run: &Run| {
                if run.cpus & bit != 0 && run.matches(*asid) {
                    self.stale_candidate(cpu, run, address, &mut candidates);
                }
            };
            self.stale.visit(space, address, address, &mut stale);
            for (other, run) in &state.draining {
                if *other == space
                    && let Some((from, count)) = run.touched(address, address)
                {
                    stale(&run.part(from, count));
                }
            }
        }
        self.judge_candidates(&candidates, access, &mut outcomes);
        outcomes
    }

    /// Some of the trees of a half.
    fn trees(&self, space: Space, which: impl Fn(&Root) -> bool) -> Vec<Tree> {
        self.tables
            .roots()
            .filter(|(_, root)| root.key.context.space == space && which(root))
            .map(|(_, root)| (TableAt::top(&root.key), root.key.context, root.key.asid))
            .collect()
    }

    /// An access with the MMU off.
    fn flat(&self, va: u64) -> Outcome {
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

    /// What a walk may end with: the tables as they are, or as they were before a store that the
    /// CPU need not see yet.
    fn walk_candidates(
        &self,
        cpu: u32,
        context: &Context,
        table: TableAt,
        va: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        let mut unsure = false;
        let synchronised = &self.cpus[cpu as usize].synchronised;
        let walked = walk::walk(&self.memory, context, table, va, |entry: &EntryAt| {
            let (event, by) = self.memory.fresh(entry.location);
            unsure |= event > synchronised[by as usize];
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
                self.member_candidates(&entry, context, va, candidates);
            }
            Walked::Fault(kind, _) => candidates.push(Candidate {
                outcome: Err(kind),
                context: None,
            }),
        }
    }

    /// What a lookup of one member of a contiguous group may take from the others: any that has
    /// the bit speaks for all of the group (RJQQTC, RNGLXZ).
    fn member_candidates(
        &self,
        entry: &EntryAt,
        context: &Context,
        va: u64,
        candidates: &mut Vec<Candidate>,
    ) {
        let members = context.format.group(entry.level);
        let size = 1u64 << entry.shift;
        let mine = (entry.location / 8) & (members - 1);
        let own = LeafView::of_entry(entry, context);
        for index in (0..members).filter(|index| *index != mine) {
            let raw = self.memory.load(entry.location - mine * 8 + index * 8);
            let other = EntryAt { raw, ..*entry };
            if raw & descriptor::CONTIGUOUS == 0
                || descriptor::kind(raw, entry.level, context.format) != Kind::Leaf
                || !descriptor::cacheable(raw, context)
            {
                continue;
            }
            let mut leaf = LeafView::of_entry(&other, context);
            leaf.output = leaf
                .output
                .wrapping_add(mine.wrapping_sub(index).wrapping_mul(size));
            if leaf.output != own.output || leaf.attributes != own.attributes {
                candidates.push(Candidate {
                    outcome: Ok((leaf, va)),
                    context: Some(*context),
                });
            }
        }
    }

    fn stale_candidate(&self, cpu: u32, run: &Run, va: u64, candidates: &mut Vec<Candidate>) {
        let context = &self.contexts[run.context as usize];
        match run.kind {
            RunKind::Leaf => candidates.push(Candidate {
                outcome: Ok((LeafView::of_run(run, 0, context), va)),
                context: Some(*context),
            }),
            RunKind::Table => {
                self.walk_candidates(cpu, context, self.table_of(run, 0, context), va, candidates);
            }
        }
    }

    fn judge_candidates(
        &self,
        candidates: &[Candidate],
        access: Access,
        outcomes: &mut Vec<Outcome>,
    ) {
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
            // A block with nT=1 may be used or not (RMRRPW).
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

    /// Whether an access has the expected result under every TLB content that the events allow.
    #[must_use]
    pub fn check_access(&self, cpu: u32, va: u64, access: Access, expected: Outcome) -> bool {
        self.outcomes(cpu, va, access) == [expected]
    }

    /// An access that relies on the tables: results that are not the tables' own are violations,
    /// and so is reading what caches or memory may not have yet. A TLB conflict abort is none at
    /// levels 1 and 2 of FEAT_BBM: sizes change in place there, and who does that handles it.
    pub fn access(&mut self, cpu: u32, va: u64, access: Access) -> Vec<Outcome> {
        let outcomes = self.outcomes(cpu, va, access);
        if cpu >= self.config.cpus {
            return outcomes;
        }
        if let Some(event) = self.cpus[cpu as usize].unsynchronised {
            let found = Found::at(
                Rule::MissingIsb,
                cpu,
                (va, va),
                "may translate with register values from before (no ISB)",
            );
            self.report(found.because_of(event));
        } else if outcomes
            .iter()
            .filter(|one| !self.may_conflict(one))
            .count()
            > 1
        {
            let space = Space::of(access.regime, va);
            let mut earlier = None;
            self.stale.visit(space, va, va, |run| {
                if run.cpus & (1 << cpu) != 0 {
                    earlier = earlier.max(Some(run.event));
                }
            });
            let (rule, text) = if earlier.is_some() {
                (
                    Rule::StaleTranslation,
                    "may use a translation that the tables no longer give",
                )
            } else {
                (
                    Rule::MissingIsb,
                    "may not see the tables as they are (no DSB, no ISB)",
                )
            };
            let found = Found::at(rule, cpu, (va, va), text);
            self.report(found.because_of(earlier.unwrap_or(0)));
        }
        for outcome in &outcomes {
            if let Outcome::Memory(translation) = *outcome {
                self.check_data(cpu, translation, access);
            }
        }
        outcomes
    }

    fn may_conflict(&self, outcome: &Outcome) -> bool {
        *outcome == Outcome::Conflict && matches!(self.config.bbm_level, 1 | 2)
    }

    /// Whether an access finds in caches or memory what was stored last.
    fn check_data(&mut self, cpu: u32, translation: Translation, access: Access) {
        let number = translation.address >> PAGE_SHIFT;
        let mask = memory::line_mask(number, translation.address, 1);
        let registers = &self.cpus[cpu as usize].registers[regime_index(access.regime)];
        let cacheable = descriptor::is_cacheable_type(translation.memory);
        let fetch_cached = registers.mmu_on() && cacheable;
        let cached = registers.data_cached() && cacheable;
        if access.kind == AccessKind::Write {
            self.lines_stored_as(cpu, number, mask, cached);
            return;
        }
        let Some(lines) = self.memory.page(number).map(|page| page.lines) else {
            return;
        };
        let unwritten = (lines.dirty | lines.cleaning) & mask;
        let old = (lines.newer | lines.invalidating) & mask;
        let (rule, text) = match access.kind {
            AccessKind::Read if !cached && unwritten != 0 => (
                Rule::NotCleaned,
                "reads past the caches, and the store may be in a cache only",
            ),
            AccessKind::Read if cached && old != 0 => (
                Rule::NotInvalidated,
                "may read an old cache line: the store went past the caches",
            ),
            AccessKind::Fetch if lines.code & mask != 0 && lines.code_cpus & (1 << cpu) != 0 => (
                Rule::InstructionCache,
                "fetches instructions that an instruction cache may hold as they were",
            ),
            AccessKind::Fetch if fetch_cached && old != 0 => (
                Rule::NotInvalidated,
                "may fetch instructions from an old cache line: the store went past the caches",
            ),
            AccessKind::Fetch if !registers.mmu_on() && unwritten != 0 => (
                Rule::NotCleaned,
                "fetches past the data caches, and the store may be in one only",
            ),
            _ => return,
        };
        let found = Found::in_memory(rule, cpu, lines_range(number, mask), text);
        self.report(found.because_of(lines.event));
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
