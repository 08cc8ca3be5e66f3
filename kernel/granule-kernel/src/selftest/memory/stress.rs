//! Random changes of permissions while other CPUs use neighbouring pages in the same leaves.
//!
//! Three quarters of a block of 1 GiB are changed. The fourth is free memory that is removed and
//! added. Among the changed pages lie neighbours, which are never changed. Every other CPU writes
//! its own neighbours and reads them back, so a translation that is wrong or missing for a moment
//! shows as a wrong byte or a fault. Now and then such a CPU merges, at the same time as the CPU
//! that makes the changes. That CPU records the permissions of each page, and checks them with its
//! walker after each change. Its code is in this file; the others' is in [`neighbours`].
//!
//! `granule.test=permissions-stress:CHANGES[:SEED]`

#![allow(unsafe_code, reason = "a block that the test owns")]

mod neighbours;

use super::quarters::{QUARTER, Quarters};
use super::{Allows, Block, Random, Snapshot, assert_as, in_linear_map, kernel, ok};
use crate::arch::cpu;
use crate::cpu::jobs;
use crate::dev::console::println;
use crate::mm::error::LinearError;
use crate::mm::hotplug::{self, HotplugError};
use crate::mm::pageattr::{
    set_direct_map_default, set_direct_map_invalid, set_memory_nx, set_memory_ro, set_memory_rw,
    set_memory_valid, set_memory_x,
};
use crate::mm::{kernel_tables, merge};
use crate::percpu;
use crate::percpu::PerCpu;
use arrayvec::ArrayVec;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{PhysicalAddress, VirtualAddress};
use neighbours::{EACH, NEIGHBOURS, Progress, visit};

/// Seconds that the other CPUs may take to finish.
const PATIENCE_S: u64 = 60;

/// A page's differences from the initial state of RAM.
const READ_ONLY: u8 = 1;
const EXECUTABLE: u8 = 2;
const INVALID: u8 = 4;

/// Kinds of changes, and how often each is drawn.
const KINDS: [(LeafKind, &str, u64); 9] = [
    (LeafKind::ReadOnly, "ro", 4),
    (LeafKind::Writable, "rw", 4),
    (LeafKind::Executable, "x", 2),
    (LeafKind::NotExecutable, "nx", 2),
    (LeafKind::Invalid, "invalid", 4),
    (LeafKind::Valid, "valid", 3),
    (LeafKind::Default, "default", 6),
    (LeafKind::Merge, "merge", 3),
    (LeafKind::Plug, "plug", 2),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafKind {
    ReadOnly,
    Writable,
    Executable,
    NotExecutable,
    Invalid,
    Valid,
    Default,
    Merge,
    /// Memory is removed and added, which counts as two changes.
    Plug,
}

impl LeafKind {
    const fn is_permissions(self) -> bool {
        !matches!(self, Self::Merge | Self::Plug)
    }
}

/// Parses `CHANGES[:SEED]` and runs the test.
#[inline(never)]
pub(super) fn run(value: &[u8]) {
    let text = core::str::from_utf8(value).unwrap_or_default();
    let (changes, seed) = text.split_once(':').unwrap_or((text, "1"));
    let (Ok(changes), Ok(seed)) = (changes.parse(), seed.parse()) else {
        panic!("granule.test=permissions-stress: expected CHANGES[:SEED] as decimal numbers");
    };
    stress(changes, seed);
}

fn stress(changes: u64, seed: u64) {
    let others = percpu::online().without(0);
    assert!(!others.is_empty(), "the test takes more than one CPU");
    let before = Snapshot::take();
    let counted = kernel_tables::counted();
    let blocks = Quarters::find();
    let mut work = Changes::new(&blocks, seed);
    let progress = Progress::default();
    let (accesses, merges) = (AtomicU64::new(0), AtomicU64::new(0));
    let neighbours = work.neighbours.clone();
    let others_do = |this: &'static PerCpu| {
        let cpus = others.len() as u64;
        let did = visit(this, &neighbours, cpus, seed, &progress, &blocks);
        accesses.fetch_add(did.accesses, Ordering::Relaxed);
        merges.fetch_add(did.merges, Ordering::Relaxed);
    };
    jobs::run_while(others, PATIENCE_S, &others_do, || {
        while work.done() < changes {
            work.change();
            progress.changes.store(work.done(), Ordering::Relaxed);
        }
        work.put_back();
        progress.is_over.store(true, Ordering::Release);
    });
    let (counts, refused, in_use) = (work.counts, work.refused, work.in_use);
    let done = work.done();
    work.shadow.free();
    blocks.free();
    merge::merge_candidates();
    assert_as(&before, "after all changes were put back and merged");
    let accesses = accesses.load(Ordering::Relaxed);
    let took = kernel_tables::counted().since(counted);
    for ((_, name, _), count) in KINDS.iter().zip(counts) {
        println!("@granule test.stress.{name}={count}");
    }
    for (key, value) in [
        ("seed", seed),
        ("cpus", others.len() as u64 + 1),
        ("changes", done),
        ("refused", refused),
        ("in_use", in_use),
        ("accesses", accesses),
        ("merges", merges.load(Ordering::Relaxed)),
        ("stores", took.counts.stores),
        ("tlbi", took.counts.tlbi),
        ("locks", took.locks),
        ("leaves", before.leaves),
        ("tables", before.tables),
    ] {
        println!("@granule test.stress.{key}={value}");
    }
}

