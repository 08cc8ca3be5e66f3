//! Test of memory in pages of every size: pieces of frames, frames, and runs of frames.

#![allow(unsafe_code, reason = "pages that the test owns")]

use super::{Random, Snapshot, assert_as, kernel, size};
use crate::cpu::ipi;
use crate::dev::console::println;
use crate::mm::environment::TableSource;
use crate::mm::kernel_tables::pointer;
use crate::mm::sized_tables::SizedTables;
use crate::mm::{pages, sized};
use crate::percpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, Reservation};

/// Allocates, shares and releases pages of every size, alone, on every CPU at once, and without memory.
#[inline(never)]
pub(super) fn sized() {
    let whole = Snapshot::take();
    let before = sized::counted();
    for of in PageSize::ALL {
        one_by_one(of);
        tables(of);
        twice(of, before.refused);
    }
    let refused = sized::counted().refused;
    let done = AtomicU64::new(0);
    ipi::call(percpu::online(), &|this| {
        done.fetch_add(random(this.number() as u64), Ordering::Relaxed);
    });
    println!("@granule test.sized.pages={}", done.into_inner());
    fragmented();
    assert_eq!(sized::counted().allocated, before.allocated);
    assert_eq!(sized::counted().refused, refused);
    assert_as(&whole, "after pages of every size");
}

fn write(page: PhysicalAddress, value: u64) {
    if let Some(word) = pointer(page) {
        // SAFETY: the test allocated the page, and the linear map shows it.
        unsafe { word.cast::<u64>().write_volatile(value) };
    }
}

fn read(page: PhysicalAddress) -> u64 {
    // SAFETY: as in `write`.
    pointer(page).map_or(0, |word| unsafe { word.cast::<u64>().read_volatile() })
}

fn some(page: Option<PhysicalAddress>, of: PageSize, least: u64) -> PhysicalAddress {
    let Some(page) = page else {
        panic!("no {of:?} page");
    };
    assert!(page.0.is_multiple_of(of.bytes() * least), "{page:?}");
    page
}

/// As [`sized::sharing`], whose answer may be about fewer pages.
fn sharing(of: PageSize, first: PhysicalAddress, count: u64) -> (bool, u64) {
    let (shared, mut alike) = sized::sharing(of, first, count);
    while alike < count {
        let next = PhysicalAddress(first.0 + alike * of.bytes());
        match sized::sharing(of, next, count - alike) {
            (other, more) if other == shared => alike += more,
            _ => break,
        }
    }
    (shared, alike)
}

/// Each way to allocate, and owners.
fn one_by_one(of: PageSize) {
    let before = sized::counted().allocated;
    let first = some(sized::allocate_in_group(of, 16, 0), of, 16);
    for index in 1..16 {
        let next = PhysicalAddress(first.0 + index * of.bytes());
        assert_eq!(sized::allocate_exactly(of, next), Some(next));
        assert_eq!(sized::allocate_exactly(of, next), None);
    }
    // The group takes its frames, and one for records if there are pieces.
    let frames = (16 * of.bytes()).div_ceil(size().bytes()) + u64::from(of < size());
    assert_eq!(sized::counted().allocated, before + frames);
    let run = some(sized::allocate_run(of, 64), of, 64);
    let one = some(sized::allocate_one(of), of, 1);
    sized::share(of, run, 40);
    assert_eq!(sharing(of, run, 64), (true, 40));
    let rest = PhysicalAddress(run.0 + 40 * of.bytes());
    assert_eq!(sharing(of, rest, 24), (false, 24));
    sized::release(of, run, 64);
    assert_eq!(sharing(of, run, 40), (false, 40));
    sized::release(of, run, 40);
    sized::release(of, first, 16);
    sized::release(of, one, 1);
    assert_eq!(sized::counted().allocated, before);
}

