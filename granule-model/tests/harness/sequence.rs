//! Random sequences on every shape: after each operation every address translates as the
//! reference says, under every TLB content that the model allows, and no rule is broken.
//!
//! Every address: each run of leaves is compared with the reference from end to end, and the bytes
//! of all are counted, so that none is too many ([`Run::compare_leaves`]); whatever else a TLB may
//! hold the model compares with the leaves, all of it, where they are relied on
//! ([`Bench::settle`]). Accesses are made at the edges of each region that is mapped alike, on both
//! sides, inside each, and at the edges of what the operation concerned.

use crate::bench::Bench;
use crate::draw::Draw;
use crate::hardware::Notes;
use crate::leaves::OfLeaves;
use crate::machine::Tap;
use crate::operation::Operation;
use crate::random::{Random, from_environment};
use crate::reference::Reference;
use crate::shape::{Shape, units};
use crate::watch::{Sample, conflict_allowed};
use granule::arch::{Attributes, Geometry, Kind, Page, Page4K, Page16K, Page64K, VirtualAddress};
use granule::table::{Cost, TableError, Visit};
use granule_model::{Access, AccessKind, Barrier, Event, Outcome, Regime, System};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Operations of a run unless told otherwise, over all shapes.
const OPERATIONS: u64 = 60_000;
/// Addresses looked at in the middle of each operation, and after it beside those of the regions.
const SAMPLES: usize = 10;
/// Operations after which a run goes on with an empty tree on a new machine.
const PER_MACHINE: u64 = 200;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    operations: u64,
    /// Operation to how often it succeeded.
    succeeded: BTreeMap<&'static str, u64>,
    /// Changes that made tables of blocks, and merges that made blocks of tables.
    split: u64,
    merged: u64,
    /// Accesses after operations, and in the middle of them.
    accesses: (u64, u64),
    /// Accesses at the regions of the reference, and leaves that were compared with it.
    regions: u64,
    leaves: u64,
    /// Dry runs that were compared with the operation.
    dry_runs: u64,
    /// Notes of hardware, and those that were harvested.
    notes: (u64, u64),
}

const ACCESSES: [Access; 6] = {
    const fn access(kind: AccessKind, user: bool) -> Access {
        Access {
            regime: Regime::El10,
            kind,
            user,
        }
    }
    [
        access(AccessKind::Read, false),
        access(AccessKind::Write, false),
        access(AccessKind::Fetch, false),
        access(AccessKind::Read, true),
        access(AccessKind::Write, true),
        access(AccessKind::Fetch, true),
    ]
};

/// Offsets worth looking at: the edges of a range and what is beside them, inside it, and
/// anywhere.
fn offsets(geometry: &Geometry, random: &mut Random, (from, to): (u64, u64)) -> Vec<u64> {
    let (span, page) = (geometry.span(), geometry.page_size().bytes());
    let unit = random.of(&units(geometry));
    let mut offsets = vec![
        from,
        to.wrapping_sub(1),
        to,
        from.wrapping_sub(1),
        from + unit,
        to.wrapping_sub(unit),
        from + random.below((to - from).max(1)),
        from / unit * unit,
    ];
    while offsets.len() < SAMPLES {
        offsets.push(random.below(span));
    }
    for offset in &mut offsets {
        *offset = (*offset & !7 | random.below(page / 8) & 7) % span;
    }
    offsets
}

/// Whether an operation may break the leaf of an address, and make it again.
fn breaks(
    operation: &Operation,
    before: Option<(u64, Attributes)>,
    after: Option<(u64, Attributes)>,
) -> bool {
    let Operation::OfLeaves {
        does: OfLeaves::Change(..),
        ..
    } = operation
    else {
        return false;
    };
    let memory = |(_, one): (u64, Attributes)| (one.memory, one.shareability);
    before.map(memory) != after.map(memory)
}

/// What was done between two counts.
fn difference(before: Cost, after: Cost) -> Cost {
    let mut cost = after;
    cost.tables -= before.tables;
    cost.freed -= before.freed;
    cost.stores -= before.stores;
    cost.tlbi -= before.tlbi;
    cost.dsb -= before.dsb;
    cost.isb -= before.isb;
    cost
}

