//! The changes of a valid entry that are allowed while the replaced entry may be cached.
//!
//! One pure function, [`compare`], holds the architecture's table (RWHZWS and the relaxations of
//! the BBM levels, RPVTFW, RKFLJB): it compares a possibly cached entry with an entry of the
//! tables.

use crate::arch::context::Context;
use crate::arch::descriptor::{self, EntryKind};
use crate::config::Config;
use crate::state::leaf::LeafView;
use crate::state::stale_range::{StaleKind, StaleRange};
use crate::state::walk::EntryAt;
use crate::violation::Rule;

/// The differences between two leaves that translate a common address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Memory type, cacheability, shareability, physical address space.
    pub(crate) memory: bool,
    /// The output address.
    pub(crate) output: bool,
    /// One of the two is writable.
    pub(crate) writable: bool,
    /// The size of the entry.
    pub(crate) size: bool,
    /// The contiguous bit.
    pub(crate) contiguous: bool,
    /// The nT bit.
    pub(crate) no_translation: bool,
    /// The old leaf has the nT bit, on which a lookup may fault, and the new leaf has not.
    pub(crate) refused: bool,
    /// The old leaf was not global and the new one is.
    pub(crate) to_global: bool,
    /// The new leaf allows less, or is guarded where the old one was not.
    pub(crate) narrowed: bool,
    /// The new leaf allows more.
    pub(crate) widened: bool,
    /// The old leaf was global and the new one is not.
    pub(crate) to_not_global: bool,
    /// The access flag was cleared.
    pub(crate) access_cleared: bool,
    /// A dirty page was marked clean.
    pub(crate) dirty_cleared: bool,
}

impl Difference {
    /// Compares a leaf that may be cached (at `old_va`, with its output address there) with a leaf
    /// in the tables.
    pub(crate) fn between(old: &LeafView, new: &LeafView) -> Self {
        let (a, b) = (&old.attributes, &new.attributes);
        let at = old.va.max(new.va);
        let narrowed = b.privileged.less_than(a.privileged)
            || b.user.less_than(a.user)
            || (b.guarded && !a.guarded);
        let widened = a.privileged.less_than(b.privileged)
            || a.user.less_than(b.user)
            || (a.guarded && !b.guarded);
        Self {
            memory: a.memory != b.memory
                || a.shareability != b.shareability
                || a.output_space != b.output_space,
            output: old.output + (at - old.va) != new.output + (at - new.va),
            writable: a.privileged.write || a.user.write || b.privileged.write || b.user.write,
            size: old.shift != new.shift,
            contiguous: a.contiguous != b.contiguous,
            no_translation: a.no_translation != b.no_translation,
            refused: a.no_translation && !b.no_translation,
            to_global: !a.global && b.global,
            narrowed,
            widened,
            to_not_global: a.global && !b.global,
            access_cleared: a.accessed && !b.accessed,
            dirty_cleared: a.dirty && !b.dirty,
        }
    }

    /// Whether an access may have a result that the tables do not give.
    pub(crate) const fn matters(&self) -> bool {
        self.memory
            || self.output
            || self.narrowed
            || self.to_not_global
            || self.to_global
            || self.refused
    }

    /// Whether nothing differs, not even the bits that no access can observe.
    pub(crate) const fn none(&self) -> bool {
        !self.matters()
            && !self.size
            && !self.contiguous
            && !self.no_translation
            && !self.widened
            && !self.access_cleared
            && !self.dirty_cleared
    }
}

/// The result of comparing a cached entry with an entry of the tables for a common address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The two are the same: the cached entry is no longer stale.
    Same,
    /// The two may coexist; the cached entry stays stale.
    Allowed,
    /// The two must not coexist.
    Broken(Rule, &'static str),
}

const OTHER_OUTPUT: &str = "may use either output address, or mix them";
const OTHER_MEMORY: &str = "may access memory with mismatched attributes";
const OTHER_SIZE: &str = "may find entries of different sizes for one address";
const OTHER_TABLE: &str = "may walk on in the old table";

