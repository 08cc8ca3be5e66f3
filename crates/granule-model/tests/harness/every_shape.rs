//! Random sequences on every shape: page sizes, both stages, sizes and formats of address spaces,
//! CPUs, and with hardware that updates leaves. What a sequence does and checks is in `sequence`.

use crate::operation::Operation;
use crate::random::from_environment;
use crate::sequence::{Done, Run};
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::{Page, Page4K, Page16K, Page64K};
use granule::table::{Stage1, Stage2};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Operations of a run by default, over all shapes.
const OPERATIONS: u64 = 30_000;
/// Operations after which a run goes on with an empty tree on a new machine.
const PER_MACHINE: u64 = 200;

fn run<P: Page, S: Staged>(shape: Shape, seed: u64, operations: u64, total: &mut Done) {
    let mut left = operations;
    let mut machine = 0;
    while left > 0 {
        let some = left.min(PER_MACHINE);
        let mut run = Run::<P, S>::of(shape, seed.wrapping_add(machine << 32));
        for step in 0..some {
            let result = catch_unwind(AssertUnwindSafe(|| run.step()));
            if let Err(what) = result {
                eprintln!("{} {shape:?}: machine {machine}, step {step}", P::SIZE);
                resume_unwind(what);
            }
        }
        total.add(run.done);
        left -= some;
        machine += 1;
    }
}

/// All shapes of one page size: sizes of the address space, and formats, of each half; over them
/// the other properties in turn.
fn all<P: Page, S: Staged>(sizes: &[(u32, bool)], share: u64, hardware: bool) {
    let seed = from_environment("GRANULE_HARNESS_SEED").unwrap_or(1);
    let operations = from_environment("GRANULE_HARNESS_OPERATIONS").unwrap_or(OPERATIONS);
    println!("harness: {} GRANULE_HARNESS_SEED={seed:#x}", P::SIZE);
    let mut shapes = Vec::new();
    for &(va_bits, wide) in sizes {
        // At stage 2: without FEAT_S2FWB and FEAT_XNX, and with both.
        for asid in [None, Some(0x2a)] {
            let turn = shapes.len() as u32;
            shapes.push(Shape {
                va_bits,
                wide,
                asid,
                cpus: 1 + (turn + 1) % 4,
                bbm_level: ((turn / 2 + turn) % 4) as u8,
                tlbi_range: !turn.is_multiple_of(3),
                repeat: turn % 5 == 4,
                strict: false,
                hardware,
                guest_features: asid.is_some(),
            });
        }
    }
    let mut total = Done::default();
    let each = (operations / share).div_ceil(shapes.len() as u64);
    for (index, &shape) in shapes.iter().enumerate() {
        let seed = seed.wrapping_mul(0x1_0001).wrapping_add(index as u64);
        run::<P, S>(shape, seed, each, &mut total);
    }
    println!(
        "harness: {} {} operations on {} shapes, {} accesses after and {} in the middle of them, {:?}, {} splits, {} merges",
        P::SIZE,
        total.operations,
        shapes.len(),
        total.accesses.0,
        total.accesses.1,
        total.succeeded,
        total.split,
        total.merged
    );
    for name in Operation::NAMES {
        if name.starts_with("lock-free") && !S::LOCK_FREE {
            continue;
        }
        let times = total.succeeded.get(name).copied().unwrap_or(0);
        assert!(times > total.operations / 200, "{name}: {times} times only");
    }
    let splits = total.operations / if hardware { 1000 } else { 200 };
    assert!(total.split > splits, "{} splits", total.split);
    // Leaves that hardware may update are not merged.
    let merges = total.operations / 10_000;
    assert!(
        hardware || total.merged >= merges,
        "{} merges",
        total.merged
    );
    assert!(total.accesses.1 > total.operations / 4);
    println!(
        "harness: {} {} accesses at regions, {} leaves compared",
        P::SIZE,
        total.regions,
        total.leaves
    );
    assert!(total.regions > 5 * total.operations && total.leaves > total.operations);
    println!(
        "harness: {} {} updates by hardware, {} of them harvested",
        P::SIZE,
        total.notes.0,
        total.notes.1
    );
    if hardware {
        assert!(total.notes.0 > total.operations / 12 && total.notes.1 > total.operations / 250);
    }
}

// Smaller pages are faster: their tables are, so they have the larger share.
#[test]
fn random_4k() {
    let sizes = [
        (39, false),
        (48, false),
        (48, true),
        (52, true),
        (30, false),
    ];
    all::<Page4K, Stage1>(&sizes, 2, false);
}

#[test]
fn random_16k() {
    let sizes = [(36, false), (47, false), (48, true), (52, true)];
    all::<Page16K, Stage1>(&sizes, 3, false);
}

#[test]
fn random_64k() {
    let sizes = [(42, false), (48, true), (52, true), (36, false)];
    all::<Page64K, Stage1>(&sizes, 6, false);
}

#[test]
fn stage_2_random_4k() {
    let sizes = [
        (39, false),
        (40, false),
        (48, false),
        (52, true),
        (32, true),
    ];
    all::<Page4K, Stage2>(&sizes, 2, false);
}

#[test]
fn stage_2_random_16k() {
    let sizes = [(36, false), (40, false), (48, false), (52, true)];
    all::<Page16K, Stage2>(&sizes, 3, false);
}

#[test]
fn stage_2_random_64k() {
    let sizes = [(42, false), (48, true), (52, true), (36, false)];
    all::<Page64K, Stage2>(&sizes, 6, false);
}

// Hardware sets access flags and makes pages dirty in the middle of the operations.
#[test]
fn hardware_updates_4k() {
    all::<Page4K, Stage1>(&[(39, false), (48, false), (52, true)], 6, true);
}

#[test]
fn hardware_updates_16k() {
    all::<Page16K, Stage1>(&[(36, false), (47, false), (48, true)], 12, true);
}

#[test]
fn hardware_updates_64k() {
    all::<Page64K, Stage1>(&[(42, false), (52, true)], 24, true);
}

#[test]
fn stage_2_hardware_updates_4k() {
    all::<Page4K, Stage2>(&[(40, false), (48, false), (52, true)], 6, true);
}

#[test]
fn stage_2_hardware_updates_16k() {
    all::<Page16K, Stage2>(&[(40, false), (48, false), (52, true)], 12, true);
}

#[test]
fn stage_2_hardware_updates_64k() {
    all::<Page64K, Stage2>(&[(42, false), (52, true)], 24, true);
}
