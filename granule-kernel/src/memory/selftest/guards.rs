//! A pool of guard pages, in use while others have the tables.

use super::{Allows, Snapshot, assert_allows, assert_as, ok};
use crate::console::println;
use crate::cpu;
use crate::memory::guard::Pool;
use crate::memory::live::{self, Flush};
use crate::memory::merge;
use crate::memory::permissions::{self, LinearError};
use crate::smp::set::CpuSet;
use crate::smp::{jobs, percpu};
use core::sync::atomic::{AtomicBool, Ordering};

const ORDER: u32 = 5;
const PAGES: u64 = 1 << ORDER;
const PATIENCE_S: u64 = 30;

#[inline(never)]
pub(super) fn pool() {
    let before = Snapshot::take();
    let took = live::counted();
    let pool = ok("Pool::new", Pool::new(ORDER));
    println!(
        "@granule test.guard.locks={}",
        live::counted().since(took).locks
    );
    let made = Snapshot::take();
    let address = |page| ok("address", pool.address(page).ok_or("there is none"));
    assert!(pool.address(PAGES).is_none());
    assert!(pool.flip(PAGES, false).is_err());

    // While another CPU has the tables, if there is one.
    let one = CpuSet::one(1);
    let (held, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let hold = |_: &'static percpu::PerCpu| {
        live::change(Flush::Now, |_, _, _| {
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
                let did = ok("flip", pool.flip(page, valid));
                stores += did.stores;
                tlbi += did.tlbi;
                dsb += did.dsb;
                let seen = cpu::translate(address(page).0);
                assert_eq!(seen.is_ok(), valid, "guard page {page}");
                // Again: nothing.
                let did = ok("flip", pool.flip(page, valid));
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
        live::change(Flush::Now, |_, _, _| flips()).unwrap_or_default()
    };
    println!("@granule test.guard.flips={}", 2 * PAGES);
    println!("@granule test.guard.stores={stores}");
    println!("@granule test.guard.tlbi={tlbi}");
    println!("@granule test.guard.dsb={dsb}");
    assert_as(&made, "after all guard pages were valid again");

    // Every CPU sees one page go, and only that one.
    ok("flip", pool.flip(7, false));
    assert_allows(address(6), Allows::Writing, "before the guard page");
    assert_allows(address(7), Allows::Nothing, "the guard page");
    assert_allows(address(8), Allows::Writing, "behind the guard page");
    // Nobody else changes or merges them.
    for (start, pages) in [(address(7), 1), (address(0), PAGES)] {
        let refused = permissions::set_direct_map_default(start, pages);
        assert!(
            matches!(refused, Err(LinearError::Guarded { .. })),
            "{refused:?}"
        );
    }
    ok("flip", pool.flip(7, true));
    let merged = ok("merge", merge::merge_linear_map(address(0), PAGES));
    assert_eq!(
        (merged.tables, merged.groups),
        (0, 0),
        "guard pages were merged"
    );
    merge::merge_noted();
    assert_as(&made, "after everything but guard pages was merged");
    pool.release();
    merge::merge_noted();
    assert_as(&before, "after the pool was released");
}