/// The state of the CPU that makes the changes.
struct Changes<'q> {
    quarters: &'q Quarters,
    random: Random,
    page: u64,
    /// Number of pages in a quarter.
    pages: u64,
    neighbours: ArrayVec<u64, NEIGHBOURS>,
    /// One byte for each page of the three quarters, with its differences from the initial state.
    shadow: Block,
    /// Number of changes of each kind.
    counts: [u64; KINDS.len()],
    /// Changes that had to be refused, and were.
    refused: u64,
    /// Removals that failed because a table was in the memory.
    in_use: u64,
}

impl<'q> Changes<'q> {
    fn new(quarters: &'q Quarters, seed: u64) -> Self {
        let page = kernel().page();
        let pages = QUARTER / page;
        let mut random = Random::new(seed);
        let mut neighbours = ArrayVec::new();
        let stride = pages / EACH;
        for block in &quarters.blocks {
            for index in 0..EACH {
                let at = index * stride + random.below(stride);
                neighbours.push(block.at(at).0);
            }
        }
        let shadow = Block::new((4 * pages).max(page).next_power_of_two());
        let mut changes = Self {
            quarters,
            random,
            page,
            pages,
            neighbours,
            shadow,
            counts: [0; KINDS.len()],
            refused: 0,
            in_use: 0,
        };
        changes.shadow().fill(0);
        changes
    }

    fn shadow(&mut self) -> &mut [u8] {
        let bytes = 3 * self.pages as usize;
        // SAFETY: this value owns the block, which is large enough and writable RAM.
        unsafe { core::slice::from_raw_parts_mut(self.shadow.start as *mut u8, bytes) }
    }

    /// Changes of permissions. Merging and plugging count separately.
    fn done(&self) -> u64 {
        let kinds = KINDS.iter().zip(&self.counts);
        let permissions = kinds.filter(|((kind, ..), _)| kind.is_permissions());
        permissions.map(|(_, count)| count).sum()
    }

    /// A range between two neighbours, or between a neighbour and an end: quarter, first page, number of
    /// pages.
    fn range(&mut self) -> (usize, u64, u64) {
        loop {
            let quarter = self.random.below(3) as usize;
            let gap = self.random.below(EACH + 1);
            let base = self.quarters.blocks[quarter].start;
            let page_of = |index: u64| {
                let address = self.neighbours[quarter * EACH as usize + index as usize];
                (address - base) / self.page
            };
            let first = if gap == 0 { 0 } else { page_of(gap - 1) + 1 };
            let end = if gap == EACH {
                self.pages
            } else {
                page_of(gap)
            };
            if first >= end {
                continue;
            }
            // The whole range one time in four, so that there is something to merge.
            let count = match self.random.below(4) {
                0 => end - first,
                _ => self.random.length(end - first),
            };
            // Right beside a neighbour two times in three.
            let at = match self.random.below(3) {
                0 => first,
                1 => end - count,
                _ => first + self.random.below(end - first - count + 1),
            };
            return (quarter, at, count);
        }
    }

    fn change(&mut self) {
        let total = KINDS.iter().map(|(_, _, weight)| weight).sum();
        let mut draw = self.random.below(total);
        let mut index = 0;
        for (place, (_, _, weight)) in KINDS.iter().enumerate() {
            index = place;
            if draw < *weight {
                break;
            }
            draw -= weight;
        }
        let (kind, ..) = KINDS[index];
        let changes = match kind {
            LeafKind::Plug => self.plug(),
            LeafKind::Merge if self.random.below(2) == 0 => {
                let start = VirtualAddress(self.quarters.start);
                ok("merging", merge::merge_linear_map(start, 4 * self.pages));
                1
            }
            _ => self.permissions(kind),
        };
        self.counts[index] += changes;
    }

