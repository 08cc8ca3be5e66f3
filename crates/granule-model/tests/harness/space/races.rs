//! Hardware against every step of an operation: between each two events of what is done to a group,
//! or in the middle of an exchange, another CPU's MMU sets the access flag or makes a page dirty.
//! Whatever moment it is, nothing is lost: who reads the entry afterwards finds it.
//!
//! Random sequences (`random`) hit some of these moments; here it is all of them, one run each.

use super::meanwhile::Injection;
use super::processes::Processes;
use crate::shape::Shape;
use granule::arch::{Level, Page, Page4K, Page16K, Page64K};
use granule::space::{Access, Rights};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The operation on a group and its neighbour, while all of their pages are clean, and how far the
/// setup is from whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Its last page comes.
    Fold,
    /// One page goes.
    Unmap,
    /// The second half of it and the first of the next go.
    UnmapAcross,
    /// One page becomes read-only.
    ProtectOne,
    /// All of it becomes read-only.
    ProtectAll,
    /// One page, read-only so far as all are, is to be written again.
    AllowOne,
    /// All of it is to be.
    AllowAll,
    /// The process forks.
    Fork,
    /// After a fork one page is written, and so copied.
    Copy,
    /// After a fork, and the child's end, one page is written.
    Reuse,
    /// As these, of a block and its neighbour.
    UnmapInBlock,
    UnmapAcrossBlocks,
    ProtectInBlock,
    ProtectBlock,
    AllowBlock,
    ForkBlocks,
    CopyInBlock,
    ReuseBlock,
    /// All of two blocks, of which a group each became read-only before, is to be written again.
    MergeBlocks,
}

const BLOCKS: [What; 9] = [
    What::UnmapInBlock,
    What::UnmapAcrossBlocks,
    What::ProtectInBlock,
    What::ProtectBlock,
    What::AllowBlock,
    What::ForkBlocks,
    What::CopyInBlock,
    What::ReuseBlock,
    What::MergeBlocks,
];

pub(super) const ALL: [What; 10] = [
    What::Fold,
    What::Unmap,
    What::UnmapAcross,
    What::ProtectOne,
    What::ProtectAll,
    What::AllowOne,
    What::AllowAll,
    What::Fork,
    What::Copy,
    What::Reuse,
];

struct Scene<P: Page> {
    machine: Processes<P>,
    /// The first page of the group.
    first: u64,
    group: u64,
}

impl<P: Page> Scene<P> {
    /// Two CPUs in one process with two groups of pages that were read, by the programs or, without
    /// the access flag, by the kernel.
    fn new(mut machine: Processes<P>, what: What, by_kernel: bool) -> Self {
        let group = if BLOCKS.contains(&what) {
            P::SIZE.entries() as u64
        } else {
            P::SIZE.contiguous_entries(Level::L3) as u64
        };
        machine.quiet = true;
        machine.start_on(2);
        let first = 4 * group;
        machine.map(0, first, 2 * group, Rights::READ_WRITE);
        let missing = u64::from(what == What::Fold);
        machine.frames.runs = what != What::Fold;
        for page in (first..first + group - missing).chain(first + group..first + 2 * group) {
            let done = if by_kernel {
                machine.by_kernel(0, page, Access::Read, 0)
            } else {
                machine.touch(0, page, Access::Read, 0)
            };
            assert_eq!(done, Ok(()));
        }
        if matches!(what, What::AllowOne | What::AllowAll | What::AllowBlock) {
            machine.protect(0, first, 2 * group, Rights::READ);
        }
        if what == What::MergeBlocks {
            let count = P::SIZE.contiguous_entries(Level::L3) as u64;
            machine.protect(0, first + group - count, 2 * count, Rights::READ);
        }
        let copies = matches!(what, What::Copy | What::CopyInBlock);
        let reuses = matches!(what, What::Reuse | What::ReuseBlock);
        if copies || reuses {
            assert_eq!(machine.fork(0), Ok(1));
        }
        if reuses {
            machine.switch(1, Some(1));
            machine.exit(1);
            machine.switch(1, Some(0));
        }
        machine.check();
        machine.on(0);
        Self {
            machine,
            first,
            group,
        }
    }

    fn perform(&mut self, what: What) {
        let (machine, first, group) = (&mut self.machine, self.first, self.group);
        let middle = first + group / 2;
        match what {
            What::Fold => assert_eq!(machine.touch(0, first + group - 1, Access::Read, 0), Ok(())),
            What::Unmap | What::UnmapInBlock => machine.unmap(0, middle, 1),
            What::UnmapAcross | What::UnmapAcrossBlocks => machine.unmap(0, middle, group),
            What::ProtectOne | What::ProtectInBlock => machine.protect(0, middle, 1, Rights::READ),
            What::ProtectAll | What::ProtectBlock => machine.protect(0, first, group, Rights::READ),
            What::AllowOne => machine.protect(0, middle, 1, Rights::READ_WRITE),
            What::AllowAll | What::AllowBlock => {
                machine.protect(0, first, group, Rights::READ_WRITE)
            }
            What::MergeBlocks => machine.protect(0, first, 2 * group, Rights::READ_WRITE),
            What::Fork | What::ForkBlocks => assert_eq!(machine.fork(0), Ok(1)),
            What::Copy | What::Reuse | What::CopyInBlock | What::ReuseBlock => {
                assert_eq!(machine.touch(0, middle, Access::Write, 5), Ok(()));
            }
        }
    }
}

