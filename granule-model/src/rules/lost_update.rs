//! Updates of the access flag and the dirty state by hardware, and stores that lose them (RWLTNL).
//!
//! Hardware changes an entry in one step, at any time while a CPU with TCR.HA or TCR.HD set walks
//! it. Software that loads such an entry and stores a changed value with a plain store may undo the
//! hardware's update, so it must use one step (an exchange) too.

use crate::arch::descriptor::{self, Kind};
use crate::state::ids::TableId;
use crate::state::tables::Path;
use crate::state::trees::Trees;
use crate::violation::Rule;
use crate::violation::report::{Found, Report};
use granule_trace::Visibility;
use std::collections::BTreeMap;

/// The state of the rule: what has to be checked again.
#[derive(Debug, Default)]
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
        let is_leaf = |value| descriptor::kind(value, table.level, table.format) == Kind::Leaf;
        let found = |event: u64| {
            let range = (location, location + 7);
            Found::in_memory(Rule::LostUpdate, stored.cpu, range, TEXT)
                .because_of(event)
                .located(location)
        };
        let plain = matches!(stored.visibility, Visibility::Private | Visibility::Live);
        if is_leaf(old) && plain && may_be_updated(trees, paths, old) {
            if is_leaf(new) {
                report.add(found(0));
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
            let to = |value| descriptor::leaf_address(value, table.level, table.format);
            if to(suspect.value) == to(new) && may_be_updated(trees, paths, new) {
                report.add(found(suspect.event));
            }
        }
    }
}

/// Whether a CPU that walks one of these paths may be updating a leaf.
fn may_be_updated(trees: Trees<'_>, paths: &[Path], leaf: u64) -> bool {
    paths.iter().any(|path| {
        let root = trees.tables.root(path.root);
        root.is_some_and(|root| {
            let context = &root.key.context;
            let regime = context.space.regime();
            (context.hardware_access && leaf & descriptor::ACCESSED == 0)
                || (context.hardware_dirty && descriptor::made_dirty(leaf, regime) != leaf)
        })
    })
}