    /// Makes one change of permissions. Returns the number of changes made.
    fn permissions(&mut self, kind: LeafKind) -> u64 {
        let (quarter, first, count) = self.range();
        let start = self.quarters.blocks[quarter].at(first);
        let place = quarter * self.pages as usize + first as usize;
        let page = self.page;
        let pages = &mut self.shadow()[place..place + count as usize];
        // The first page that forbids the change, if any.
        let forbids = |pages: &[u8], refused: fn(u8) -> bool| {
            let at = pages.iter().position(|page| refused(*page))?;
            Some(VirtualAddress(start.0 + at as u64 * page))
        };
        let expected = match kind {
            LeafKind::Writable => forbids(pages, |page| page & EXECUTABLE != 0),
            LeafKind::Executable => forbids(pages, |page| page & READ_ONLY == 0),
            _ => None,
        };
        let result = match kind {
            LeafKind::ReadOnly => set_memory_ro(start, count),
            LeafKind::Writable => set_memory_rw(start, count),
            LeafKind::Executable => set_memory_x(start, count),
            LeafKind::NotExecutable => set_memory_nx(start, count),
            LeafKind::Invalid => set_direct_map_invalid(start, count),
            LeafKind::Valid => set_memory_valid(start, count, true),
            LeafKind::Default => set_direct_map_default(start, count),
            LeafKind::Merge | LeafKind::Plug => merge::merge_linear_map(start, count).map(|_| ()),
        };
        if let Some(address) = expected {
            let refusal = Err(LinearError::WritableExecutable { address });
            assert!(
                result == refusal,
                "{kind:?} of {count} pages at {start}: {result:?}, expected {refusal:?}"
            );
        } else {
            assert!(
                result.is_ok(),
                "{kind:?} of {count} pages at {start}: {result:?}"
            );
            for page in &mut *pages {
                *page = match kind {
                    LeafKind::ReadOnly => *page | READ_ONLY,
                    LeafKind::Writable => *page & !READ_ONLY,
                    LeafKind::Executable => *page | EXECUTABLE,
                    LeafKind::NotExecutable => *page & !EXECUTABLE,
                    LeafKind::Invalid => *page | INVALID,
                    LeafKind::Valid => *page & !INVALID,
                    LeafKind::Default => 0,
                    LeafKind::Merge | LeafKind::Plug => *page,
                };
            }
        }
        let end = Some(first + count).filter(|end| *end < self.pages);
        let inside = [Some(first), Some(first + count - 1)];
        for at in [first.checked_sub(1), end].iter().chain(&inside).flatten() {
            self.assert_page(quarter, *at, kind);
        }
        if expected.is_some() {
            self.refused += 1;
            return 0;
        }
        1
    }

    /// Checks that this CPU's walker agrees with the shadow about a page.
    fn assert_page(&mut self, quarter: usize, page: u64, after: LeafKind) {
        let place = quarter * self.pages as usize + page as usize;
        let lacks = self.shadow()[place];
        let block = &self.quarters.blocks[quarter];
        let address = block.at(page);
        let allows = match lacks {
            lacks if lacks & INVALID != 0 => Allows::Nothing,
            lacks if lacks & READ_ONLY != 0 => Allows::Reading,
            _ => Allows::Writing,
        };
        let physical = block.physical().0 + page * self.page;
        let (read, write) = (
            cpu::translate(address.0),
            cpu::translate_to_write(address.0),
        );
        let readable = read == Ok(physical) && allows != Allows::Nothing
            || read.is_err() && allows == Allows::Nothing;
        let writable = write == Ok(physical) && allows == Allows::Writing
            || write.is_err() && allows != Allows::Writing;
        assert!(
            readable && writable,
            "after {after:?} {address} translates to {read:x?} and to write {write:x?}, expected {allows:?} at {physical:#x}"
        );
        let query = kernel_tables::look(|_, _, tree| tree.query(address)).flatten();
        let executable = query.map(|it| it.attributes.permissions.privileged_execute);
        if lacks & INVALID == 0 {
            assert!(
                executable == Some(lacks & EXECUTABLE != 0),
                "after {after:?} the entry of {address} allows execution: {executable:?}"
            );
        }
    }

    /// Removes memory and adds it again. Returns the number of changes made.
    fn plug(&mut self) -> u64 {
        let count = self.random.length(self.pages);
        let at = self.random.below(self.pages - count + 1);
        let start = self.quarters.free + at * self.page;
        let bytes = count * self.page;
        match hotplug::remove_memory(PhysicalAddress(start), bytes) {
            Ok(()) => {}
            // A table is in this memory.
            Err(HotplugError::Frames(_)) => {
                self.in_use += 1;
                return 0;
            }
            Err(error) => panic!("removing {bytes:#x} bytes at {start:#x}: {error}"),
        }
        let edges = [start, start + bytes - self.page];
        let address = |physical| in_linear_map(PhysicalAddress(physical)).0;
        for edge in edges {
            let seen = cpu::translate(address(edge));
            assert!(seen.is_err(), "removed memory at {edge:#x} is at {seen:x?}");
        }
        // SAFETY: RAM that was just removed and that nothing uses.
        let added = unsafe { hotplug::add_memory(PhysicalAddress(start), bytes) };
        ok("adding memory", added);
        for edge in edges {
            let seen = cpu::translate_to_write(address(edge));
            assert!(
                seen == Ok(edge),
                "added memory at {edge:#x} is at {seen:x?}"
            );
        }
        2
    }

    /// Restores and merges everything.
    fn put_back(&mut self) {
        for block in &self.quarters.blocks {
            let default = set_direct_map_default(block.at(0), self.pages);
            ok("default", default);
        }
        let start = VirtualAddress(self.quarters.start);
        ok("merging", merge::merge_linear_map(start, 4 * self.pages));
    }
}
