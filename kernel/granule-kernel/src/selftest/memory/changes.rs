//! Tests of each call that changes the linear map, and of the merging on idle CPUs afterwards.

#![allow(unsafe_code, reason = "a block that the test owns")]

use super::{Allows, Block, Snapshot, assert_allows, assert_as, in_linear_map, kernel, ok};
use crate::arch::{cpu, image};
use crate::cpu::jobs;
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::kernel_tables::{self, Flush};
use crate::mm::merge;
use crate::mm::pageattr::{
    flush_direct_map, kernel_page_present, set_direct_map_default, set_direct_map_default_noflush,
    set_direct_map_invalid, set_direct_map_invalid_noflush, set_memory_nx, set_memory_ro,
    set_memory_rw, set_memory_valid, set_memory_x,
};
use crate::percpu;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::TableError;
use granule_kcore::cpus::set::CpuSet;

/// Pages of the test's block.
const PAGES: u64 = 64;
/// The first changed page. The pages around the range must stay as they are.
const FIRST: u64 = 5;
const COUNT: u64 = 38;
/// Seconds that idle CPUs may take to merge.
const PATIENCE_S: u64 = 20;

fn assert_each(block: &Block, inside: Allows, what: &str) {
    for page in [0, FIRST - 1, FIRST + COUNT, PAGES - 1] {
        assert_allows(block.at(page), Allows::Writing, what);
    }
    for page in [FIRST, FIRST + COUNT / 2, FIRST + COUNT - 1] {
        assert_allows(block.at(page), inside, what);
    }
}

/// Whether the tables allow executing a page.
fn is_executable(address: VirtualAddress) -> bool {
    let mapping = kernel_tables::look(|_, _, tree| tree.query(address)).flatten();
    mapping.is_some_and(|mapping| mapping.attributes.permissions.privileged_execute)
}

#[inline(never)]
pub(super) fn permissions() {
    let kernel = kernel();
    let before = Snapshot::take();
    let block = Block::new(PAGES * kernel.page());
    let (start, pages) = (block.at(FIRST), COUNT);
    assert_each(&block, Allows::Writing, "before");

    ok("ro", set_memory_ro(start, pages));
    assert_each(&block, Allows::Reading, "set_memory_ro");
    ok("ro twice", set_memory_ro(start, pages));
    ok("rw", set_memory_rw(start, pages));
    assert_each(&block, Allows::Writing, "set_memory_rw");

    ok("valid=false", set_memory_valid(start, pages, false));
    assert_each(&block, Allows::Nothing, "set_memory_valid(false)");
    assert!(!kernel_page_present(start));
    assert!(kernel_page_present(block.at(FIRST - 1)));
    assert!(!kernel_page_present(VirtualAddress(image::start())));
    // Permissions may change while the pages are invalid, and apply later.
    ok("ro while invalid", set_memory_ro(start, pages));
    assert_each(&block, Allows::Nothing, "set_memory_ro of invalid pages");
    ok("valid=true", set_memory_valid(start, pages, true));
    assert_each(&block, Allows::Reading, "set_memory_valid(true)");
    assert!(kernel_page_present(start));

    execution(&block);

    ok("invalid", set_direct_map_invalid(start, pages));
    assert_each(&block, Allows::Nothing, "set_direct_map_invalid");
    ok("default", set_direct_map_default(start, pages));
    assert_each(&block, Allows::Writing, "set_direct_map_default");
    ok("ro", set_memory_ro(start, pages));
    ok("default", set_direct_map_default(start, pages));
    assert_each(&block, Allows::Writing, "set_direct_map_default");
    // A part of the invalid range becomes valid.
    ok("all invalid", set_direct_map_invalid(block.at(0), PAGES));
    ok("some default", set_direct_map_default(block.at(0), FIRST));
    let rest = block.at(FIRST + COUNT);
    ok(
        "some valid",
        set_memory_valid(rest, PAGES - FIRST - COUNT, true),
    );
    assert_each(&block, Allows::Nothing, "what was left out");
    ok("default", set_direct_map_default(start, pages));
    deferred(&block);
    assert_each(&block, Allows::Writing, "in the end");

    refusals(&block);
    block.free();
    merge::merge_candidates();
    assert_as(&before, "after all permissions were put back and merged");
    println!("@granule test.permissions.leaves={}", before.leaves);
    println!("@granule test.permissions.tables={}", before.tables);
}

