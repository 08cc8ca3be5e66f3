//! Faults in what changes the sizes of live leaves, and in what hides them.

use super::scenes::{BLOCK, Kernel, OUTPUT, PAGE, Result, kernel};
use super::tables::{GONE, POINTER, STALE, is_tlbi_or_dsb, last_level};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::Tap;
use crate::shape::Shape;
use granule::table::Leaves;
use granule_model::EventKind;
use granule_model::Rule::*;

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "the TLBI after hiding pages is missing",
        hide,
        || drop_all(is_tlbi),
        StaleTranslation,
        GONE,
    ),
    fault(
        "no DSB ISHST after showing pages",
        show,
        || drop_all(is_ishst),
        StoreNotVisible,
        "no DSB",
    ),
    fault(
        "no ISB after showing pages",
        show,
        || drop_all(is_isb),
        MissingIsb,
        "what it speculated",
    ),
    fault(
        "pages are hidden and something else mapped there before the TLBI",
        hide_and_replace,
        || drop_all(is_tlbi),
        BreakBeforeMake,
        "",
    ),
    fault(
        "the TLBI of a change is missing after the split that it took",
        split,
        || drop_all(is_tlbi),
        StaleTranslation,
        STALE,
    ),
    fault(
        "the TLBI after a split hints at the level of the small leaves",
        split,
        || tlbis(|op| with_operand(op, op.operand | 0b0111 << 44)),
        StaleTranslation,
        "level hint",
    ),
    fault(
        "the table of a split is linked by a plain store",
        split,
        || replace(is_link, plain),
        UnorderedLink,
        "before these stores",
    ),
    fault(
        "the table of a split is linked before it is filled",
        split,
        || delay(is_leaf_fill, is_link),
        UninitialisedTable,
        "whatever was in the memory",
    ),
    fault(
        "a table that is split off has another memory type",
        split,
        || replace(is_leaf_fill, bits(1 << 2)),
        SizeWithOtherChange,
        "",
    ),
    fault(
        "one member keeps the hint when a group is split",
        split_group,
        || nth(0, is_update, one_less),
        MixedContiguous,
        "contiguous",
    ),
    fault(
        "a merged table is freed before the TLBI",
        merge,
        || delay(is_tlbi_or_dsb, is_freed),
        FreedInUse,
        POINTER,
    ),
    fault(
        "a last-level TLBI where a table was merged",
        merge,
        || tlbis(last_level),
        FreedInUse,
        POINTER,
    ),
    fault(
        "one page is forgotten by the TLBI of a merge",
        merge_and_protect,
        || nth(17, is_tlbi, |_| Vec::new()),
        StaleTranslation,
        STALE,
    ),
    fault(
        "a block says something else than the table that it replaces",
        merge,
        || nth(0, is_block, bits(1 << 2)),
        SizeWithOtherChange,
        "",
    ),
    fault(
        "one member has no hint after a merge",
        merge_group,
        || nth(0, is_update, one_less),
        MixedContiguous,
        "contiguous",
    ),
];

/// A store of one block.
const fn is_block(kind: &EventKind) -> bool {
    matches!(kind, EventKind::StoreDescriptor { value, .. } if *value & 0b11 == 0b01)
}

/// CPUs that let sizes change in place, with FEAT_TLBIRANGE and FEAT_TTL or not.
fn live(tlbi_range: bool) -> Kernel {
    kernel(Shape {
        bbm_level: 2,
        tlbi_range,
        ..Shape::kernel(48)
    })
}

fn with_block(tlbi_range: bool) -> Kernel {
    let mut kernel = live(tlbi_range);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::LARGEST);
    kernel
}

impl Kernel {
    fn hide(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.hide(at, bytes);
    }

    fn show(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.show(at, bytes);
    }

    fn merge(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.merge(at, bytes, Leaves::LARGEST);
    }
}

/// Eight of 64 pages are hidden.
fn hide(tap: Option<Tap>) -> Result {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.hide(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// They are shown again.
fn show(tap: Option<Tap>) -> Result {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.hide(8 * PAGE, 8 * PAGE);
    kernel.tap(tap);
    kernel.show(8 * PAGE, 8 * PAGE);
    kernel.end()
}

/// They are hidden, unmapped, and other memory is mapped in their place.
fn hide_and_replace(tap: Option<Tap>) -> Result {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.hide(8 * PAGE, 8 * PAGE);
    kernel.take(8 * PAGE, 8 * PAGE);
    kernel.lay(8 * PAGE, 8 * PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    kernel.end()
}

/// A page inside a block becomes read-only.
fn split(tap: Option<Tap>) -> Result {
    let mut kernel = with_block(true);
    kernel.tap(tap);
    kernel.read_only(40 * PAGE, PAGE);
    kernel.end()
}

/// A page inside a group becomes read-only.
fn split_group(tap: Option<Tap>) -> Result {
    let mut kernel = live(true);
    kernel.lay(0, 16 * PAGE, OUTPUT, Leaves::LARGEST);
    kernel.tap(tap);
    kernel.read_only(4 * PAGE, PAGE);
    kernel.end()
}

/// All pages of a table become a block, and the table is used again.
fn merge(tap: Option<Tap>) -> Result {
    let mut kernel = live(false);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.merge(0, BLOCK);
    kernel.lay(8 * BLOCK, PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    kernel.end()
}

/// The block becomes read-only, which one address in it is enough for.
fn merge_and_protect(tap: Option<Tap>) -> Result {
    let mut kernel = live(false);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.merge(0, BLOCK);
    kernel.read_only(0, BLOCK);
    kernel.end()
}

/// Pages become a group.
fn merge_group(tap: Option<Tap>) -> Result {
    let mut kernel = live(true);
    kernel.lay(0, 16 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.tap(tap);
    kernel.merge(0, 16 * PAGE);
    kernel.end()
}
