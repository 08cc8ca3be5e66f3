//! Faults in what is done to pages that programs may execute: an instruction cache may hold what their frames
//! were before, until they are synchronised.

use super::scenes::Scene;
use super::space_scenes::BLOCK_BYTES;
use super::taps::*;
use super::{Fault, fault};
use crate::machine::{Shared, Tap};
use crate::shape::Shape;
use crate::space::processes::Processes;
use granule::arch::{Level, Page, Page4K, Page16K, Page64K};
use granule::space::{Access, Rights};
use granule_model::Rule::InstructionCache;
use granule_model::{Event, System};

const AS_BEFORE: &str = "an instruction cache may hold as they were";

pub(super) const FAULTS: &[Fault] = &[
    fault("a page that may be executed is new, and not synchronised")
        .planted(new_page::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a group that may be executed is new, and not synchronised")
        .planted(new_group::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a block that may be executed is new, and not synchronised")
        .planted(new_block, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a page that may be executed is copied, and not synchronised")
        .planted(copy::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a page of a group that may be executed is copied, and not synchronised")
        .planted(copy_in_group::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a whole group that may be executed is copied, and not synchronised")
        .planted(copy_next_group::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a whole group that may be executed is copied, and one line not cleaned")
        .planted(copy_next_group::<Page4K>, || {
            replace(is_cache, one_line_less)
        })
        .breaks(InstructionCache, AS_BEFORE),
    fault("a page of a block that may be executed is copied, and not synchronised")
        .planted(copy_in_block, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("a group of a block that may be executed is copied, and not synchronised")
        .planted(copy_group_of_block, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
    fault("pages that were filled may be executed, and are not synchronised")
        .planted(allow::<Page4K>, || drop_all(is_sync))
        .breaks(InstructionCache, AS_BEFORE),
];

/// All page sizes have the same scenes, but for blocks, of which those of 4K pages are the smallest.
const OF_OTHER_SIZES: &[(&str, Scene)] = &[
    ("new_page 16K", new_page::<Page16K>),
    ("new_page 64K", new_page::<Page64K>),
    ("new_group 16K", new_group::<Page16K>),
    ("new_group 64K", new_group::<Page64K>),
    ("copy 16K", copy::<Page16K>),
    ("copy 64K", copy::<Page64K>),
    ("copy_in_group 16K", copy_in_group::<Page16K>),
    ("copy_in_group 64K", copy_in_group::<Page64K>),
    ("copy_next_group 16K", copy_next_group::<Page16K>),
    ("copy_next_group 64K", copy_next_group::<Page64K>),
    ("allow 16K", allow::<Page16K>),
    ("allow 64K", allow::<Page64K>),
];

#[test]
fn code_is_synchronised_with_16k_and_64k_pages_too() {
    for (name, scene) in OF_OTHER_SIZES {
        let violations = |tap| {
            let world = scene(tap);
            let world = world.borrow();
            let wrong = world.watch.wrong.clone();
            assert_eq!(wrong, None, "{name}");
            world.model.violations().to_vec()
        };
        assert_eq!(violations(None), [], "{name}");
        let found = violations(Some(drop_all(is_sync)));
        let reported = found.iter().any(|one| one.rule == InstructionCache);
        assert!(reported, "{name}, not synchronised: {found:#?}");
    }
}

const CODE: Rights = Rights {
    execute: true,
    ..Rights::READ_WRITE
};

/// A clean of lines, or an invalidation of instruction caches.
const fn is_sync(kind: &Event) -> bool {
    is_cache(kind) || matches!(kind, Event::System(System::IC_IALLUIS, _))
}

const fn group<P: Page>() -> u64 {
    P::SIZE.contiguous_entries(Level::L3) as u64
}

/// The first page that programs use: of a block, but not where [`copy_next_group`] distrusts what is beside.
fn first<P: Page>() -> u64 {
    P::SIZE.entries() as u64
}

/// Two CPUs in one process that may execute `pages` pages and has written them all, each by a leaf of its own
/// unless there are `runs`.
fn machine<P: Page>(pages: u64, rights: Rights, runs: bool) -> Processes<P> {
    let va_bits = match P::SIZE.bytes() {
        0x4000 => 47,
        0x10000 => 42,
        _ => 39,
    };
    let shape = Shape::kernel(va_bits).asid(1).hardware(true);
    let mut machine = Processes::<P>::new(shape, 1);
    machine.quiet = true;
    machine.start();
    machine.map(0, first::<P>(), pages, rights);
    machine.frames.runs = runs;
    machine
}

fn write<P: Page>(machine: &mut Processes<P>, from: u64, count: u64) {
    for page in first::<P>() + from..first::<P>() + from + count {
        // With a fault planted a page may not come to be.
        let _ = machine.touch(0, page, Access::Write, page);
    }
    machine.on(0);
}

/// As [`machine`], where all pages were written and a child has them too.
fn forked<P: Page>(pages: u64, runs: bool) -> Processes<P> {
    let mut machine = machine::<P>(pages, CODE, runs);
    write(&mut machine, 0, pages);
    assert!(machine.fork(0).is_ok());
    machine
}

fn new_page<P: Page>(planted: Option<Tap>) -> Shared {
    machine::<P>(4, CODE, false).play(planted, |machine| write(machine, 1, 1))
}

fn new_group<P: Page>(planted: Option<Tap>) -> Shared {
    machine::<P>(group::<P>(), CODE, true).play(planted, |machine| {
        write(machine, 1, 1);
        assert_eq!(machine.all[0].space.stats().groups, 1);
    })
}

fn new_block(planted: Option<Tap>) -> Shared {
    machine::<Page4K>(BLOCK_BYTES >> 12, CODE, true).play(planted, |machine| {
        write(machine, 1, 1);
        assert_eq!(machine.all[0].space.stats().blocks, 1);
    })
}

/// After a fork the parent writes one page of some.
fn copy<P: Page>(planted: Option<Tap>) -> Shared {
    forked::<P>(4, false).play(planted, |machine| {
        write(machine, 1, 1);
        assert_eq!(machine.all[0].space.stats().copied, 1);
    })
}

/// As [`copy`], where the pages are a group.
fn copy_in_group<P: Page>(planted: Option<Tap>) -> Shared {
    forked::<P>(group::<P>(), true).play(planted, |machine| {
        write(machine, 3, 1);
        assert_eq!(machine.all[0].space.stats().copied, 1);
    })
}

/// As [`copy`], where the page begins a group, and all of the one before was copied already.
fn copy_next_group<P: Page>(planted: Option<Tap>) -> Shared {
    let group = group::<P>();
    let mut machine = forked::<P>(2 * group, true);
    write(&mut machine, 0, group);
    machine.play(planted, |machine| {
        write(machine, group, 1);
        assert_eq!(machine.all[0].space.stats().copied, 2 * group);
    })
}

/// As [`copy`], where the pages are a block.
fn copy_in_block(planted: Option<Tap>) -> Shared {
    forked::<Page4K>(BLOCK_BYTES >> 12, true).play(planted, |machine| {
        write(machine, 5, 1);
        let stats = machine.all[0].space.stats();
        assert_eq!((stats.split, stats.copied), (1, 1));
    })
}

/// As [`copy_next_group`], where the last group before a block was copied.
fn copy_group_of_block(planted: Option<Tap>) -> Shared {
    let block = BLOCK_BYTES >> 12;
    let mut machine = forked::<Page4K>(2 * block, true);
    write(&mut machine, 0, block);
    let copied = machine.all[0].space.stats().copied;
    machine.play(planted, |machine| {
        write(machine, block, 1);
        let stats = machine.all[0].space.stats();
        assert_eq!((stats.split, stats.copied), (2, copied + group::<Page4K>()));
    })
}

/// Pages that were only written may be executed from now on.
fn allow<P: Page>(planted: Option<Tap>) -> Shared {
    let mut machine = machine::<P>(4, Rights::READ_WRITE, false);
    write(&mut machine, 0, 4);
    machine.play(planted, |machine| {
        machine.protect(0, first::<P>(), 4, Rights::READ_EXECUTE)
    })
}
