//! Trees of one half that a TLB may hold entries of at once.
//!
//! Leaves that are not global meet only those of their ASID. A global leaf meets every lookup, so the
//! other tree must have the same leaf there.

use super::change::Difference;
use crate::arch::context::RootKey;
use crate::arch::descriptor::EntryKind;
use crate::state::leaf::LeafView;
use crate::state::sharing::Spans;
use crate::state::tables::Root;
use crate::state::trees::Trees;
use crate::state::walk::{EntryAt, TableAt};

/// The global leaves of two trees, exactly, and whether both trees have all of them alike.
pub(crate) struct Compared {
    pub(crate) alike: bool,
    pub(crate) globals: [Spans; 2],
}

/// Compares two trees where one of them has a global leaf.
pub(crate) fn compare(trees: Trees<'_>, one: &Root, other: &Root) -> Compared {
    let leaves = [globals(trees, one), globals(trees, other)];
    let alike = have_all(trees, &leaves[0], &one.key, &other.key)
        && have_all(trees, &leaves[1], &other.key, &one.key);
    let globals = leaves.map(|leaves| {
        let mut spans = Spans::default();
        leaves
            .iter()
            .for_each(|leaf| spans.add(leaf.va, leaf.last()));
        spans
    });
    Compared { alike, globals }
}

fn globals(trees: Trees<'_>, root: &Root) -> Vec<EntryAt> {
    let top = TableAt::top(&root.key);
    let spans = root.globals.iter();
    spans
        .flat_map(|span| trees.globals(&root.key, &top, span))
        .collect()
}

/// Whether all leaves, which are of one tree, stand in another tree too.
fn have_all(trees: Trees<'_>, leaves: &[EntryAt], of: &RootKey, other: &RootKey) -> bool {
    leaves.iter().all(|leaf| {
        let view = LeafView::of_entry(leaf, &of.context);
        let mut same = false;
        trees.entries(other, (leaf.va, leaf.last()), |entry| {
            let is_alike =
                || Difference::between(&view, &LeafView::of_entry(entry, &other.context)).none();
            same |= entry.kind == EntryKind::Leaf && is_alike();
        });
        same
    })
}
