//! Random sequences of what processes and their kernel do.

use super::processes::Processes;
use crate::shape::Shape;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::space::{Access, Rights, SpaceError};
use granule::table::TableError;

/// Pages that are used, across the end of a last-level table: a whole group of any size on both
/// sides.
pub(super) const WINDOW: u64 = 300;
/// As many as have a whole block of 4K pages among them wherever they begin.
const BLOCKS_WINDOW: u64 = 1100;
const MOST_PROCESSES: usize = 6;

fn rights<P: Page>(machine: &mut Processes<P>) -> Rights {
    let writable = Rights::READ_WRITE;
    machine.random.of(&[
        writable,
        writable,
        Rights {
            execute: true,
            ..writable
        },
        Rights::READ,
        Rights::NONE,
        Rights::READ_EXECUTE,
    ])
}

fn access<P: Page>(machine: &mut Processes<P>) -> Access {
    machine
        .random
        .of(&[Access::Write, Access::Write, Access::Read, Access::Execute])
}

/// Returns whether something ran out; any other error is wrong.
fn ran_out(done: &Result<(), SpaceError>) -> bool {
    match done {
        Ok(()) => false,
        Err(
            SpaceError::OutOfFrames { .. } | SpaceError::Tables(TableError::OutOfTables { .. }),
        ) => true,
        Err(error) => panic!("{error}"),
    }
}

/// One step, and how often something ran out in it.
pub(super) fn step<P: Page>(
    machine: &mut Processes<P>,
    (base, window): (u64, u64),
    number: u64,
) -> u64 {
    let cpu = machine.random.below(machine.cpus()) as u32;
    if machine.random.once_in(3) || machine.running(cpu).is_none() {
        let to = machine.random.below(machine.all.len() as u64) as usize;
        machine.switch(cpu, Some(to));
    }
    machine.on(cpu);
    let Some(process) = machine.running(cpu) else {
        return 0;
    };
    let page = base + machine.random.below(window);
    let most = if machine.random.once_in(3) {
        window
    } else {
        20
    };
    let count = (1 + machine.random.below(most)).min(base + window - page);
    if machine.random.once_in(8) {
        machine.frames.left = machine.random.below(6);
        machine.tables.borrow_mut().left = machine.random.below(4);
    }
    machine.frames.runs = !machine.random.once_in(3);
    let mut pages = machine.tables.borrow_mut();
    // For every other step the trees themselves hold the pages.
    pages.reserves = !pages.reserves;
    drop(pages);
    let mut refused = 0;
    match machine.random.below(20) {
        0..=3 => {
            let rights = rights(machine);
            machine.map(process, page, count, rights);
        }
        4 => {
            let done = machine.try_map_over(process, page, count, Rights::READ_WRITE);
            refused += u64::from(ran_out(&done));
        }
        5 => {
            let done = machine.try_unmap(process, page, count);
            refused += u64::from(ran_out(&done));
            // Where nothing is left of a leaf, a new one may come.
            if machine.random.either() {
                machine.map(process, page, count, Rights::READ_WRITE);
            }
        }
        6..=7 => {
            let rights = rights(machine);
            let done = machine.try_protect(process, page, count, rights);
            refused += u64::from(ran_out(&done));
        }
        8..=14 => {
            let access = access(machine);
            let count = if machine.random.once_in(2) {
                count.min(20)
            } else {
                count
            };
            for at in 0..count {
                let done = machine.touch(cpu, page + at, access, number * 1000 + at);
                refused += u64::from(ran_out(&done));
            }
        }
        15 => {
            let access = access(machine);
            let done = machine.by_kernel(cpu, page, access, number);
            refused += u64::from(ran_out(&done));
        }
        16..=18 if machine.all.len() < MOST_PROCESSES => {
            let done = machine.fork(process).map(|_| ());
            refused += u64::from(ran_out(&done));
        }
        19 if machine.all.len() > 1 => machine.exit(cpu),
        _ => {}
    }
    machine.frames.left = u64::MAX;
    machine.tables.borrow_mut().left = u64::MAX;
    machine.check();
    refused
}

