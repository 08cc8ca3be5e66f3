//! Faults in what changes the sizes of live leaves, and in what hides them, with the lock or
//! without.

use super::scenes::{BLOCK, Kernel, OUTPUT, PAGE, kernel};
use super::tables::{GONE, POINTER, STALE, is_tlbi_or_dsb, last_level};
use super::taps::*;
use super::{Fault, fault};
use crate::machine::{Shared, Tap};
use crate::operation::{Does, Operation};
use crate::reference::Reference;
use crate::shape::Shape;
use granule::table::Leaves;
use granule_model::Rule::*;
use granule_model::{Access, Event, Outcome};

pub(super) const FAULTS: &[Fault] = &[
    fault("the TLBI after making pages invalid is missing")
        .planted(set_invalid, || drop_all(is_tlbi))
        .breaks(StaleTranslation, GONE),
    fault("no DSB ISHST after showing pages")
        .planted(set_valid, || drop_all(is_ishst))
        .breaks(StoreNotVisible, "no DSB"),
    fault("no ISB after showing pages")
        .planted(set_valid, || drop_all(is_isb))
        .breaks(MissingIsb, "what it speculated"),
    fault("pages are made present-invalid and something else mapped there before the TLBI")
        .planted(set_invalid_and_replace, || drop_all(is_tlbi))
        .breaks(BreakBeforeMake, ""),
    fault("the TLBI of a change is missing after the split that it took")
        .planted(split, || drop_all(is_tlbi))
        .breaks(StaleTranslation, STALE),
    fault("the TLBI after a split hints at the level of the small leaves")
        .planted(split, || tlbis(|op| with_operand(op, op.1 | 0b0111 << 44)))
        .breaks(StaleTranslation, "level hint"),
    fault("the table of a split is linked by a plain store")
        .planted(split, || replace(is_link, plain))
        .breaks(UnorderedLink, "before these stores"),
    fault("the table of a split is linked before it is filled")
        .planted(split, || delay(is_leaf_fill, is_link))
        .breaks(UninitialisedTable, "whatever was in the memory"),
    fault("a table that is split off has another memory type")
        .planted(split, || replace(is_leaf_fill, bits(1 << 2)))
        .breaks(SizeWithOtherChange, ""),
    fault("one member keeps the hint when a group is split")
        .planted(split_group, || nth(0, is_update, one_less))
        .breaks(MixedContiguous, "contiguous"),
    fault("a merged table is freed before the TLBI")
        .planted(merge, || delay(is_tlbi_or_dsb, is_freed))
        .breaks(FreedInUse, POINTER),
    fault("a last-level TLBI where a table was merged")
        .planted(merge, || tlbis(last_level))
        .breaks(FreedInUse, POINTER),
    fault("one page is forgotten by the TLBI of a merge")
        .planted(merge_and_protect, || nth(17, is_tlbi, |_| Vec::new()))
        .breaks(StaleTranslation, STALE),
    fault("a block maps something else than the table that it replaces")
        .planted(merge, || nth(0, is_block, bits(1 << 2)))
        .breaks(SizeWithOtherChange, ""),
    fault("one member has no hint after a merge")
        .planted(merge_group, || nth(0, is_update, one_less))
        .breaks(MixedContiguous, "contiguous"),
    fault("the table of limited leaves is linked by a plain store")
        .planted(limit, || replace(is_link, plain))
        .breaks(UnorderedLink, "before these stores"),
    fault("the table of limited leaves is linked before it is filled")
        .planted(limit, || delay(is_leaf_fill, is_link))
        .breaks(UninitialisedTable, "whatever was in the memory"),
    fault("limited leaves have another memory type")
        .planted(limit, || replace(is_leaf_fill, bits(1 << 2)))
        .breaks(SizeWithOtherChange, ""),
    fault("one member keeps the hint when leaves are limited")
        .planted(limit_group, || nth(0, is_update, one_less))
        .breaks(MixedContiguous, "contiguous"),
    fault("the TLBI after a guard page is made without the lock is missing")
        .planted(guard, || drop_all(is_tlbi))
        .breaks(StaleTranslation, GONE),
    fault("no DSB ISHST before the TLBI of a guard page made without the lock")
        .planted(guard, || drop_all(is_ishst))
        .breaks(StaleTranslation, "not yet visible to walkers (no DSB)"),
    fault("no ISB after a guard page is taken away without the lock")
        .planted(unguard, || drop_all(is_isb))
        .breaks(MissingIsb, "what it speculated"),
];

/// A store of one block.
const fn is_block(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 1, descriptor: value, .. } if *value & 0b11 == 0b01)
}

/// CPUs that let sizes change in place, with FEAT_TLBIRANGE and FEAT_TTL or not.
fn live(tlbi_range: bool) -> Kernel {
    kernel(Shape::kernel(48).bbm_level(2).tlbi_range(tlbi_range))
}