/// A machine of `shape` with a tree, and what the tree is to say.
pub(crate) struct Run<P: Page> {
    bench: Bench<P>,
    reference: Reference,
    draw: Draw,
    random: Random,
    notes: Notes,
    pub(crate) done: Done,
}

impl<P: Page> Run<P> {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let bench = Bench::<P>::new(shape, seed);
        let geometry = bench.geometry;
        Self {
            bench,
            reference: Reference::new(shape.hardware),
            draw: Draw::new(geometry, shape.asid.is_none()),
            random: Random::new(seed),
            notes: Notes::default(),
            done: Done::default(),
        }
    }

    /// From here on the library's events are not what they should be.
    pub(crate) fn plant(&self, tap: Tap) {
        self.bench.world.borrow_mut().tap = Some(tap);
    }

    /// Events that were not what they should be.
    pub(crate) fn planted(&self) -> u64 {
        self.bench.world.borrow().planted
    }

    /// One operation and all that is looked at after it.
    pub(crate) fn step(&mut self) {
        let mut operation = self.draw.operation(&mut self.random, &self.reference);
        operation.look(&self.bench);
        self.perform(&operation);
    }

    fn perform(&mut self, operation: &Operation) {
        let geometry = self.bench.geometry;
        let base = geometry.base().0;
        let mut after = self.reference.clone();
        operation.apply(&geometry, &mut after);
        let offsets = offsets(&geometry, &mut self.random, operation.range(&geometry));
        let samples = offsets.iter().map(|&offset| {
            let access = self.random.of(&ACCESSES);
            Sample {
                va: base.wrapping_add(offset),
                access,
                before: self.reference.outcome(&geometry, offset, access),
                after: after.outcome(&geometry, offset, access),
                breaks: breaks(operation, self.reference.at(offset), after.at(offset)),
            }
        });
        let samples: Vec<Sample> = samples.collect();
        {
            let mut world = self.bench.world.borrow_mut();
            world.cpu = self.random.below(u64::from(self.bench.shape.cpus)) as u32;
            world.watch.samples = samples.clone();
        }
        let dry = self.dry_run(operation);
        self.bench.harvested.clear();
        if self.bench.shape.hardware {
            let random = Random::new(self.random.next());
            let meanwhile = self.notes.meanwhile(&self.bench, offsets, random);
            self.bench.world.borrow_mut().meanwhile = Some(meanwhile);
        }
        let (tables, before) = {
            let world = self.bench.world.borrow();
            (world.tables, world.cost)
        };
        let result = operation.perform(&mut self.bench, &self.reference);
        if let Some(dry) = dry {
            let cost = result.map(|()| difference(before, self.bench.world.borrow().cost));
            assert_eq!(dry, cost, "the dry run of {operation:?}");
            self.done.dry_runs += 1;
        }
        self.bench.world.borrow_mut().meanwhile = None;
        self.notes.check(&self.bench, operation, result.is_ok());
        self.done.notes = (self.notes.made, self.notes.reported);
        let bbm_level = self.bench.shape.bbm_level;
        operation.check_result(&geometry, bbm_level, &self.reference, result);
        let now = self.bench.world.borrow().tables;
        match operation {
            Operation::Protect { .. }
            | Operation::SetInvalid { .. }
            | Operation::Limit { .. }
            | Operation::OfLeaves { .. } => {
                self.done.split += u64::from(now > tables);
            }
            Operation::Merge { .. } => self.done.merged += u64::from(now < tables),
            _ => {}
        }
        {
            let mut world = self.bench.world.borrow_mut();
            world.watch.samples.clear();
            let wrong = world.watch.wrong.take();
            assert_eq!(wrong, None, "{operation:?}");
            self.done.accesses.1 = world.watch.accesses;
        }
        self.bench.settle();
        if result.is_ok() {
            self.reference = after;
            *self.done.succeeded.entry(operation.name()).or_default() += 1;
        }
        self.done.operations += 1;
        for sample in samples {
            self.look(&sample, result.is_ok());
        }
        self.look_at_regions();
        self.compare_leaves();
        let violations = self.bench.violations();
        assert!(violations.is_empty(), "{operation:?}: {violations:#?}");
    }

    /// What the library says that an operation would do. Updates by hardware meanwhile may change
    /// that, and so do planted faults.
    fn dry_run(&self, operation: &Operation) -> Option<Result<Cost, TableError>> {
        if self.bench.shape.hardware || self.bench.world.borrow().tap.is_some() {
            return None;
        }
        let before = self.bench.world.borrow().cost;
        let dry = operation.dry_run(&self.bench);
        assert_eq!(
            self.bench.world.borrow().cost,
            before,
            "a dry run does nothing"
        );
        dry
    }

    /// Accesses at the edges of each region of the reference, beside them, and inside.
    fn look_at_regions(&mut self) {
        let geometry = self.bench.geometry;
        let (base, span) = (geometry.base().0, geometry.span());
        for which in 0..self.reference.len() {
            let Some((from, region)) = self.reference.nth(which) else {
                break;
            };
            let inside = from + self.random.below(region.bytes);
            let last = from + (region.bytes - 1);
            for offset in [from.wrapping_sub(1), from, inside, last, last + 1] {
                let offset = offset % span;
                let access = self.random.of(&ACCESSES);
                let now = self.reference.outcome(&geometry, offset, access);
                let sample = Sample {
                    va: base.wrapping_add(offset),
                    access,
                    before: now,
                    after: now,
                    breaks: false,
                };
                self.look(&sample, true);
                self.done.regions += 1;
            }
        }
    }

    /// Every run of leaves that follow each other says of its first and its last address what the
    /// reference says; a region that begins or ends inside one was looked at there. And there are
    /// no more bytes.
    fn compare_leaves(&mut self) {
        let base = self.bench.geometry.base().0;
        let geometry = self.bench.geometry;
        let reference = &self.reference;
        let (mut bytes, mut leaves, mut wrong) = (0, 0, None);
        self.bench.tables.visit_runs(|entry| {
            if entry.kind != Kind::Leaf {
                return Visit::EVERYTHING;
            }
            let offset = entry.start.0.wrapping_sub(base);
            let attributes = Attributes::decode(entry.descriptor, &geometry);
            let attributes = Some(reference.known(attributes));
            let run = entry.bytes * entry.count as u64;
            for inside in [0, run - 1] {
                let expected = reference.at(offset + inside);
                let output = entry.output.0 + inside;
                if expected.map(|one| one.0) != Some(output)
                    || expected.map(|one| one.1) != attributes
                {
                    wrong.get_or_insert((*entry, expected));
                }
            }
            bytes += run;
            leaves += entry.count as u64;
            Visit::EVERYTHING
        });
        assert_eq!(wrong, None);
        assert_eq!(bytes, reference.bytes(), "bytes mapped");
        self.done.leaves += leaves;
    }

    /// One access by one CPU, and what the library says about the address.
    fn look(&mut self, sample: &Sample, succeeded: bool) {
        let expected = if succeeded {
            sample.after
        } else {
            sample.before
        };
        let geometry = self.bench.geometry;
        {
            let mut world = self.bench.world.borrow_mut();
            let cpu = self.random.below(u64::from(self.bench.shape.cpus)) as u32;
            let mut outcomes = world.model.access(cpu, sample.va, sample.access);
            outcomes.retain(|one| !conflict_allowed(&world.model, one));
            assert_eq!(outcomes, [expected], "CPU {cpu} by {sample:?}");
            self.done.accesses.0 += 1;
            // What was stored here may be read past the caches by another mapping of it, or the
            // other way round: whoever changes the mapping of memory maintains its lines.
            if let (AccessKind::Write, Outcome::Memory(to)) = (sample.access.kind, expected) {
                let (op, address, bytes) = (System::DC_CIVAC, to.address, 1);
                for kind in [
                    Event::Lines {
                        instruction: op,
                        start: address,
                        bytes,
                    },
                    Event::Barrier(Barrier::DSB_SY),
                ] {
                    assert_eq!(world.model.event(cpu, kind), Ok(()));
                }
            }
        }
        let offset = sample.va.wrapping_sub(geometry.base().0);
        let found = self.bench.tables.query(VirtualAddress(sample.va));
        let known = |attributes| self.reference.known(attributes);
        let found = found.map(|found| (found.output.0, known(found.attributes)));
        assert_eq!(
            found,
            self.reference.at(offset),
            "query of {:#x}",
            sample.va
        );
    }
}

