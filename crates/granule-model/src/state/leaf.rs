//! A leaf with its output address and attributes: from the tables or from a TLB, in one form for
//! comparison.

use super::stale_range::StaleRange;
use super::walk::EntryAt;
use crate::arch::context::Context;
use crate::arch::descriptor::{self, Attributes, Hierarchy};

/// A leaf with its output address and attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafView {
    pub(crate) va: u64,
    pub(crate) shift: u32,
    pub(crate) output: u64,
    pub(crate) attributes: Attributes,
}

impl LeafView {
    fn new(raw: u64, va: u64, level: i8, hierarchy: Hierarchy, context: &Context) -> Self {
        Self {
            va,
            shift: context.format.granule.level_shift(level),
            output: descriptor::leaf_address(raw, level, context.format),
            attributes: descriptor::attributes(raw, level, hierarchy, context),
        }
    }

    /// A leaf of the tables.
    pub(crate) fn of_entry(entry: &EntryAt, context: &Context) -> Self {
        Self::new(entry.raw, entry.va, entry.level, entry.hierarchy, context)
    }

    /// A leaf that a TLB may hold.
    pub(crate) fn of_stale(stale: &StaleRange, index: u64, context: &Context) -> Self {
        Self::new(
            stale.entry_value(index),
            stale.entry_va(index),
            stale.level,
            stale.hierarchy,
            context,
        )
    }
}