/// Compares the entry `index` of a stale range with an entry of the tables that translates a common
/// address, each in its own context. `together`: one event replaced one entry by the other.
pub(crate) fn compare(
    (stale, index, stale_context): (&StaleRange, u64, &Context),
    (new, context): (&EntryAt, &Context),
    together: bool,
    config: &Config,
) -> Comparison {
    let level = config.bbm_level;
    let old_raw = stale.entry_value(index);
    match (stale.kind, new.kind) {
        (_, EntryKind::Invalid) => Comparison::Allowed,
        (StaleKind::Table, EntryKind::Table) => {
            if stale.shift != new.shift {
                return Comparison::Allowed;
            }
            let old_target = descriptor::table_address(old_raw, stale_context.format);
            let new_target = descriptor::table_address(new.raw, context.format);
            if old_target != new_target {
                return Comparison::Broken(Rule::BreakBeforeMake, OTHER_TABLE);
            }
            let old_limits = stale.hierarchy.below(old_raw, stale_context);
            if old_limits == new.hierarchy.below(new.raw, context) {
                Comparison::Same
            } else {
                Comparison::Allowed
            }
        }
        (StaleKind::Table, EntryKind::Leaf) => {
            // A pointer above the leaf was compared with the entry that now stands in its place. A
            // pointer below leads to other entries for some of the leaf's addresses.
            if stale.shift > new.shift {
                return Comparison::Allowed;
            }
            let attributes = LeafView::of_entry(new, context).attributes;
            resized(level, attributes.no_translation)
        }
        (StaleKind::Leaf, EntryKind::Table) => {
            if stale.shift != new.shift {
                return Comparison::Allowed;
            }
            let attributes = stale.attributes(index, stale_context);
            resized(level, attributes.no_translation)
        }
        (StaleKind::Leaf, EntryKind::Leaf) => {
            let old = LeafView::of_stale(stale, index, stale_context);
            let new = LeafView::of_entry(new, context);
            compare_leaves(&old, &new, together, config)
        }
    }
}

/// A change between block and table at one entry.
const fn resized(level: u8, no_translation: bool) -> Comparison {
    if level >= 2 || (level == 1 && no_translation) {
        Comparison::Allowed
    } else {
        Comparison::Broken(Rule::BreakBeforeMake, OTHER_SIZE)
    }
}

fn compare_leaves(old: &LeafView, new: &LeafView, together: bool, config: &Config) -> Comparison {
    let level = config.bbm_level;
    let difference = Difference::between(old, new);
    if difference.none() {
        return Comparison::Same;
    }
    let needs_break = if difference.memory {
        Some(OTHER_MEMORY)
    } else if difference.output && (difference.writable || !config.equal_contents) {
        Some(OTHER_OUTPUT)
    } else if difference.to_global {
        Some("may find a global and a non-global entry for one address")
    } else {
        None
    };
    let resized = difference.size || difference.contiguous;
    if let Some(observation) = needs_break {
        return Comparison::Broken(
            if resized && together && level >= 1 {
                Rule::SizeWithOtherChange
            } else {
                Rule::BreakBeforeMake
            },
            observation,
        );
    }
    if difference.size {
        let no_translation = old.attributes.no_translation || new.attributes.no_translation;
        if !(level >= 2 || (level == 1 && no_translation)) {
            return Comparison::Broken(Rule::BreakBeforeMake, OTHER_SIZE);
        }
    }
    if difference.contiguous && level == 0 {
        return Comparison::Broken(
            Rule::BreakBeforeMake,
            "may find entries with and without the contiguous bit for one address",
        );
    }
    if difference.no_translation && !resized && level == 0 {
        return Comparison::Broken(
            Rule::BreakBeforeMake,
            "does not know the nT bit (no FEAT_BBM)",
        );
    }
    // RPVTFW is about other changes that need a break. Permissions never need one: their stale
    // entries are reported where they are relied on.
    if resized
        && together
        && config.strict
        && (difference.narrowed || difference.widened || difference.to_not_global)
    {
        return Comparison::Broken(
            Rule::SizeWithOtherChange,
            "may find entries of different sizes whose permissions differ",
        );
    }
    if resized && together && config.strict && (level == 1 || level == 2) {
        return Comparison::Broken(Rule::ConflictPossible, "may take a TLB conflict abort");
    }
    Comparison::Allowed
}
