//! Tests of memory hotplug: memory that is removed and added again, and new memory.

#![allow(unsafe_code, reason = "memory that was just removed")]

use super::{
    Allows, Block, Snapshot, assert_allows, assert_as, free_allows, in_linear_map, kernel, ok, size,
};
use crate::arch::cpu;
use crate::cpu::jobs;
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::hotplug::{self, HotplugError};
use crate::mm::pages::{self, Pages};
use crate::mm::{kernel_tables, merge};
use crate::percpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::{TableError, Visit};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::frames::metadata::metadata_bytes;
use granule_kcore::frames::tables::Source;
use granule_kcore::frames::{Frame, FrameError};

const BLOCK: u64 = 256 << 20;
/// Seconds that another CPU may take.
const PATIENCE_S: u64 = 30;

fn add(start: u64, bytes: u64) -> Result<(), HotplugError> {
    // SAFETY: RAM that was removed before, or that the kernel never knew.
    unsafe { hotplug::add_memory(PhysicalAddress(start), bytes) }
}

fn remove(start: u64, bytes: u64) -> Result<(), HotplugError> {
    hotplug::remove_memory(PhysicalAddress(start), bytes)
}

fn address(physical: u64) -> VirtualAddress {
    in_linear_map(PhysicalAddress(physical))
}

/// Removes parts of a free block, in pieces of many sizes, and adds them again.
#[inline(never)]
pub(super) fn again() {
    let kernel = kernel();
    let page = kernel.page();
    let before = Snapshot::take();
    // At the address of a free block.
    let block = Block::new(BLOCK);
    let start = block.physical().0;

    // Allocated memory stays.
    let frame = Frame::containing(PhysicalAddress(start), size());
    let allocated = true;
    let before_it = in_use(start - page);
    let refusal = before_it.unwrap_or(FrameError::InUse { frame, allocated });
    assert_eq!(remove(start - page, 2 * page), Err(refusal.into()));
    assert!(matches!(
        remove(start, BLOCK),
        Err(HotplugError::Frames(FrameError::InUse { frame: at, allocated: true })) if at == frame
    ));
    block.free();
    assert_as(&before, "after removals that were refused");
    let image = kernel.image.start;
    assert!(matches!(
        remove(image, page),
        Err(HotplugError::Linear(LinearError::Image { .. }))
    ));
    for (start, bytes) in [
        (start + 8, page),
        (start, page - 1),
        (start, 0),
        (u64::MAX - page + 1, page),
    ] {
        assert!(matches!(
            remove(start, bytes),
            Err(HotplugError::Linear(LinearError::Outside { .. }))
        ));
        assert!(add(start, bytes).is_err());
    }
    let there = add(start, page);
    assert!(
        matches!(
            there,
            Err(HotplugError::Linear(LinearError::Table(
                TableError::AlreadyMapped { .. }
            )))
        ),
        "{there:?}"
    );
    assert_as(&before, "after additions that were refused");

    let pieces = [
        (0, BLOCK),
        (0, page),
        (BLOCK / 2 + 3 * page, page),
        (BLOCK / 4 - 5 * page, BLOCK / 2 + 7 * page),
        (BLOCK - page, page),
    ];
    let mut removed = 0;
    for (offset, bytes) in pieces {
        let (at, last) = (start + offset, start + offset + bytes - page);
        ok("remove_memory", remove(at, bytes));
        let without = Snapshot::take();
        assert_eq!(without.bytes, before.bytes - bytes);
        assert_eq!(without.frames(), before.frames() - bytes / page);
        for gone in [at, last] {
            assert_allows(address(gone), Allows::Nothing, "removed memory");
        }
        if offset > 0 {
            assert_allows(address(at - page), free_allows(), "before removed memory");
        }
        if offset + bytes < BLOCK {
            assert_allows(address(last + page), free_allows(), "behind removed memory");
        }
        assert!(remove(at, page).is_err() && remove(last, page).is_err());
        nobody_gets(at, bytes);
        ok("add_memory", add(at, bytes));
        for back in [at, last] {
            assert_allows(address(back), free_allows(), "memory that came back");
        }
        merge::merge_candidates();
        assert_as(&before, "after memory came back");
        removed += bytes;
    }
    println!("@granule test.hotplug.bytes={removed}");

    // Without memory for the tables of the split, nothing changes.
    let needed = exhausted(start + BLOCK / 2 + 3 * page, page, &before);
    println!("@granule test.hotplug.tables={needed}");
}

/// Why the page at `at` cannot be removed; `None` if it is free.
fn in_use(at: u64) -> Option<FrameError> {
    let frame = Frame::containing(PhysicalAddress(at), size());
    let (free, allocated) = Pages.with(|frames| (frames.is_free(frame), frames.is_given(frame)));
    (!free).then_some(FrameError::InUse { frame, allocated })
}