/// Tables are of the size, and go back. Those of the kernel's size can be reserved.
fn tables(of: PageSize) {
    let kernel = kernel();
    let before = sized::counted().allocated;
    // SAFETY: the linear map covers the page allocator's frames; nothing walks the tables.
    let mut tables = unsafe { SizedTables::new(kernel, of) };
    if of == kernel.geometry.page_size() {
        assert_eq!(tables.reserve(7), Reservation::Granted);
        assert_eq!(tables.reserve(5), Reservation::Granted);
        assert_eq!(tables.reserve(1 << 40), Reservation::Refused);
    } else {
        assert_eq!(tables.reserve(7), Reservation::Unsupported);
    }
    let mut left = 6;
    while left > 0 {
        let run = tables.allocate_run(left);
        let Some(run) = run else {
            panic!("a table of {of:?} is missing");
        };
        assert!(run.count <= left && run.first.0.is_multiple_of(of.bytes()));
        left -= run.count;
        for number in 0..run.count as u64 {
            write(PhysicalAddress(run.first.0 + number * of.bytes()), u64::MAX);
        }
        for number in 0..run.count as u64 {
            let table = PhysicalAddress(run.first.0 + number * of.bytes());
            // SAFETY: no walker has seen the table.
            tables.free(unsafe { FreedTable::unreachable(table) });
        }
    }
    drop(tables);
    assert_eq!(sized::counted().allocated, before);
}

/// A page that is released twice is refused, and counted.
fn twice(of: PageSize, refused: u64) {
    let beside = some(sized::allocate_one(of), of, 1);
    let page = some(sized::allocate_one(of), of, 1);
    let refused = sized::counted().refused.max(refused);
    sized::release(of, page, 1);
    sized::release(of, page, 1);
    assert_eq!(sized::counted().refused, refused + 1);
    if of < size() {
        // The frame of a piece that lives.
        pages::release(PhysicalAddress(beside.0 & !(size().bytes() - 1)), 1);
        assert_eq!(sized::counted().refused, refused + 2);
    }
    sized::release(of, beside, 1);
}

/// Pages of random sizes, each with a value of its own; the pages that were allocated.
fn random(seed: u64) -> u64 {
    let mut random = Random::new(seed + 1);
    let mut held = [(PageSize::K4, PhysicalAddress(0)); 32];
    let mut made = 0;
    for round in 0..2000 {
        let slot = &mut held[random.below(32) as usize];
        let (of, page) = *slot;
        if page.0 != 0 {
            assert_eq!(read(page), seed << 48 ^ page.0);
            sized::share(of, page, 1);
            sized::release(of, page, 1);
            sized::release(of, page, 1);
            *slot = (of, PhysicalAddress(0));
        }
        let of = PageSize::ALL[random.below(3) as usize];
        if round < 1900
            && let Some(page) = sized::allocate_one(of)
        {
            write(page, seed << 48 ^ page.0);
            made += 1;
            *slot = (of, page);
        }
    }
    for (of, page) in held {
        if page.0 != 0 {
            assert_eq!(read(page), seed << 48 ^ page.0);
            sized::release(of, page, 1);
        }
    }
    made
}

/// With every second frame taken there is no run for a larger page, and still room for pieces.
fn fragmented() {
    // All memory, as a list through its own runs: the next run, and the frames of this one.
    let page = size().bytes();
    let (mut list, mut frames) = (PhysicalAddress(0), 0);
    while let Ok((first, count)) = pages::allocate_run(512) {
        write(first, list.0);
        write(PhysicalAddress(first.0 + 8), count);
        (list, frames) = (first, frames + count);
    }
    for of in PageSize::ALL {
        assert_eq!(sized::allocate_one(of), None, "without memory");
    }
    let mut at = list;
    while at.0 != 0 {
        for odd in (1..read(PhysicalAddress(at.0 + 8))).step_by(2) {
            pages::release(PhysicalAddress(at.0 + odd * page), 1);
        }
        at = PhysicalAddress(read(at));
    }
    for of in PageSize::ALL {
        let got = sized::allocate_one(of);
        assert_eq!(got.is_some(), of <= size(), "{of:?} in fragmented memory");
        if let Some(page) = got {
            sized::release(of, page, 1);
        }
        let pair = sized::allocate_run(of, 2);
        assert_eq!(pair.is_some(), of < size(), "two of {of:?}");
        if let Some(page) = pair {
            sized::release(of, page, 2);
        }
    }
    println!("@granule test.sized.fragmented={frames}");
    while list.0 != 0 {
        let (at, count) = (list, read(PhysicalAddress(list.0 + 8)));
        list = PhysicalAddress(read(at));
        for even in (0..count).step_by(2) {
            pages::release(PhysicalAddress(at.0 + even * page), 1);
        }
    }
}
