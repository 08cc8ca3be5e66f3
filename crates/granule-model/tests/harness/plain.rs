//! The operations that there have been from the first, for every page size, against a map that
//! knows pages only: after each the addresses translate as that says, under every TLB content that
//! the model allows. [`sequence`](crate::sequence) does more, and against a reference that knows
//! more.

use crate::bench::Bench;
use crate::random::Random;
use crate::shape::Shape;
use granule::arch::{
    Attributes, MemoryType, Page, Page4K, Page16K, Page64K, Permissions, PhysicalAddress,
    Shareability, VirtualAddress,
};
use granule::table::{Holes, Leaves, PermissionChange};
use granule_model::{Access, FaultKind, Outcome};
use std::collections::BTreeMap;

/// `steps` random operations on a tree of `va_bits`, with and without the optional TLBI forms.
fn run<P: Page>(va_bits: u32, range: bool, asid: Option<u16>, seed: u64, steps: u64) {
    let shape = Shape {
        wide: true,
        asid,
        tlbi_range: range,
        ..Shape::kernel(va_bits)
    };
    let mut bench = Bench::<P>::new(shape, seed);

    // A window of pages; what each maps to, and whether it is writable.
    let page = P::SIZE.bytes();
    let pages = 3 * P::SIZE.entries() as u64;
    let base = bench.geometry.base().0;
    let mut plain: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut random = Random::new(seed);
    let mut done = [0; 3];
    for step in 0..steps {
        let alignment = random.of(&[1, 16, P::SIZE.entries() as u64]);
        let first = random.below(pages) / alignment * alignment;
        let count = ((1 + random.below(4)) * alignment).min(pages - first);
        let (start, bytes) = (VirtualAddress(base + first * page), count * page);
        match random.below(3) {
            0 => {
                let output = PhysicalAddress(0x10_0000_0000 + random.below(8) * pages * page);
                let writable = random.either();
                let permissions = if writable {
                    Permissions::READ_WRITE
                } else {
                    Permissions::READ
                };
                let leaves = if random.either() {
                    Leaves::LARGEST
                } else {
                    Leaves::PAGES
                };
                let attributes = Attributes {
                    memory: MemoryType::Normal,
                    shareability: Shareability::Inner,
                    global: asid.is_none(),
                    accessed: true,
                    ..Attributes::normal(permissions)
                };
                let output = PhysicalAddress(output.0 + first * page);
                if bench
                    .tables
                    .map(start, output, bytes, attributes, leaves)
                    .is_ok()
                {
                    done[0] += 1;
                    for index in 0..count {
                        plain.insert(first + index, (output.0 + index * page, writable));
                    }
                }
            }
            1 => {
                if bench.tables.unmap(start, bytes).is_ok() {
                    done[1] += 1;
                    plain.retain(|at, _| *at < first || *at >= first + count);
                }
            }
            _ => {
                let writable = random.either();
                let change = PermissionChange {
                    writable: Some(writable),
                    ..PermissionChange::NONE
                };
                if bench
                    .tables
                    .protect(start, bytes, change, Holes::Skip)
                    .is_ok()
                {
                    done[2] += 1;
                    for (_, value) in plain.range_mut(first..first + count) {
                        value.1 = writable;
                    }
                }
            }
        }
        bench.settle();
        let text = bench.violations();
        assert!(text.is_empty(), "seed {seed:#x} step {step}: {text:#?}");
        let world = bench.world.borrow();
        for _ in 0..8 {
            let at = random.below(pages);
            let offset = random.below(page);
            let va = base + at * page + offset;
            for cpu in 0..2 {
                let outcomes = world.model.outcomes(cpu, va, Access::WRITE);
                let right = match (plain.get(&at), &outcomes[..]) {
                    (Some(&(output, true)), [Outcome::Memory(found)]) => {
                        found.address == output + offset && found.memory == 0xff
                    }
                    (Some((_, false)), [Outcome::Fault(FaultKind::Permission)])
                    | (None, [Outcome::Fault(FaultKind::Translation)]) => true,
                    _ => false,
                };
                assert!(
                    right,
                    "seed {seed:#x} step {step} {va:#x}: {:?}, {outcomes:?}",
                    plain.get(&at)
                );
            }
        }
    }
    assert!(
        done.iter().all(|&times| times > 3),
        "too little was done: {done:?}"
    );
}

#[test]
fn kernel_tables_of_4k() {
    for (va_bits, range, seed) in [(39, false, 1), (48, true, 2), (52, true, 3)] {
        run::<Page4K>(va_bits, range, None, seed, 300);
    }
}

#[test]
fn kernel_tables_of_16k() {
    for (va_bits, range, seed) in [(36, false, 4), (47, true, 5), (52, true, 6)] {
        run::<Page16K>(va_bits, range, None, seed, 100);
    }
}

#[test]
fn kernel_tables_of_64k() {
    for (va_bits, range, seed) in [(42, false, 7), (48, true, 8), (52, true, 9)] {
        run::<Page64K>(va_bits, range, None, seed, 60);
    }
}

#[test]
fn process_tables() {
    run::<Page4K>(48, true, Some(7), 10, 200);
    run::<Page16K>(47, false, Some(7), 11, 60);
}
