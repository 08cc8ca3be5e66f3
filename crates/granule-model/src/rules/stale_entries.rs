//! Stale TLB entries that matter when the tables are relied on.
//!
//! A stale entry alone is not a violation. It becomes one where a lookup that hits it gives another
//! result than the tables.

use super::change::Difference;
use super::evidence;
use crate::arch::context::{Context, RootKey, Space};
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::regime::Regime;
use crate::config::{Config, Policy};
use crate::state::cpu::Cpus;
use crate::state::ids::RootId;
use crate::state::leaf::LeafView;
use crate::state::relied::Relied;
use crate::state::stale_range::{StaleKind, StaleRange};
use crate::state::stale_tlb::{Fate, StaleTlb};
use crate::state::tables::Root;
use crate::state::trees::Trees;
use crate::state::walk::{self, TableAt};
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

const OLD: &str = "may still use the old translation";
const GONE: &str = "may still translate addresses for which there is no valid entry any more";
const WIDER: &str = "may still refuse what is allowed now";
const DIRTY: &str = "may write to the page without marking it dirty again";
const ACCESSED: &str = "may use the entry without setting the access flag again";
const COMBINED: &str = "may still use the old translation, combined with the guest's own tables";
const UNDER_WAY: &str = "may still use the translation that was invalidated: what was under way \
                         was not discarded (no ISB after the TLBI)";

/// Checks a range that all CPUs rely on: reports the stale entries that would make a difference.
pub(crate) fn check(
    trees: Trees<'_>,
    stale: &mut StaleTlb,
    cpus: &Cpus,
    config: &Config,
    relied: Relied,
    report: &mut Report,
) {
    let (space, first, last) = (relied.space, relied.first, relied.last);
    if stale.is_empty() {
        return;
    }
    let mut found: Vec<(StaleRange, u32, &str)> = Vec::new();
    stale.rewrite(space, first, last, |range| {
        let other = relied.asid.is_some() && range.asid != relied.asid
            || relied
                .by
                .is_some_and(|cpu| range.by != Some(cpus.actor(cpu)));
        if range.reported || range.harmless || other {
            return Fate::Keep;
        }
        let mut checked = range.clone();
        checked.harmless = true;
        let disabled = disabled_by(cpus, range, space);
        if disabled != 0 && leads_to_leaf(trees, range) {
            let mut part = range.clone();
            part.cpus = disabled;
            found.push((part, disabled.trailing_zeros(), GONE));
            checked.harmless = false;
            checked.reported = true;
        }
        for (root, cpus) in walked_by(trees, cpus, range, relied) {
            for index in 0..range.count {
                if let Some(text) = difference(trees, config, range, index, root)
                    && !is_accepted(trees, config, range, text)
                {
                    let text = if range.combined { COMBINED } else { text };
                    let mut part = range.part(index, 1);
                    part.cpus = cpus;
                    found.push((part, cpus.trailing_zeros(), text));
                    checked.harmless = false;
                    checked.reported = true;
                }
            }
        }
        Fate::Replace(vec![checked])
    });
    for (range, cpu, text) in found {
        let mut one = evidence::of_stale(Rule::StaleTranslation, &range, text);
        one.cpu = cpu;
        evidence::report(trees, cpus, one, &range, report);
    }
}

/// Checks a range that a CPU relies on: reports entries that were removed from its TLB but that
/// instructions under way may still use. Each is reported once.
pub(crate) fn check_draining(
    trees: Trees<'_>,
    cpus: &mut Cpus,
    config: &Config,
    cpu: u32,
    Relied {
        space, first, last, ..
    }: Relied,
    report: &mut Report,
) {
    let Some(root) = cpus[cpu].roots[space.index()] else {
        return;
    };
    let asid = trees.tables.root(root).and_then(|root| root.key.asid);
    let draining = &mut cpus[cpu].draining;
    trees.memory.visit(draining.len() as u64);
    draining.retain(|(of, range)| {
        if *of != space || !range.matches(asid) || range.reported {
            return true;
        }
        let Some((from, count)) = range.touched(first, last) else {
            return true;
        };
        let mut harmless = true;
        for index in from..from + count {
            if let Some(text) = difference(trees, config, range, index, root)
                && !is_accepted(trees, config, range, text)
            {
                harmless = false;
                report.add(Violation {
                    cpu,
                    missed: None,
                    ..evidence::of_stale(Rule::MissingIsb, &range.part(index, 1), UNDER_WAY)
                });
            }
        }
        harmless
    });
}