/// One run, with hardware at one moment; whether there was such a moment, and whether hardware had
/// anything to do then.
fn run<P: Page>(shape: Shape, what: What, injection: Injection, torn: bool) -> (bool, bool) {
    let machine = Processes::<P>::new(shape, 11);
    let world = machine.world.clone();
    let result = run_on(machine, what, injection, torn);
    assert_eq!(world.borrow().tables, 1, "tables left");
    result
}

/// As [`run`], on this machine.
pub(super) fn run_on<P: Page>(
    machine: Processes<P>,
    what: What,
    injection: Injection,
    torn: bool,
) -> (bool, bool) {
    let mut scene = Scene::<P>::new(machine, what, !injection.dirty);
    let page = scene.first + injection.page;
    let machine = &mut scene.machine;
    machine.inject(Injection { page, ..injection });
    machine.world.borrow_mut().torn_exchange = torn;
    scene.perform(what);
    let machine = &mut scene.machine;
    machine.world.borrow_mut().torn_exchange = false;
    if what == What::MergeBlocks {
        assert_eq!(machine.all[0].space.stats().merged, 2);
    }
    let (moments, updated) = machine.injected();
    assert!(moments > 0, "{what:?}: there was no moment");
    machine.check();
    if updated && let Some((accessed, dirty)) = machine.noted(0, page) {
        assert!(accessed, "{what:?}: the access of page {page:#x} is lost");
        assert!(
            dirty || !injection.dirty,
            "{what:?}: page {page:#x} was written"
        );
    }
    scene.machine.end_all();
    (injection.moment < moments, updated)
}

/// Every `step`th moment of everything; how many runs, and in how many hardware did something.
fn all<P: Page>(va_bits: u32, bbm_level: u8, step: usize, things: &[What]) -> (u64, u64) {
    let shape = Shape::kernel(va_bits)
        .asid(1)
        .hardware(true)
        .bbm_level(bbm_level);
    let group = P::SIZE.contiguous_entries(Level::L3) as u64;
    let middle = group / 2 + 1;
    let (mut runs, mut updates) = (0, 0);
    for &what in things {
        // Of two tables, hardware updates the second one too.
        let second = (what == What::MergeBlocks).then_some(P::SIZE.entries() as u64 + middle);
        for dirty in [false, true] {
            for page in [0, middle].into_iter().chain(second) {
                for moment in (0..).step_by(step) {
                    let injection = Injection {
                        page,
                        dirty,
                        moment,
                    };
                    let (was, updated) = run::<P>(shape, what, injection, false);
                    if !was {
                        break;
                    }
                    runs += 1;
                    updates += u64::from(updated);
                }
            }
        }
    }
    println!(
        "{} level {bbm_level}: {runs} runs, {updates} updates",
        P::SIZE
    );
    (runs, updates)
}

#[test]
fn hardware_loses_nothing_at_any_moment_4k() {
    for bbm_level in [0, 3] {
        let (runs, updates) = all::<Page4K>(39, bbm_level, 1, &ALL);
        assert!(
            runs > 300 && updates > 150,
            "{runs} runs, {updates} updates"
        );
    }
}

#[test]
fn hardware_loses_nothing_of_a_block() {
    for bbm_level in [0, 3] {
        let (runs, updates) = all::<Page4K>(39, bbm_level, 1, &BLOCKS);
        assert!(runs > 100 && updates > 40, "{runs} runs, {updates} updates");
    }
}

#[test]
fn hardware_loses_nothing_at_any_moment_16k() {
    let (runs, updates) = all::<Page16K>(47, 0, 61, &ALL);
    assert!(runs > 30 && updates > 10, "{runs} runs, {updates} updates");
}

#[test]
fn hardware_loses_nothing_at_any_moment_64k() {
    let (runs, updates) = all::<Page64K>(42, 0, 7, &ALL);
    assert!(runs > 60 && updates > 30, "{runs} runs, {updates} updates");
}

/// The check can fail: an exchange in two steps loses what comes between them.
#[test]
fn a_write_that_is_lost_is_found() {
    let shape = Shape::kernel(39).asid(1).hardware(true);
    for what in [
        What::Fold,
        What::Unmap,
        What::ProtectOne,
        What::UnmapInBlock,
    ] {
        let lost = (0..).map_while(|moment| {
            let injection = Injection {
                page: 1,
                dirty: true,
                moment,
            };
            let run = AssertUnwindSafe(|| run::<Page4K>(shape, what, injection, true));
            match catch_unwind(run) {
                Ok((was, _)) => was.then_some(false),
                Err(why) => {
                    let why = why.downcast_ref::<String>().map_or("", String::as_str);
                    assert!(why.contains("was written"), "{what:?}: {why}");
                    Some(true)
                }
            }
        });
        let lost = lost.filter(|lost| *lost).count();
        assert!(lost > 0, "{what:?}: nothing was lost");
    }
}
