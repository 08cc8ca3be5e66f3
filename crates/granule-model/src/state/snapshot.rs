//! Turns entries of the tables into the stale ranges that TLBs hold after the entries are replaced.

use super::memory::Memory;
use super::stale_range::{Settle, StaleKind, StaleRange, StaleRanges};
use super::stale_tlb::StaleTlb;
use super::tables::{Path, Root, Tables};
use super::trees::Trees;
use super::walk::{self, EntryAt};
use crate::arch::descriptor::{self, EntryKind};

/// The visits that a kept stale range counts as, since it takes memory.
const VISITS_OF_A_RANGE: u64 = 32;

/// The circumstances in which entries were replaced, and the CPUs that may hold them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    /// The CPUs that may hold them.
    pub(crate) cpus: u64,
    pub(crate) settle: Settle,
    /// Replaced by an invalid entry.
    pub(crate) removed: bool,
    /// All entries; if not, only global leaves.
    pub(crate) all: bool,
    /// The event that replaced them, and its CPU.
    pub(crate) event: u64,
    pub(crate) by: Option<u64>,
}

/// Turns an entry, and everything reachable through it, into stale ranges.
pub(crate) fn entry(
    trees: Trees<'_>,
    path: &Path,
    entry: &EntryAt,
    replaced: Replaced,
    ranges: &mut StaleRanges,
) {
    let Some(root) = trees.tables.root(path.root) else {
        return;
    };
    let context = &root.key.context;
    let mut push = |entry: &EntryAt| ranges.extend(one(root, entry, replaced));
    push(entry);
    if entry.kind == EntryKind::Table {
        walk::entries(
            trees.memory,
            context,
            &path.at.below(entry.raw, entry.va, context),
            entry.va,
            entry.last(),
            &mut push,
        );
    }
}

/// Turns everything reachable from a root into stale ranges, or only its global leaves.
pub(crate) fn tree(trees: Trees<'_>, root: &Root, replaced: Replaced) -> StaleRanges {
    let mut ranges = StaleRanges::default();
    let mut add = |span| {
        trees.entries(&root.key, span, |entry| {
            ranges.extend(one(root, entry, replaced));
        });
    };
    if replaced.all {
        add((root.key.context.base(), root.key.last()));
    } else {
        root.globals.iter().for_each(add);
    }
    ranges
}

fn one(root: &Root, entry: &EntryAt, replaced: Replaced) -> Option<StaleRange> {
    let context = &root.key.context;
    let global = descriptor::is_global(entry.raw, context);
    let (kind, asid) = match entry.kind {
        EntryKind::Invalid => return None,
        EntryKind::Leaf => {
            if !descriptor::cacheable(entry.raw, context) || (!replaced.all && !global) {
                return None;
            }
            (StaleKind::Leaf, if global { None } else { root.key.asid })
        }
        EntryKind::Table if !replaced.all => return None,
        EntryKind::Table => (StaleKind::Table, root.key.asid),
    };
    Some(StaleRange {
        va: entry.va,
        shift: entry.shift,
        count: 1,
        level: entry.level,
        kind,
        value: entry.raw,
        step: 0,
        hierarchy: entry.hierarchy,
        context: root.context,
        asid,
        maybe_global: kind == StaleKind::Table
            && (root.has_global || context.space.upper() || root.key.asid.is_none()),
        location: entry.location,
        cpus: replaced.cpus,
        event: replaced.event,
        by: replaced.by,
        reused: 0,
        settle: replaced.settle,
        removed: replaced.removed,
        missed: None,
        reported: false,
        harmless: false,
        once: None,
        combined: false,
    })
}

pub(crate) fn add(memory: &Memory, tables: &Tables, stale: &mut StaleTlb, ranges: StaleRanges) {
    let ranges = ranges.finish();
    memory.visit(VISITS_OF_A_RANGE * ranges.len() as u64);
    for range in ranges {
        let context = tables.context(range.context);
        let output =
            |index| descriptor::leaf_address(range.entry_value(index), range.level, context.format);
        memory.visit(stale.add(context.space, &range, output));
    }
}
