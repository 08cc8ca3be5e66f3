//! Memory that is taken for something else while a TLB may still lead to it.
//!
//! This is the contract of every unmap: before the memory gets another owner, no translation of it
//! is left. An entry of a program's, or of a guest's stage 2, matters where the program or guest runs, then or
//! later. A kernel may unmap all of a program that has ended before it invalidates.

use super::evidence;
use super::stale_entries::{is_unmapped_lazily, lazy_addresses};
use crate::arch::context::Space;
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;
use crate::config::{Config, Policy};
use crate::state::cpu::Cpus;
use crate::state::ids::RootId;
use crate::state::leaf::LeafView;
use crate::state::stale_range::{StaleKind, StaleRange};
use crate::state::stale_tlb::{Fate, StaleTlb};
use crate::state::trees::Trees;
use crate::state::walk::{self, TableAt, Walked};
use crate::violation::Rule;
use crate::violation::report::Report;

const OTHERS: &str = "may still reach memory that was taken for something else";

/// Memory is taken for something else: reports stale entries of the kernel that lead to it, and marks
/// those of programs.
pub(crate) fn note(
    trees: Trees<'_>,
    stale: &mut StaleTlb,
    cpus: &Cpus,
    config: &Config,
    (start, bytes): (u64, u64),
    report: &mut Report,
) {
    let (mut found, mut by_programs) = (Vec::new(), Vec::new());
    let now = report.now();
    stale.rewrite_leading_to(start, bytes, |range| {
        trees.memory.visit(range.count);
        if range.kind != StaleKind::Leaf || range.reported || range.reused != 0 {
            return Fate::Keep;
        }
        let context = trees.tables.context(range.context);
        if is_unmapped_lazily(trees, config, range) {
            return Fate::Keep;
        }
        let regime = context.space.regime();
        let size = range.entry_bytes();
        let leads = |index: &u64| {
            let raw = range.entry_value(*index);
            let output = descriptor::leaf_address(raw, range.level, context.format);
            let first = output.max(start);
            first < output.saturating_add(size).min(start.saturating_add(bytes))
                && !still_leads(trees, range, *index, first - output, first)
                && !has_another_mapping(trees, config, range, first)
        };
        let Some(index) = (0..range.count).find(leads) else {
            return Fate::Keep;
        };
        let mut part = range.part(index, 1);
        if let Some(asid) = part.asid {
            let runs =
                |cpu: u32| part.cpus & (1 << cpu) != 0 && runs(trees, cpus, cpu, (regime, asid));
            if let Some(cpu) = (0..cpus.count()).find(|cpu| runs(*cpu)) {
                part.reported = true;
                by_programs.push((cpu, part.clone()));
            } else {
                part.reused = now;
            }
        } else if translating(cpus, &part, regime) {
            part.reported = true;
            found.push(part.clone());
        } else {
            return Fate::Keep;
        }
        let rest = range.count - index - 1;
        let parts = [range.part(0, index), part, range.part(index + 1, rest)];
        Fate::Replace(parts.into_iter().filter(|part| part.count > 0).collect())
    });
    for range in found {
        let one = evidence::of_stale(Rule::StaleReuse, &range, OTHERS);
        evidence::report(trees, cpus, one, &range, report);
    }
    for (cpu, range) in by_programs {
        let mut one = evidence::of_stale(Rule::StaleReuse, &range, OTHERS);
        one.cpu = cpu;
        evidence::report(trees, cpus, one, &range, report);
    }
}

/// Whether a CPU runs a program under an ASID now, or a guest under a VMID.
fn runs(trees: Trees<'_>, cpus: &Cpus, cpu: u32, (regime, asid): (Regime, u16)) -> bool {
    let lower = Space::new(Regime::El10, false);
    let state = &cpus[cpu];
    if regime == Regime::Stage2 || state.runs_guests() {
        let vmid = state.registers_of(Regime::Stage2).vmid();
        return regime == Regime::Stage2 && state.in_user && state.runs_guests() && vmid == asid;
    }
    let root = state.roots[lower.index()].and_then(|id| trees.tables.root(id));
    let table = root.and_then(|root| trees.tables.table(root.table));
    let under = |id: &RootId| {
        trees
            .tables
            .root(*id)
            .is_some_and(|it| it.key.asid == Some(asid))
    };
    state.in_user && table.is_some_and(|table| table.roots.iter().any(under))
}

