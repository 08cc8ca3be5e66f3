//! Tests of a pool of guard pages, used while other CPUs hold the tables.

use super::{Allows, Block, Random, Snapshot, assert_allows, assert_as, kernel, ok};
use crate::arch::cpu;
use crate::cpu::{ipi, jobs};
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::guard::Pool;
use crate::mm::kernel_tables::{self, Flush};
use crate::mm::merge;
use crate::mm::pageattr::{set_direct_map_default, set_memory_ro, set_memory_rw};
use crate::percpu;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule_kcore::cpus::set::CpuSet;

const ORDER: u32 = 5;
const PAGES: u64 = 1 << ORDER;
const PATIENCE_S: u64 = 30;

#[inline(never)]
pub(super) fn pool() {
    let before = Snapshot::take();
    let took = kernel_tables::counted();
    let pool = ok("Pool::new", Pool::new(ORDER));
    println!(
        "@granule test.guard.locks={}",
        kernel_tables::counted().since(took).locks
    );
    let made = Snapshot::take();
    let address = |page| ok("address", pool.address(page).ok_or("there is none"));
    assert!(pool.address(PAGES).is_none());
    assert!(pool.set_valid(PAGES, false).is_err());

    // While another CPU, if there is one, holds the tables.
    let one = CpuSet::one(1);
    let (held, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let hold = |_: &'static percpu::PerCpu| {
        kernel_tables::change(Flush::Now, |_, _, _| {
            held.store(true, Ordering::Release);
            while !enough.load(Ordering::Acquire) {
                cpu::relax();
            }
        });
    };
    let flips = || {
        let (mut stores, mut tlbi, mut dsb) = (0, 0, 0);
        for valid in [false, true] {
            for page in 0..PAGES {
                let did = ok("set_valid", pool.set_valid(page, valid));
                stores += did.stores;
                tlbi += did.tlbi;
                dsb += did.dsb;
                let seen = cpu::translate(address(page).0);
                assert_eq!(seen.is_ok(), valid, "guard page {page}");
                // The same state again takes nothing.
                let did = ok("set_valid", pool.set_valid(page, valid));
                assert_eq!((did.stores, did.tlbi, did.dsb), (0, 0, 0));
            }
        }
        (stores, tlbi, dsb)
    };
    let (stores, tlbi, dsb) = if percpu::online().contains(1) {
        jobs::run_while(one, PATIENCE_S, &hold, || {
            while !held.load(Ordering::Acquire) {
                cpu::relax();
            }
            let done = flips();
            enough.store(true, Ordering::Release);
            done
        })
    } else {
        kernel_tables::change(Flush::Now, |_, _, _| flips()).unwrap_or_default()
    };
    let flipped = 2 * PAGES;
    for (key, value) in [
        ("set_valid", flipped),
        ("stores", stores),
        ("tlbi", tlbi),
        ("dsb", dsb),
    ] {
        println!("@granule test.guard.{key}={value}");
    }
    assert_as(&made, "after all guard pages were valid again");

    // Every CPU sees one page become invalid, and only that one.
    ok("set_valid", pool.set_valid(7, false));
    assert_allows(address(6), Allows::Writing, "before the guard page");
    assert_allows(address(7), Allows::Nothing, "the guard page");
    assert_allows(address(8), Allows::Writing, "behind the guard page");
    // No other call changes or merges the pages.
    for (start, pages) in [(address(7), 1), (address(0), PAGES)] {
        let refused = set_direct_map_default(start, pages);
        assert!(
            matches!(refused, Err(LinearError::Guarded { .. })),
            "{refused:?}"
        );
    }
    ok("set_valid", pool.set_valid(7, true));
    let merged = ok("merge", merge::merge_linear_map(address(0), PAGES));
    assert_eq!(
        (merged.tables, merged.groups),
        (0, 0),
        "guard pages were merged"
    );
    merge::merge_candidates();
    assert_as(&made, "after everything but guard pages was merged");
    pool.release();
    merge::merge_candidates();
    assert_as(&before, "after the pool was released");
}