/// `operations` of them on machines of `shape`.
fn run<P: Page>(shape: Shape, seed: u64, operations: u64, total: &mut Done) {
    let mut left = operations;
    let mut machine = 0;
    while left > 0 {
        let some = left.min(PER_MACHINE);
        let mut run = Run::<P>::new(shape, seed.wrapping_add(machine << 32));
        for step in 0..some {
            let result = catch_unwind(AssertUnwindSafe(|| run.step()));
            if let Err(what) = result {
                eprintln!("{} {shape:?}: machine {machine}, step {step}", P::SIZE);
                resume_unwind(what);
            }
        }
        total.operations += run.done.operations;
        total.split += run.done.split;
        total.merged += run.done.merged;
        total.accesses.0 += run.done.accesses.0;
        total.accesses.1 += run.done.accesses.1;
        total.regions += run.done.regions;
        total.leaves += run.done.leaves;
        total.dry_runs += run.done.dry_runs;
        total.notes.0 += run.done.notes.0;
        total.notes.1 += run.done.notes.1;
        for (name, times) in run.done.succeeded {
            *total.succeeded.entry(name).or_default() += times;
        }
        left -= some;
        machine += 1;
    }
}

/// All shapes of one page size: sizes of the address space, and formats, of each half; over them
/// the other properties in turn.
fn all<P: Page>(sizes: &[(u32, bool)], share: u64, hardware: bool) {
    let seed = from_environment("GRANULE_HARNESS_SEED").unwrap_or(1);
    let operations = from_environment("GRANULE_HARNESS_OPERATIONS").unwrap_or(OPERATIONS);
    println!("harness: {} GRANULE_HARNESS_SEED={seed:#x}", P::SIZE);
    let mut shapes = Vec::new();
    for &(va_bits, wide) in sizes {
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
            });
        }
    }
    let mut total = Done::default();
    let each = (operations / share).div_ceil(shapes.len() as u64);
    for (index, &shape) in shapes.iter().enumerate() {
        let seed = seed.wrapping_mul(0x1_0001).wrapping_add(index as u64);
        run::<P>(shape, seed, each, &mut total);
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
        let times = total.succeeded.get(name).copied().unwrap_or(0);
        assert!(times > total.operations / 200, "{name}: {times} times only");
    }
    assert!(
        total.split > total.operations / 200,
        "{} splits",
        total.split
    );
    assert!(
        total.merged > total.operations / 2000,
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
        "harness: {} {} dry runs, {} updates by hardware, {} of them harvested",
        P::SIZE,
        total.dry_runs,
        total.notes.0,
        total.notes.1
    );
    if hardware {
        assert!(total.notes.0 > total.operations / 4 && total.notes.1 > total.operations / 200);
    } else {
        assert!(total.dry_runs > total.operations / 2);
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
    all::<Page4K>(&sizes, 2, false);
}

#[test]
fn random_16k() {
    let sizes = [(36, false), (47, false), (48, true), (52, true)];
    all::<Page16K>(&sizes, 3, false);
}

#[test]
fn random_64k() {
    let sizes = [(42, false), (48, true), (52, true), (36, false)];
    all::<Page64K>(&sizes, 6, false);
}

// Hardware sets access flags and makes pages dirty in the middle of the operations.
#[test]
fn hardware_updates_4k() {
    all::<Page4K>(&[(39, false), (48, false), (52, true)], 6, true);
}

#[test]
fn hardware_updates_16k() {
    all::<Page16K>(&[(36, false), (47, false), (48, true)], 12, true);
}

#[test]
fn hardware_updates_64k() {
    all::<Page64K>(&[(42, false), (52, true)], 24, true);
}
