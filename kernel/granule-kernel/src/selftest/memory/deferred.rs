//! Tests of changes with a deferred TLBI, and of other changes before it. A trace of them must break no rule.

#![allow(unsafe_code, reason = "memory that was just removed")]

use super::quarters::{QUARTER, Quarters};
use super::{Allows, Block, Snapshot, assert_allows, assert_as, kernel, ok};
use crate::dev::console::println;
use crate::mm::pageattr::{
    flush_direct_map, set_direct_map_default, set_direct_map_default_noflush,
    set_direct_map_invalid_noflush, set_memory_valid,
};
use crate::mm::{hotplug, kernel_tables, merge};
use granule::arch::PhysicalAddress;
use granule::arch::bbm::BbmLevel;

const GIB: u64 = 1 << 30;
/// Pages that are used before the TLBI.
const PAGES: u64 = 5;

#[inline(never)]
pub(super) fn noflush() {
    let kernel = kernel();
    let before = Snapshot::take();
    whole(GIB / kernel.page());
    again(GIB / kernel.page());
    if kernel.bbm >= BbmLevel::Level2 {
        assert_as(&before, "after whole leaves were invalid");
        beside();
        assert_as(&before, "after a leaf was split without a TLBI");
    }
}

/// Whole leaves become invalid, which splits nothing and is allowed on every CPU. Some of their pages are
/// valid again before the TLBI.
fn whole(pages: u64) {
    let block = Block::new(GIB);
    let counted = kernel_tables::counted();
    let start = block.at(0);
    ok("invalid", set_direct_map_invalid_noflush(start, pages));
    let tlbi = kernel_tables::counted().since(counted).counts.tlbi;
    println!("@granule test.noflush.tlbi={tlbi}");
    ok(
        "default",
        set_direct_map_default_noflush(block.at(1), PAGES),
    );
    ok("flush", flush_direct_map(start, pages));
    for (page, allows) in [
        (0, Allows::Nothing),
        (1, Allows::Writing),
        (PAGES, Allows::Writing),
        (PAGES + 1, Allows::Nothing),
        (pages - 1, Allows::Nothing),
    ] {
        assert_allows(block.at(page), allows, "after flush_direct_map");
    }
    ok("default", set_direct_map_default(start, pages));
    block.free();
    merge::merge_candidates();
}

/// A call that does not defer its TLBI finds nothing to change, because a deferring call did the same change.
/// It must make the TLBI nevertheless.
fn again(pages: u64) {
    let block = Block::new(GIB);
    let start = block.at(0);
    assert_allows(start, Allows::Writing, "before");
    ok("invalid", set_direct_map_invalid_noflush(start, pages));
    let counted = kernel_tables::counted();
    ok("invalid", set_memory_valid(start, pages, false));
    let tlbi = kernel_tables::counted().since(counted).counts.tlbi;
    println!("@granule test.noflush.again.tlbi={tlbi}");
    assert_allows(start, Allows::Nothing, "after set_memory_valid");
    ok("default", set_direct_map_default_noflush(start, pages));
    ok("default", set_direct_map_default(start, pages));
    assert_allows(start, Allows::Writing, "after set_direct_map_default");
    block.free();
    merge::merge_candidates();
}

/// A page becomes invalid, for which a leaf is split. Other memory of that leaf is removed before the page's
/// TLBI. No translation of the removed memory may remain, in particular by the old leaf.
fn beside() {
    let quarters = Quarters::find();
    let (free, page) = (
        PhysicalAddress(quarters.free),
        quarters
            .blocks
            .iter()
            .find(|block| block.physical().0 == quarters.free ^ QUARTER),
    );
    let Some(page) = page.map(|block| block.at(7)) else {
        panic!("no quarter beside the free one is allocated");
    };
    ok("invalid", set_direct_map_invalid_noflush(page, 1));
    ok("remove_memory", hotplug::remove_memory(free, QUARTER));
    // SAFETY: RAM that was just removed and that nothing uses.
    ok("add_memory", unsafe { hotplug::add_memory(free, QUARTER) });
    ok("flush", flush_direct_map(page, 1));
    assert_allows(page, Allows::Nothing, "after flush_direct_map");
    ok("default", set_direct_map_default(page, 1));
    quarters.free();
    merge::merge_candidates();
}