/// Code is written and run. It cannot be written while it is executable, nor run before or after.
fn execution(block: &Block) {
    let page = block.at(FIRST);
    ok("rw", set_memory_rw(page, 1));
    let refused = set_memory_x(page, 1);
    assert_eq!(
        refused,
        Err(LinearError::WritableExecutable { address: page })
    );
    // `mov x0, #0x123; ret`.
    let code = page.0 as *mut u32;
    // SAFETY: a page of the test's block, writable.
    unsafe {
        code.write_volatile(0xd280_2460);
        code.add(1).write_volatile(0xd65f_03c0);
        asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) code);
    }
    assert!(!is_executable(page));
    ok("ro", set_memory_ro(page, 1));
    ok("x", set_memory_x(page, 1));
    assert!(is_executable(page) && !is_executable(block.at(FIRST + 1)));
    let refused = set_memory_rw(block.at(FIRST - 1), 2);
    assert_eq!(
        refused,
        Err(LinearError::WritableExecutable { address: page })
    );
    let result: u64;
    // SAFETY: the two instructions above; they change x0 and return.
    unsafe { asm!("blr {}", in(reg) code, out("x0") result, out("x30") _) };
    assert_eq!(result, 0x123, "what code in the linear map returned");
    ok("nx", set_memory_nx(page, 1));
    assert!(!is_executable(page));
    ok("rw", set_memory_rw(page, 1));
    ok("ro", set_memory_ro(page, 1));
}

/// Tests the calls without a TLBI, followed by one TLBI for all.
fn deferred(block: &Block) {
    let (start, end) = (block.at(FIRST), block.at(FIRST + COUNT - 2));
    let before = kernel_tables::counted();
    ok("invalid", set_direct_map_invalid_noflush(start, 2));
    ok("invalid", set_direct_map_invalid_noflush(end, 2));
    assert_eq!(kernel_tables::counted().since(before).counts.tlbi, 0);
    ok("flush", flush_direct_map(start, COUNT));
    let tlbi = kernel_tables::counted().since(before).counts.tlbi;
    // At most one for each page, twice where an erratum requires repetition.
    assert!(tlbi > 0 && tlbi <= 2 * COUNT, "{tlbi} TLBIs");
    println!("@granule test.permissions.flush_tlbi={tlbi}");
    for page in [FIRST, FIRST + 1, FIRST + COUNT - 2, FIRST + COUNT - 1] {
        assert_allows(block.at(page), Allows::Nothing, "after flush_direct_map");
    }
    assert_allows(block.at(FIRST + 2), Allows::Writing, "between");
    ok("default", set_direct_map_default_noflush(start, COUNT));
    ok("flush", flush_direct_map(start, COUNT));
}