/// Whether the kernel leaves such an entry in TLBs on purpose. The handler of a hypervisor has to invalidate
/// an entry of stage 2 that refuses what is allowed now: the fault does not.
fn is_accepted(trees: Trees<'_>, config: &Config, range: &StaleRange, text: &str) -> bool {
    let regime = trees.tables.context(range.context).space.regime();
    (text == GONE && is_unmapped_lazily(trees, config, range))
        || (text == WIDER
            && regime != Regime::Stage2
            && config.policies.has(Policy::SpuriousFaults))
}

/// Whether the kernel unmapped a range and puts its invalidation off on purpose.
pub(super) fn is_unmapped_lazily(trees: Trees<'_>, config: &Config, range: &StaleRange) -> bool {
    let context = trees.tables.context(range.context);
    let (first, last) = lazy_addresses(context, config);
    range.removed
        && range.kind == StaleKind::Leaf
        && context.space.is_privileged()
        && config.policies.has(Policy::LazyUnmap)
        && (context.space.regime() != Regime::El10 || first <= range.va && range.last() <= last)
}

/// The addresses of the upper half for which [`Policy::LazyUnmap`] holds.
pub(super) fn lazy_addresses(context: &Context, config: &Config) -> (u64, u64) {
    let middle = u64::MAX << (context.va_bits.min(48) - 1);
    config.lazy.unwrap_or((middle, u64::MAX))
}

/// The trees, with the CPUs that walk them, in which a lookup may find a stale range.
fn walked_by(
    trees: Trees<'_>,
    cpus: &Cpus,
    range: &StaleRange,
    relied: Relied,
) -> Vec<(RootId, u64)> {
    let space = relied.space;
    let is_empty = |root: &Root| TableAt::top(&root.key).is_empty(trees.memory);
    // The table of the address space that a CPU relies on: another CPU that walks an empty tree instead is on
    // its way to a third one or comes from it, with the ASID of either.
    let own = relied.by.and_then(|cpu| cpus[cpu].roots[space.index()]);
    let own = own.and_then(|id| Some(trees.tables.root(id)?.table));
    let mut found: Vec<(RootId, u64)> = Vec::new();
    let mut walking = false;
    let mut holders = range.cpus;
    while holders != 0 {
        let cpu = holders.trailing_zeros();
        holders &= holders - 1;
        let Some(id) = cpus[cpu].roots[space.index()] else {
            continue;
        };
        let Some(root) = trees.tables.root(id) else {
            continue;
        };
        let parked = || own.is_some_and(|own| own != root.table) && is_empty(root);
        if !range.matches(root.key.asid) || parked() {
            continue;
        }
        walking = true;
        match found.iter_mut().find(|(other, _)| *other == id) {
            Some((_, cpus)) => *cpus |= 1 << cpu,
            None => found.push((id, 1 << cpu)),
        }
    }
    if let (false, Some(asid)) = (walking, range.asid) {
        // No CPU is in the address space, but a CPU that comes back to it will find the range. An
        // empty tree is left out, unless the trace names its ASID: kernels switch address spaces by way
        // of an empty tree with any ASID, and a stale entry for it is checked when a CPU walks it.
        let named = relied.asid.is_some() && relied.by.is_none();
        let ids = trees.tables.roots_of(space, Some(asid));
        trees.memory.visit(ids.len() as u64);
        found.extend(
            ids.into_iter()
                .filter_map(|id| Some((id, trees.tables.root(id)?)))
                .filter(|(_, root)| {
                    root.key.asid == range.asid
                        && root.holders & range.cpus != 0
                        && (named || !is_empty(root))
                })
                .map(|(id, root)| (id, root.holders & range.cpus)),
        );
    }
    found
}

/// The CPUs, of those that hold a stale range, that have walks of the half disabled and would find
/// it: lookups still hit what the TLB holds.
fn disabled_by(cpus: &Cpus, range: &StaleRange, space: Space) -> u64 {
    let mut found = 0;
    for (cpu, state) in cpus.iter() {
        let registers = state.registers_of(space.regime());
        if range.cpus & (1 << cpu) != 0
            && registers.mmu_on()
            && registers.walks_disabled(space)
            && range.matches(registers.asid(space))
        {
            found |= 1 << cpu;
        }
    }
    found
}