/// A CPU runs a program under an ASID, or a guest under a VMID: reports the entries that lead to memory of others.
pub(crate) fn check(
    trees: Trees<'_>,
    stale: &mut StaleTlb,
    cpus: &Cpus,
    (cpu, regime, asid): (u32, Regime, u16),
    report: &mut Report,
) {
    let mut found = Vec::new();
    stale.rewrite_reused((regime, asid), |range| {
        trees.memory.visit(1);
        let is_held = range.cpus & (1 << cpu) != 0;
        if range.reported || range.reused == 0 || range.asid != Some(asid) || !is_held {
            return Fate::Keep;
        }
        let mut range = range.clone();
        range.reported = true;
        found.push(range.clone());
        Fate::Replace(vec![range])
    });
    for range in found {
        let mut one = evidence::of_stale(Rule::StaleReuse, &range, OTHERS);
        one.cpu = cpu;
        evidence::report(trees, cpus, one, &range, report);
    }
}

/// Whether some CPU that may hold a range translates by its regime now.
fn translating(cpus: &Cpus, range: &StaleRange, regime: Regime) -> bool {
    let holds = |cpu: u32| range.cpus & (1 << cpu) != 0;
    cpus.iter()
        .any(|(cpu, state)| holds(cpu) && state.registers_of(regime).mmu_on())
}

/// Whether the tables still lead from the address of an entry, `offset` bytes into it, to `memory`:
/// then the entry was replaced by one that leads to the same.
fn still_leads(trees: Trees<'_>, range: &StaleRange, index: u64, offset: u64, memory: u64) -> bool {
    let space = trees.tables.context(range.context).space;
    let va = range.entry_va(index) + offset;
    let roots = trees.tables.roots_of(space, range.asid);
    roots.into_iter().any(|id| {
        trees.tables.root(id).is_some_and(|root| {
            let (context, top) = (&root.key.context, TableAt::top(&root.key));
            match walk::walk(trees.memory, context, top, va, |_| ()) {
                Walked::Leaf(leaf) => {
                    let output = descriptor::leaf_address(leaf.raw, leaf.level, context.format);
                    output + (va - leaf.va) == memory
                }
                Walked::Fault(..) => false,
            }
        })
    })
}

/// Whether a kernel took memory out of its linear map, and stores to it by another mapping that was there before:
/// nobody else owns it then. Linux 7.3 unmaps its image's data so. The other mapping has to be among the addresses
/// that are unmapped lazily, and the entry not: where both are, or neither, the two do not tell who owns the memory.
/// It has to permit the store.
fn has_another_mapping(trees: Trees<'_>, config: &Config, range: &StaleRange, memory: u64) -> bool {
    let context = trees.tables.context(range.context);
    if !range.removed || !config.policies.has(Policy::LazyUnmap) || !context.space.upper() {
        return false;
    }
    let among = lazy_addresses(context, config);
    let roots = trees.tables.roots_of(context.space, range.asid);
    roots.into_iter().any(|id| {
        trees.tables.root(id).is_some_and(|root| {
            let key = &root.key;
            let mut found = false;
            trees.entries(key, among, |entry| {
                if found || entry.kind != EntryKind::Leaf {
                    return;
                }
                let leaf = LeafView::of_entry(entry, &key.context);
                let is_there = memory.wrapping_sub(leaf.output) >> entry.shift == 0;
                let is_older = || {
                    let mut newest = 0;
                    let top = TableAt::top(key);
                    walk::walk(trees.memory, &key.context, top, entry.va, |it| {
                        newest = newest.max(trees.memory.fresh(it.location).0);
                    });
                    newest < range.event
                };
                found = is_there && leaf.attributes.privileged.write && is_older();
            });
            found
        })
    })
}
