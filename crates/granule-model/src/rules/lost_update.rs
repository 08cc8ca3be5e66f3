//! Updates of the access flag and the dirty state by hardware, and stores that lose them (RWLTNL).
//!
//! Hardware changes an entry in one step, at any time while a CPU with TCR.HA or TCR.HD set walks
//! it. Software that loads such an entry and stores a changed value with a plain store may undo the
//! hardware's update, so it must use one step (an exchange) too.

use crate::arch::descriptor::{self, EntryKind};
use crate::state::ids::TableId;
use crate::state::tables::Path;
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use granule_trace::Visibility;
use std::collections::BTreeMap;

/// The state of the rule: what has to be checked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostUpdates {
    /// Entries that a plain store made invalid while hardware might have been updating them, by
    /// address.
    suspects: BTreeMap<u64, Suspect>,
}

/// An entry that a plain store emptied while hardware might have been updating it.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    value: u64,
    event: u64,
}

/// A store of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) cpu: u32,
    pub(crate) location: u64,
    pub(crate) old: u64,
    pub(crate) new: u64,
    pub(crate) visibility: Visibility,
}

const TEXT: &str = "may have set the access flag or the dirty state just before the store";

impl LostUpdates {
    /// A store to a table that CPUs walk by the given paths.
    pub(crate) fn check(
        &mut self,
        trees: Trees<'_>,
        id: TableId,
        paths: &[Path],
        stored: Stored,
        report: &mut Report,
    ) {
        let Some(table) = trees.tables.table(id) else {
            return;
        };
        let Stored {
            location, old, new, ..
        } = stored;
        let is_leaf = |value| descriptor::kind(value, table.level, table.format) == EntryKind::Leaf;
        let found = |event: u64| {
            let range = (location, location + 7);
            Violation::in_memory(Rule::LostUpdate, stored.cpu, range, TEXT)
                .because_of(event)
                .located(location)
        };
        let to = |value| descriptor::leaf_address(value, table.level, table.format);
        let plain = matches!(stored.visibility, Visibility::Private | Visibility::Live);
        if is_leaf(old) && plain && may_be_updated(trees, paths, old) {
            if is_leaf(new) {
                if to(old) != to(new) || undoes_an_update(trees, paths, old, new) {
                    report.add(found(0));
                }
            } else {
                let event = report.now();
                self.suspects
                    .insert(location, Suspect { value: old, event });
            }
        } else if is_leaf(new)
            && let Some(suspect) = self.suspects.remove(&location)
        {
            // A different page loses nothing, and neither does a value that has every bit hardware
            // may have set.
            if to(suspect.value) == to(new) && may_be_updated(trees, paths, new) {
                report.add(found(suspect.event));
            }
        }
    }
}

/// Checks a descriptor that a CPU found at an address in place of the one that was stored there:
/// hardware may have set the access flag and made the page dirty. Anything else is a store
/// that is not in the trace.
pub(crate) fn check_found(
    trees: Trees<'_>,
    cpu: u32,
    (location, stored, found): (u64, u64, u64),
    report: &mut Report,
) {
    let contexts = trees.tables.contexts();
    let mut may_differ = 0;
    if stored & descriptor::VALID != 0 && contexts.iter().any(|one| one.hardware_access) {
        may_differ |= !stored & descriptor::ACCESSED;
    }
    if stored & descriptor::VALID != 0 && contexts.iter().any(|one| one.hardware_dirty) {
        may_differ |= stored ^ descriptor::made_dirty(stored, trees.regime_at(location));
    }
    if (stored ^ found) & !may_differ != 0 {
        let text = "finds a descriptor that was never stored there: the trace lacks a store";
        let range = (location, location + 7);
        report.add(Violation::in_memory(Rule::NotRecorded, cpu, range, text).located(location));
    }
}

/// Whether a CPU that walks one of these paths may be updating a leaf.
fn may_be_updated(trees: Trees<'_>, paths: &[Path], leaf: u64) -> bool {
    updates(trees, paths, leaf).any(|bits| bits != 0)
}

/// Whether a store takes a bit back that hardware may have changed in the leaf that was there. A trace that is
/// taken beside a guest has no loads: a value that holds the bits was made of the updated leaf, or loses nothing.
fn undoes_an_update(trees: Trees<'_>, paths: &[Path], old: u64, new: u64) -> bool {
    updates(trees, paths, old).any(|bits| (new ^ old ^ bits) & bits != 0)
}

/// The bits that hardware may change in a leaf, for each path.
fn updates<'a>(trees: Trees<'a>, paths: &'a [Path], leaf: u64) -> impl Iterator<Item = u64> + 'a {
    paths.iter().filter_map(move |path| {
        let context = &trees.tables.root(path.root)?.key.context;
        let mut bits = 0;
        if context.hardware_access {
            bits |= !leaf & descriptor::ACCESSED;
        }
        if context.hardware_dirty {
            bits |= leaf ^ descriptor::made_dirty(leaf, context.space.regime());
        }
        Some(bits)
    })
}