fn with_block(tlbi_range: bool) -> Kernel {
    let mut kernel = live(tlbi_range);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::LARGEST);
    kernel
}

impl Kernel {
    fn set_invalid(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.set_invalid(at, bytes);
    }

    fn set_valid(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.set_valid(at, bytes);
    }

    fn limit(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.limit_leaves(at, bytes, Leaves::PAGES);
    }

    /// Beside everyone else, without the lock that the others take.
    fn lock_free_set_valid(&mut self, offset: u64, bytes: u64, valid: bool) {
        let operation = Operation::on((offset, bytes), Does::LockFreeSetValid(valid));
        let _ = operation.perform(self, &Reference::default());
    }

    fn merge(&mut self, offset: u64, bytes: u64) {
        let at = self.at(offset);
        let _ = self.tables.merge(at, bytes, Leaves::LARGEST);
    }
}

/// Eight of 64 pages become present-invalid.
fn set_invalid(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| kernel.set_invalid(8 * PAGE, 8 * PAGE))
}

/// They are shown again.
fn set_valid(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.set_invalid(8 * PAGE, 8 * PAGE);
    kernel.play(tap, |kernel| kernel.set_valid(8 * PAGE, 8 * PAGE))
}

/// They are made invalid, unmapped, and other memory is mapped in their place.
fn set_invalid_and_replace(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| {
        kernel.set_invalid(8 * PAGE, 8 * PAGE);
        kernel.take(8 * PAGE, 8 * PAGE);
        kernel.lay(8 * PAGE, 8 * PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    })
}

/// A page inside a block becomes read-only.
fn split(tap: Option<Tap>) -> Shared {
    with_block(true).play(tap, |kernel| kernel.read_only(40 * PAGE, PAGE))
}

/// A page inside a group becomes read-only.
fn split_group(tap: Option<Tap>) -> Shared {
    let mut kernel = live(true);
    kernel.lay(0, 16 * PAGE, OUTPUT, Leaves::LARGEST);
    kernel.play(tap, |kernel| kernel.read_only(4 * PAGE, PAGE))
}

/// All pages of a table become a block, and the table is used again.
fn merge(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| {
        kernel.merge(0, BLOCK);
        kernel.lay(8 * BLOCK, PAGE, OUTPUT + BLOCK, Leaves::PAGES);
    })
}

/// The block becomes read-only, which one address in it is enough for.
fn merge_and_protect(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, BLOCK, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| {
        kernel.merge(0, BLOCK);
        kernel.read_only(0, BLOCK);
    })
}

/// Pages become a group.
fn merge_group(tap: Option<Tap>) -> Shared {
    let mut kernel = live(true);
    kernel.lay(0, 16 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| kernel.merge(0, 16 * PAGE))
}

/// A block becomes pages, of which nothing else is changed.
fn limit(tap: Option<Tap>) -> Shared {
    with_block(true).play(tap, |kernel| kernel.limit(0, BLOCK))
}

/// A group becomes pages.
fn limit_group(tap: Option<Tap>) -> Shared {
    let mut kernel = live(true);
    kernel.lay(0, 16 * PAGE, OUTPUT, Leaves::LARGEST);
    kernel.play(tap, |kernel| kernel.limit(4 * PAGE, PAGE))
}

/// One of 64 pages is made a guard page.
fn guard(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.play(tap, |kernel| {
        kernel.lock_free_set_valid(8 * PAGE, PAGE, false)
    })
}

/// It is one no more.
fn unguard(tap: Option<Tap>) -> Shared {
    let mut kernel = live(false);
    kernel.lay(0, 64 * PAGE, OUTPUT, Leaves::PAGES);
    kernel.lock_free_set_valid(8 * PAGE, PAGE, false);
    kernel.play(tap, |kernel| {
        kernel.lock_free_set_valid(8 * PAGE, PAGE, true)
    })
}

/// Checks a promise of limiting leaves beside the rules: no TLB holds a larger one any more, so that no
/// access can end in a TLB conflict abort. Without its invalidation one could.
#[test]
fn no_tlb_holds_a_leaf_that_was_limited() {
    let conflicts = |tap| {
        let mut kernel = with_block(true);
        kernel.plant(tap);
        kernel.limit(0, BLOCK);
        kernel.settle();
        let va = kernel.at(40 * PAGE).0;
        let world = kernel.world.borrow();
        let cpus = 0..kernel.shape.cpus;
        let outcomes = cpus.flat_map(|cpu| world.model.outcomes(cpu, va, Access::READ));
        outcomes.filter(|one| *one == Outcome::Conflict).count()
    };
    assert_eq!(conflicts(None), 0);
    assert!(conflicts(Some(drop_all(is_tlbi))) > 0);
}
