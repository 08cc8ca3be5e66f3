//! A random sequence on one machine: after each operation every address translates as the
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
use crate::operation::{Does, Operation};
use crate::random::Random;
use crate::reference::Reference;
use crate::shape::{Shape, units};
use crate::stage::Staged;
use crate::watch::{Sample, conflict_allowed};
use granule::arch::{Geometry, Kind, Page};
use granule::table::{Stage1, Visit};
use granule_model::{Access, AccessKind, Barrier, Event, Outcome, System};
use std::collections::BTreeMap;

/// Addresses looked at in the middle of each operation, and after it beside those of the regions.
const SAMPLES: usize = 10;

/// Counts of what was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) operations: u64,
    /// Operation to how often it succeeded.
    pub(crate) succeeded: BTreeMap<&'static str, u64>,
    /// Changes that made tables of blocks, and merges that made blocks of tables.
    pub(crate) split: u64,
    pub(crate) merged: u64,
    /// Accesses after operations, and in the middle of them.
    pub(crate) accesses: (u64, u64),
    /// Accesses at the regions of the reference, and leaves that were compared with it.
    pub(crate) regions: u64,
    pub(crate) leaves: u64,
    /// Notes of hardware, and those that were harvested.
    pub(crate) notes: (u64, u64),
}

impl Done {
    pub(crate) fn add(&mut self, more: Self) {
        self.operations += more.operations;
        self.split += more.split;
        self.merged += more.merged;
        self.accesses.0 += more.accesses.0;
        self.accesses.1 += more.accesses.1;
        self.regions += more.regions;
        self.leaves += more.leaves;
        self.notes.0 += more.notes.0;
        self.notes.1 += more.notes.1;
        for (name, times) in more.succeeded {
            *self.succeeded.entry(name).or_default() += times;
        }
    }
}

/// All kinds of accesses, by both privileges.
fn accesses<S: Staged>() -> Vec<Access> {
    let mut accesses = Vec::new();
    for user in [false, true] {
        for kind in [AccessKind::Read, AccessKind::Write, AccessKind::Fetch] {
            let regime = S::REGIME;
            accesses.push(Access { regime, kind, user });
        }
    }
    accesses
}

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
fn breaks<S: Staged>(
    operation: &Operation<S>,
    before: Option<(u64, S::Attributes)>,
    after: Option<(u64, S::Attributes)>,
) -> bool {
    if !matches!(operation.does(), Some(Does::Leaves(OfLeaves::Modify(..)))) {
        return false;
    }
    let memory = |(_, mut one): (u64, S::Attributes)| {
        let parts = S::parts(&mut one);
        (*parts.memory, *parts.shareability)
    };
    before.map(memory) != after.map(memory)
}

/// A machine of `shape` with a tree, and the tree's expected contents.
pub(crate) struct Run<P: Page, S: Staged = Stage1> {
    bench: Bench<P, S>,
    reference: Reference<S>,
    draw: Draw<S>,
    random: Random,
    notes: Notes,
    pub(crate) done: Done,
}

impl<P: Page, S: Staged> Run<P, S> {
    pub(crate) fn of(shape: Shape, seed: u64) -> Self {
        let bench = Bench::<P, S>::of(shape, seed);
        // On every other machine the tree itself holds pages for its tables.
        bench.tables.environment().pages.borrow_mut().reserves = seed >> 32 & 1 == 0;
        let geometry = bench.geometry;
        Self {
            bench,
            reference: Reference::new(shape.hardware),
            draw: Draw::new(geometry, &shape),
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

    fn perform(&mut self, operation: &Operation<S>) {
        let geometry = self.bench.geometry;
        let base = geometry.base().0;
        let mut after = self.reference.clone();
        operation.apply(&geometry, &mut after);
        let offsets = offsets(&geometry, &mut self.random, operation.range(&geometry));
        let samples = offsets.iter().map(|&offset| {
            let access = self.random.of(&accesses::<S>());
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
        // Hardware is quiet now and then.
        let updates = self.bench.shape.hardware && !self.random.once_in(3);
        self.bench.harvested.clear();
        if updates {
            let random = Random::new(self.random.next());
            let meanwhile = self.notes.meanwhile(&self.bench, offsets, random);
            self.bench.world.borrow_mut().meanwhile = Some(meanwhile);
        }
        let tables = self.bench.world.borrow().tables;
        let result = operation.perform(&mut self.bench, &self.reference);
        self.bench.world.borrow_mut().meanwhile = None;
        self.notes.check(&self.bench, operation, result.is_ok());
        self.done.notes = (self.notes.made, self.notes.reported);
        let bbm_level = self.bench.shape.bbm_level;
        operation.check_result(&geometry, bbm_level, &self.reference, result);
        let now = self.bench.world.borrow().tables;
        match operation.does() {
            Some(Does::Protect(..) | Does::SetInvalid | Does::Limit(_) | Does::Leaves(_)) => {
                self.done.split += u64::from(now > tables);
            }
            Some(Does::Merge(_)) => self.done.merged += u64::from(now < tables),
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
            self.reference = self.bench.left.take().unwrap_or(after);
            *self.done.succeeded.entry(operation.name()).or_default() += 1;
        }
        self.done.operations += 1;
        for sample in samples {
            self.look(sample.va, sample.access);
        }
        self.look_at_regions();
        self.compare_leaves();
        let violations = self.bench.violations();
        assert!(violations.is_empty(), "{operation:?}: {violations:#?}");
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
                let access = self.random.of(&accesses::<S>());
                self.look(base.wrapping_add(offset), access);
                self.done.regions += 1;
            }
        }
    }

    /// Every run of leaves that follow each other maps its first and its last address as the
    /// reference does; a region that begins or ends inside one was looked at there. And there are
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
            let offset = S::address(entry.start).0.wrapping_sub(base);
            let attributes = S::decode(entry.descriptor, &geometry);
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

    /// Makes one access by one CPU, and compares the library's answer for the address.
    fn look(&mut self, va: u64, access: Access) {
        let geometry = self.bench.geometry;
        let offset = va.wrapping_sub(geometry.base().0);
        let expected = self.reference.outcome(&geometry, offset, access);
        {
            let mut world = self.bench.world.borrow_mut();
            let cpu = self.random.below(u64::from(self.bench.shape.cpus)) as u32;
            let mut outcomes = world.model.access(cpu, va, access);
            outcomes.retain(|one| !conflict_allowed(&world.model, one));
            assert_eq!(outcomes, [expected], "CPU {cpu} at {va:#x} by {access:?}");
            self.done.accesses.0 += 1;
            // What was stored here may be read past the caches by another mapping of it, or the
            // other way round: whoever changes the mapping of memory maintains its lines.
            if let (AccessKind::Write, Outcome::Memory(to)) = (access.kind, expected) {
                let (op, address, bytes) = (System::DC_CIVAC, to.address, 1);
                for kind in [
                    Event::lines(op, address, bytes),
                    Event::Barrier(Barrier::DSB_SY),
                ] {
                    assert_eq!(world.model.event(cpu, kind), Ok(()));
                }
            }
        }
        let found = self.bench.tables.query(S::at(va));
        let known = |attributes| self.reference.known(attributes);
        let found = found.map(|found| (found.output.0, known(found.attributes)));
        assert_eq!(found, self.reference.at(offset), "query of {va:#x}");
    }
}
