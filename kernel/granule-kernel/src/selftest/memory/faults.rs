//! Tests of accesses that must fault with an explanation, and of free pages that fault.

#![allow(unsafe_code, reason = "deliberate faults")]

use super::{Allows, Block, Snapshot, assert_allows, assert_as, kernel, ok};
use crate::arch::cpu;
use crate::cpu::jobs;
use crate::dev::console::println;
use crate::exception::spurious;
use crate::mm::guard::Pool;
use crate::mm::pageattr::{
    set_direct_map_default, set_direct_map_invalid, set_memory_nx, set_memory_ro, set_memory_x,
};
use crate::percpu;
use crate::selftest::early_walk as fault;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule_kcore::cpus::set::CpuSet;

/// Seconds that another CPU may take.
const PATIENCE_S: u64 = 30;

fn read(address: VirtualAddress) {
    // SAFETY: none; the read is meant to fault.
    unsafe { (address.0 as *const u64).read_volatile() };
}

fn write(address: VirtualAddress) {
    // SAFETY: none; the write is meant to fault.
    unsafe { (address.0 as *mut u64).write_volatile(1) };
}

/// The accesses that end in a panic.
#[inline(never)]
pub(super) fn run(what: &[u8]) {
    match what {
        b"write-read-only" => {
            let block = one_page();
            ok("ro", set_memory_ro(block.at(0), 1));
            read(block.at(0));
            write(block.at(0));
        }
        b"execute" => {
            let block = one_page();
            ok("ro", set_memory_ro(block.at(0), 1));
            ok("x", set_memory_x(block.at(0), 1));
            ok("nx", set_memory_nx(block.at(0), 1));
            // SAFETY: none; the jump is meant to fault.
            unsafe { asm!("br {}", in(reg) block.at(0).0, options(noreturn)) };
        }
        b"read-invalid" => {
            let block = one_page();
            ok("invalid", set_direct_map_invalid(block.at(0), 1));
            read(block.at(0));
        }
        b"read-guard" => {
            let pool = ok("Pool::new", Pool::new(2));
            ok("set_valid", pool.set_valid(3, false));
            if let Some(address) = pool.address(3) {
                read(address);
            }
        }
        b"use-after-free" => {
            let block = one_page();
            let address = block.at(0);
            write(address);
            block.free();
            read(address);
            println!("granule: a page was read after it was freed, and nobody noticed");
        }
        _ => {}
    }
}

fn one_page() -> Block {
    Block::new(kernel().page())
}

/// Another CPU uses a page before it sees that the page is valid. The fault is ignored once the page is
/// valid.
#[inline(never)]
pub(super) fn spurious() {
    const WORD: u64 = 0x6561_726c_7900;
    assert!(
        percpu::online().contains(1),
        "the test takes more than one CPU"
    );
    let pool = ok("Pool::new", Pool::new(1));
    let Some(page) = pool.address(1) else { return };
    // SAFETY: the pool's page, which is still valid.
    unsafe { (page.0 as *mut u64).write_volatile(WORD) };
    ok("set_valid", pool.set_valid(1, false));
    let before = spurious::count();
    let found = AtomicU64::new(0);
    let use_it = |_: &'static percpu::PerCpu| {
        // SAFETY: the pool's page, once it is valid.
        let word = unsafe { (page.0 as *const u64).read_volatile() };
        found.store(word, Ordering::Relaxed);
    };
    fault::hold();
    jobs::run_while(CpuSet::one(1), PATIENCE_S, &use_it, || {
        while !fault::is_held() {
            cpu::relax();
        }
        ok("set_valid", pool.set_valid(1, true));
        fault::release();
    });
    assert_eq!(found.load(Ordering::Relaxed), WORD, "what was read");
    let faults = spurious::count() - before;
    println!("@granule test.spurious.faults={faults}");
    pool.release();
}

/// With `debug_pagealloc=on`, free pages are invalid and allocated pages are not.
#[inline(never)]
pub(super) fn pagealloc() {
    let kernel = kernel();
    let page = kernel.page();
    let before = Snapshot::take();
    assert_eq!(
        before.present_invalid, before.free,
        "free pages that are invalid"
    );
    println!(
        "@granule test.pagealloc.present_invalid={}",
        before.present_invalid
    );
    let mut blocks = arrayvec::ArrayVec::<Block, 8>::new();
    let mut pages = 0;
    for order in [0, 3, 0, 5, 1] {
        let block = Block::new(page << order);
        for number in 0..1 << order {
            assert_allows(block.at(number), Allows::Writing, "an allocated page");
            write(block.at(number));
        }
        pages += 1 << order;
        blocks.push(block);
    }
    let now = Snapshot::take();
    assert_eq!(
        now.present_invalid,
        before.present_invalid - pages,
        "{pages} pages allocated"
    );
    // Permissions change as in any other map.
    if let Some(block) = blocks.first() {
        ok("ro", set_memory_ro(block.at(0), 1));
        assert_allows(block.at(0), Allows::Reading, "set_memory_ro");
        ok("default", set_direct_map_default(block.at(0), 1));
    }
    while let Some(block) = blocks.pop() {
        let (first, last) = (block.at(0), block.at((1 << block.order) - 1));
        block.free();
        assert_allows(first, Allows::Nothing, "a freed page");
        assert_allows(last, Allows::Nothing, "a freed page");
    }
    assert_as(&before, "after all was freed");
    println!("@granule test.pagealloc.pages={pages}");
}