impl<P: Page> Processes<P> {
    /// An error is one of memory.
    fn try_map_over(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        rights: Rights,
    ) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        self.begin(process, page, count);
        self.watch(process, (page + count, 1));
        let one = &mut self.all[process];
        let done = one
            .space
            .map_over(start, bytes, rights, 0, &mut self.frames);
        if done.is_ok() {
            one.note_new(page..page + count, rights);
        }
        self.finish(Some(process));
        done
    }
}

/// A first process, which has written all pages of a window; the first of them.
pub(super) fn begin<P: Page>(machine: &mut Processes<P>, window: u64) -> u64 {
    machine.start();
    let base = 3 * P::SIZE.entries() as u64 - window / 2;
    machine.map(0, base, window, Rights::READ_WRITE);
    machine.frames.runs = window > WINDOW;
    for page in base..base + window {
        assert_eq!(machine.touch(0, page, Access::Write, page), Ok(()));
    }
    machine.check();
    base
}

/// Plays so many steps; what was done, to be compared with what must be.
fn play<P: Page>(shape: Shape, seed: u64, steps: u64, window: u64) -> [u64; 7] {
    let mut machine = Processes::<P>::new(shape, seed);
    let base = begin(&mut machine, window);
    let (mut refused, mut copied, mut folded, mut at_once) = (0, 0, 0, 0);
    let (mut blocks, mut split) = (0, 0);
    for number in 0..steps {
        refused += step(&mut machine, (base, window), number + 1);
        for process in &machine.all {
            let stats = process.space.stats();
            copied = copied.max(stats.copied);
            folded = folded.max(stats.folded);
            at_once = at_once.max(stats.groups);
            blocks = blocks.max(stats.blocks);
            split = split.max(stats.split);
        }
    }
    let rolled = machine.cpus.rolled();
    machine.end();
    [refused, copied, folded, rolled, at_once, blocks, split]
}

fn shapes(va_bits: u32) -> Vec<Shape> {
    let plain = Shape::kernel(va_bits).asid(1).cpus(3);
    vec![
        plain,
        plain.hardware(true),
        plain.hardware(true).tlbi_range(true).bbm_level(3),
        plain.hardware(true).bbm_level(1).repeat(true),
    ]
}

fn all<P: Page>(va_bits: u32, steps: u64, window: u64) {
    let mut sums = [0; 7];
    for (number, shape) in shapes(va_bits).into_iter().enumerate() {
        let seed = crate::random::from_environment("GRANULE_HARNESS_SEED")
            .unwrap_or(0x5eed + number as u64);
        println!(
            "harness: processes {} {shape:?} GRANULE_HARNESS_SEED={seed:#x}",
            P::SIZE
        );
        for (sum, one) in sums.iter_mut().zip(play::<P>(shape, seed, steps, window)) {
            *sum += one;
        }
    }
    // A sequence in which nothing of the kind happens shows nothing.
    assert!(sums[0] > 0, "nothing ran out");
    assert!(sums[1] > 20, "{} copies", sums[1]);
    assert!(sums[2] > 0, "no group");
    assert!(sums[3] > 3, "{} generations", sums[3]);
    assert!(sums[4] > 0, "no group at once");
    if window > WINDOW {
        assert!(
            sums[5] > 3 && sums[6] > 3,
            "{} blocks, {} split",
            sums[5],
            sums[6]
        );
    }
}

#[test]
fn processes_4k() {
    all::<Page4K>(39, 300, WINDOW);
    all::<Page4K>(48, 150, WINDOW);
}

#[test]
fn processes_with_blocks() {
    all::<Page4K>(39, 120, BLOCKS_WINDOW);
}

#[test]
fn processes_16k() {
    all::<Page16K>(47, 200, WINDOW);
}

#[test]
fn processes_64k() {
    all::<Page64K>(42, 150, WINDOW);
}