/// Whether a lookup that hits a stale range translates.
fn leads_to_leaf(trees: Trees<'_>, range: &StaleRange) -> bool {
    if range.kind == StaleKind::Leaf {
        return true;
    }
    let context = trees.tables.context(range.context);
    let mut leaf = false;
    for index in 0..range.count {
        let va = range.entry_va(index);
        let below = range.table_below(index, context);
        let last = va + (range.entry_bytes() - 1);
        walk::entries(trees.memory, context, &below, va, last, &mut |entry| {
            leaf |= entry.kind == EntryKind::Leaf && descriptor::cacheable(entry.raw, context);
        });
    }
    leaf
}

/// Reports the trees that some CPU may still hold entries of, although it has walks of the half
/// disabled, or walks an empty tree, and the half is relied on as empty. Returns the CPUs and the
/// trees.
pub(crate) fn held_of_disabled(
    trees: Trees<'_>,
    cpus: &Cpus,
    Relied {
        space, first, last, ..
    }: Relied,
    report: &mut Report,
) -> Vec<(u32, RootId)> {
    let mut reported = Vec::new();
    for (cpu, state) in cpus.iter() {
        let registers = state.registers_of(space.regime());
        let disabled = registers.walks_disabled(space);
        let current = state.roots[space.index()];
        let asid = registers.asid(space);
        // Entries of trees without an ASID became stale when it left them.
        let parked = asid.is_some() && current.is_some_and(|id| trees.tables.was_empty(id));
        if !registers.mmu_on() || !(disabled || parked) {
            continue;
        }
        trees.memory.visit(trees.tables.roots().count() as u64);
        for (id, root) in trees.tables.roots() {
            let key = &root.key;
            let mine = key.asid.is_none() || asid.is_none() || key.asid == asid;
            let found = mine || (disabled && root.has_global);
            if key.context.space != space
                || root.holders & (1 << cpu) == 0
                || Some(id) == current
                || !found
            {
                continue;
            }
            let mut held: Option<(u64, u64)> = None;
            trees.entries(key, (first, last), |entry| {
                let cached = entry.kind == EntryKind::Leaf
                    && descriptor::cacheable(entry.raw, &key.context)
                    && (mine || descriptor::is_global(entry.raw, &key.context));
                if cached {
                    let from = held.map_or(entry.va, |(from, _)| from);
                    held = Some((from, entry.last()));
                }
            });
            if let Some(range) = held {
                let text = if disabled {
                    "may still translate a half whose walks are disabled"
                } else {
                    GONE
                };
                let found = Violation::at(Rule::StaleTranslation, cpu, range, text);
                report.add(found.because_of(root.left));
                reported.push((cpu, id));
            }
        }
    }
    reported
}

/// The difference between the entry `index` of a stale range and the tables of a root, if there is
/// one.
fn difference(
    trees: Trees<'_>,
    config: &Config,
    range: &StaleRange,
    index: u64,
    root: RootId,
) -> Option<&'static str> {
    let key = &trees.tables.root(root)?.key;
    let context = trees.tables.context(range.context);
    let va = range.entry_va(index);
    let last = va + (range.entry_bytes() - 1);
    match range.kind {
        StaleKind::Leaf => {
            let old = LeafView::of_stale(range, index, context);
            leaf_difference(trees, config, &old, (va, last), key)
        }
        StaleKind::Table => {
            let below = range.table_below(index, context);
            let mut text = None;
            walk::entries(trees.memory, context, &below, va, last, &mut |entry| {
                if text.is_none()
                    && entry.kind == EntryKind::Leaf
                    && descriptor::cacheable(entry.raw, context)
                {
                    let old = LeafView::of_entry(entry, context);
                    text = leaf_difference(trees, config, &old, (entry.va, entry.last()), key);
                }
            });
            text
        }
    }
}

fn leaf_difference(
    trees: Trees<'_>,
    config: &Config,
    old: &LeafView,
    (first, last): (u64, u64),
    key: &RootKey,
) -> Option<&'static str> {
    let mut covered: u64 = 0;
    let mut text = None;
    trees.entries(key, (first, last), |entry| {
        if entry.kind != EntryKind::Leaf {
            return;
        }
        covered += entry.last().min(last) - entry.va.max(first) + 1;
        let new = LeafView::of_entry(entry, &key.context);
        let difference = Difference::between(old, &new);
        if difference.matters() {
            text = Some(OLD);
        } else if difference.dirty_cleared {
            text.get_or_insert(DIRTY);
        } else if difference.widened {
            text.get_or_insert(WIDER);
        } else if config.strict && difference.access_cleared {
            text.get_or_insert(ACCESSED);
        }
    });
    if covered != last - first + 1 {
        return Some(GONE);
    }
    text
}