/// Removes a range with ever more frames free for tables. Returns the number it needs.
fn exhausted(start: u64, bytes: u64, before: &Snapshot) -> u64 {
    let kernel = kernel();
    let count = bytes / kernel.page();
    let mut left = 0;
    loop {
        let aside = before.free - count - left;
        assert!(Pages.with(|frames| frames.reserve(aside)));
        let result = remove(start, bytes);
        Pages.with(|frames| frames.unreserve(aside));
        match result {
            Ok(()) => break,
            Err(HotplugError::Linear(LinearError::Table(TableError::OutOfTables { .. }))) => {
                assert_as(before, "after a removal without memory");
            }
            Err(error) => panic!("remove_memory with {left} frames: {error}"),
        }
        left += 1;
    }
    ok("add_memory", add(start, bytes));
    merge::merge_candidates();
    assert_as(before, "after memory came back");
    left
}

/// Allocates all memory in large blocks and frees it. No block may overlap the removed range.
#[inline(never)]
fn nobody_gets(start: u64, bytes: u64) {
    let mut blocks = arrayvec::ArrayVec::<(Frame, u32), 256>::new();
    for order in (0..=granule_kcore::frames::max_order(size())).rev() {
        while !blocks.is_full()
            && let Some(frame) = pages::allocate(order)
        {
            let at = frame.address(size()).0;
            assert!(
                at + (size().bytes() << order) <= start || at >= start + bytes,
                "{frame} was removed and is allocated"
            );
            blocks.push((frame, order));
        }
    }
    for (frame, order) in blocks {
        ok("free", pages::free(frame, order));
    }
}

/// The machine has more RAM than its device tree lists. The rest is added, used, and removed again.
#[inline(never)]
pub(super) fn new_bank() {
    let kernel = kernel();
    let before = Snapshot::take();
    let mut end = 0;
    kernel_tables::look(|kernel, _, tree| {
        tree.visit(
            kernel.geometry.base(),
            kernel.geometry.span() / 2,
            |entry| {
                if entry.kind == granule::arch::Kind::Leaf {
                    end = entry.output.0 + entry.bytes;
                }
                Visit::EVERYTHING
            },
        )
    });
    let start = end.next_multiple_of(BLOCK);
    ok("add_memory", add(start, BLOCK));
    let with = Snapshot::take();
    assert_eq!(with.bytes, before.bytes + BLOCK);
    let metadata = before.frames() + BLOCK / kernel.page() - with.frames();
    println!(
        "@granule test.hotplug.metadata={}",
        metadata * kernel.page()
    );
    println!(
        "@granule test.hotplug.leaves={}",
        with.leaves - before.leaves
    );
    // All of the new memory is usable.
    let page = kernel.page();
    for offset in (0..BLOCK).step_by(page as usize) {
        let word = address(start + offset).0 as *mut u64;
        // SAFETY: the memory is not allocated, and the allocator stores nothing there.
        unsafe { word.write_volatile(offset) };
    }
    for offset in (0..BLOCK).step_by(page as usize) {
        let word = address(start + offset).0 as *const u64;
        // SAFETY: as above.
        assert_eq!(unsafe { word.read_volatile() }, offset);
    }
    let frame = Frame::containing(PhysicalAddress(start), size());
    assert!(Pages.with(|frames| frames.is_free(frame)));
    ok("remove_memory", remove(start, BLOCK));
    assert_allows(address(start), Allows::Nothing, "removed memory");
    // The frames' metadata is kept for their return.
    let without = Snapshot::take();
    assert_eq!(
        (without.digest, without.tables),
        (before.digest, before.tables)
    );
    assert_eq!(without.frames(), before.frames() - metadata);
    ok("add_memory", add(start, BLOCK));
    assert_as(&with, "after the new memory came back");
    println!("@granule test.hotplug.new_bytes={BLOCK}");
    twice_at_once(start + BLOCK);
}

/// Two CPUs add the same new memory, piece by piece. Only one may succeed, and the metadata that the other
/// allocated must be free again.
fn twice_at_once(start: u64) {
    const PIECE: u64 = 1 << 20;
    const PIECES: u64 = 64;
    if !percpu::online().contains(1) {
        return;
    }
    let page = kernel().page();
    let before = Snapshot::take();
    let (turn, added) = (AtomicU64::new(0), AtomicU64::new(0));
    // Both begin each piece together.
    let work = |number: u64| {
        for piece in 0..PIECES {
            turn.fetch_add(1, Ordering::AcqRel);
            while turn.load(Ordering::Acquire) < 2 * (piece + 1) {
                cpu::relax();
            }
            match add(start + piece * PIECE, PIECE) {
                Ok(()) => added.fetch_add(1, Ordering::Relaxed),
                Err(HotplugError::Linear(LinearError::Table(TableError::AlreadyMapped {
                    ..
                }))) => 0,
                Err(error) => panic!("CPU {number} adds piece {piece}: {error}"),
            };
        }
    };
    jobs::run_while(CpuSet::one(1), PATIENCE_S, &|_| work(1), || work(0));
    assert_eq!(added.load(Ordering::Relaxed), PIECES, "pieces added");
    let with = Snapshot::take();
    let frames = PIECE / page;
    let metadata = metadata_bytes(frames).div_ceil(page).next_power_of_two();
    assert_eq!(
        with.frames(),
        before.frames() + PIECES * (frames - metadata),
        "frames after {PIECES} pieces were added by two CPUs at once"
    );
    println!("@granule test.hotplug.twice={PIECES}");
}
