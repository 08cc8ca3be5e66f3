//! Blocks with the nT bit: a lookup may fault on them (RMRRPW), so none may be left when the tables
//! are relied on.

use crate::arch::context::Context;
use crate::arch::descriptor::{self, EntryKind};
use crate::state::ids::PAGE_SHIFT;
use crate::state::trees::Trees;
use crate::state::walk::EntryAt;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use std::collections::BTreeMap;

const TEXT: &str = "may fault: the block still has the nT bit";

/// The state of the rule: what has to be checked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct NoTranslationBlocks {
    /// Blocks that were stored with the nT bit, with the events that stored them.
    suspects: BTreeMap<u64, u64>,
}

impl NoTranslationBlocks {
    /// Notes a block that was stored with the nT bit.
    pub(crate) fn note(&mut self, location: u64, event: u64) {
        self.suspects.insert(location, event);
    }

    /// Checks all noted blocks: the tables as a whole are relied on.
    pub(crate) fn check_all(&mut self, trees: Trees<'_>, cpu: u32, report: &mut Report) {
        for (location, event) in std::mem::take(&mut self.suspects) {
            let raw = trees.memory.load(location);
            let left = trees
                .tables_in(location >> PAGE_SHIFT)
                .iter()
                .filter_map(|id| trees.tables.table(*id))
                .filter(|table| location.wrapping_sub(table.base) / 8 < table.entries)
                .any(|table| {
                    descriptor::kind(raw, table.level, table.format) == EntryKind::Leaf
                        && descriptor::refuses(raw, table.level, table.format)
                });
            if left {
                let range = trees.translated_by(location);
                let found = Violation::at(Rule::NoTranslation, cpu, range, TEXT);
                report.add(found.because_of(event).located(location));
            }
        }
    }
}

/// Reports an entry that a CPU relies on, with the event that stored it.
pub(super) fn check_entry(
    cpu: u32,
    entry: &EntryAt,
    context: &Context,
    event: u64,
    report: &mut Report,
) {
    if entry.kind == EntryKind::Leaf && descriptor::refuses(entry.raw, entry.level, context.format)
    {
        let found = Violation::at(Rule::NoTranslation, cpu, (entry.va, entry.last()), TEXT);
        report.add(found.because_of(event).located(entry.location));
    }
}