/// Calls that must be refused, and change nothing.
fn refusals(block: &Block) {
    let kernel = kernel();
    let before = Snapshot::take();
    let counted = kernel_tables::counted();
    type Call = fn(VirtualAddress, u64) -> Result<(), LinearError>;
    let calls: [Call; 8] = [
        set_memory_ro,
        set_memory_rw,
        set_memory_nx,
        set_memory_x,
        |start, pages| set_memory_valid(start, pages, false),
        |start, pages| set_memory_valid(start, pages, true),
        set_direct_map_invalid,
        set_direct_map_default,
    ];
    let alias = |physical| in_linear_map(PhysicalAddress(physical));
    let text = alias(kernel.image.start);
    let tables = alias(kernel.root.0);
    let first = kernel.placement.origin;
    let last = first.0.saturating_add(kernel.placement.span);
    let top = VirtualAddress(alias(last & !(kernel.page() - 1)).0);
    // Nothing is mapped below the first bank, if there is an address below.
    let below = alias(first.0);
    for call in calls {
        ok("no pages", call(block.at(0), 0));
        for (start, pages) in [
            (VirtualAddress(block.start + 8), 1),
            (VirtualAddress(image::start()), 1),
            (VirtualAddress(0x1000), 1),
            (block.at(0), u64::MAX),
            (top, 2),
        ] {
            let refused = call(start, pages);
            assert!(
                matches!(refused, Err(LinearError::Outside { .. })),
                "{pages} pages at {start}: {refused:?}"
            );
        }
        for start in [text, tables] {
            let refused = call(start, 1);
            assert!(
                matches!(refused, Err(LinearError::Image { .. })),
                "{refused:?}"
            );
        }
        // A hole: the first unmapped page.
        if cpu::translate(below.0).is_err() {
            let refused = call(below, 1);
            let hole = LinearError::Table(TableError::NotMapped { address: below });
            assert!(
                refused == Err(hole),
                "a page at {below}, which is not mapped: {refused:?}"
            );
        }
    }
    assert_eq!(
        kernel_tables::counted().since(counted).counts,
        Default::default()
    );
    assert_as(&before, "after calls that were refused");
}

/// Idle CPUs merge without a request.
#[inline(never)]
pub(super) fn background() {
    let kernel = kernel();
    let before = Snapshot::take();
    let merged = merge::in_background();
    let block = Block::new(PAGES * kernel.page());
    ok("ro", set_memory_ro(block.at(FIRST), COUNT));
    let split = Snapshot::take();
    assert!(
        split.leaves > before.leaves || split.grouped < before.grouped,
        "nothing was split"
    );
    ok("rw", set_memory_rw(block.at(FIRST), COUNT));
    // Free memory is merged too: the caller need not announce that it is free.
    block.free();
    if percpu::online().len() == 1 {
        merge::settle();
    }
    wait_for(&before);
    // The last step frees its tables before it counts them.
    kernel_tables::change(Flush::Now, |_, _, _| ());
    while merge::in_background().tables == merged.tables
        && merge::in_background().groups == merged.groups
    {
        cpu::relax();
    }
    let now = merge::in_background();
    println!(
        "@granule test.background.tables={}",
        now.tables - merged.tables
    );
    println!(
        "@granule test.background.groups={}",
        now.groups - merged.groups
    );
}

/// The CPU that was woken to merge gets a job, so another CPU must merge.
#[inline(never)]
pub(super) fn background_busy() {
    let kernel = kernel();
    assert!(
        percpu::online().contains(2),
        "the test takes more than two CPUs"
    );
    let before = Snapshot::take();
    let block = Block::new(PAGES * kernel.page());
    ok("ro", set_memory_ro(block.at(FIRST), COUNT));
    let enough = AtomicBool::new(false);
    let hold = |_: &'static percpu::PerCpu| {
        while !enough.load(Ordering::Acquire) {
            cpu::relax();
        }
    };
    ok("rw", set_memory_rw(block.at(FIRST), COUNT));
    block.free();
    jobs::run_while(CpuSet::one(1), PATIENCE_S, &hold, || {
        wait_for(&before);
        enough.store(true, Ordering::Release);
    });
    println!("@granule test.background.busy=1");
}

/// Waits until idle CPUs have merged everything.
fn wait_for(before: &Snapshot) {
    let mut timeout = cpu::timeout(PATIENCE_S);
    while Snapshot::take() != *before {
        assert!(
            !timeout.is_over(cpu::counter_now()),
            "after {PATIENCE_S} s idle CPUs have merged {:?}: {:?}, expected {before:?}",
            merge::in_background(),
            Snapshot::take()
        );
        // An idle CPU takes the tables only when their lock is free.
        let since = cpu::counter_now();
        while cpu::counter_now().wrapping_sub(since) < cpu::cntfrq_el0() / 1000 {
            cpu::relax();
        }
    }
}