/// Flips of guard pages beside other changes.
const FLIPS: u64 = 128;
/// Order of the pool, and of the block beside it that is split and merged: a contiguous group with each page
/// size.
const BESIDE_ORDER: u32 = 7;
const BESIDE: u64 = 1 << BESIDE_ORDER;
/// Most blocks that are allocated until two are adjacent.
const MOST_BLOCKS: usize = 64;
/// Bytes around the pool that are merged.
const AROUND: u64 = 32 << 20;

/// Allocates a block and a pool of the same size that are adjacent. Also returns the other blocks that this
/// took.
fn neighbours(bytes: u64) -> (Block, Pool, ArrayVec<Block, MOST_BLOCKS>) {
    let mut blocks = ArrayVec::<Block, MOST_BLOCKS>::new();
    let mut block = Block::new(bytes);
    loop {
        let next = Block::new(bytes);
        if next.start == block.start + bytes {
            // The only free block that is not larger.
            let start = next.start;
            next.free();
            let pool = ok("Pool::new", Pool::new(BESIDE_ORDER));
            assert_eq!(pool.address(0), Some(VirtualAddress(start)), "the pool");
            return (block, pool, blocks);
        }
        assert!(
            !blocks.is_full(),
            "no two free blocks lie beside each other"
        );
        blocks.push(core::mem::replace(&mut block, next));
    }
}

/// Flips pages of a pool in interrupts, on a CPU that splits and merges leaves beside them.
#[inline(never)]
pub(super) fn beside() {
    assert!(
        percpu::online().contains(1),
        "the test takes more than one CPU"
    );
    let kernel = kernel();
    let before = Snapshot::take();
    let (block, pool, others) = neighbours(BESIDE * kernel.page());
    let made = Snapshot::take();
    let (one, enough) = (CpuSet::one(1), AtomicBool::new(false));
    let merged = AtomicU64::new(0);
    let around = VirtualAddress(block.start & !(AROUND - 1));
    let change = |_: &'static percpu::PerCpu| {
        let mut random = Random::new(1);
        while !enough.load(Ordering::Acquire) {
            let first = random.below(BESIDE);
            let pages = 1 + random.below(BESIDE - first);
            ok("ro", set_memory_ro(block.at(first), pages));
            ok("rw", set_memory_rw(block.at(first), pages));
            let done = merge::merge_linear_map(around, AROUND / kernel.page());
            let done = ok("merge", done);
            merged.fetch_add(done.tables + done.groups, Ordering::Relaxed);
        }
    };
    // The number of the first wrong page plus one; 0 for none.
    let wrong = AtomicU64::new(0);
    jobs::run_while(one, PATIENCE_S, &change, || {
        for flip in 0..FLIPS {
            let (page, valid) = (flip / 2 % BESIDE, flip % 2 == 1);
            ipi::call(one, &|_| {
                let flipped = pool.set_valid(page, valid).is_ok_and(|did| did.stores == 1);
                let seen = pool.address(page).map(|at| cpu::translate(at.0).is_ok());
                if !flipped || seen != Some(valid) {
                    wrong.store(page + 1, Ordering::Relaxed);
                }
            });
            assert_eq!(wrong.load(Ordering::Relaxed), 0, "a page, from 1");
        }
        enough.store(true, Ordering::Release);
    });
    merge::merge_candidates();
    assert_as(&made, "after all guard pages were valid again");
    pool.release();
    for block in others {
        block.free();
    }
    block.free();
    merge::merge_candidates();
    assert_as(&before, "after the pool was released");
    let merged = merged.load(Ordering::Relaxed);
    println!("@granule test.beside.set_valid={FLIPS}");
    println!("@granule test.beside.merged={merged}");
}
