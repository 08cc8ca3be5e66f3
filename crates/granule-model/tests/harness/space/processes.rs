//! Processes on several CPUs: the kernel that the library's spaces are used by.
//!
//! It does what a kernel must (make a space, fork it, take a CPU out of a space before the root
//! goes) and keeps the reference: what each page of each process holds, and whether it was written.
//! All is held against that by [`check`](Processes::check).

use super::cpus::Cpus;
use super::frames::{APART, FIRST, Frames};
use super::meanwhile::{self, Entries, Hardware, Injection, Leaf};
use crate::bench::{capabilities, model, turn_on};
use crate::machine::{Machine, Pages, Shared, SharedPages, TABLES, World};
use crate::random::Random;
use crate::shape::Shape;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Geometry, Page, PhysicalAddress, VirtualAddress};
use granule::space::asid::SpaceAsid;
use granule::space::{Rights, Settings, Space, SpaceError, VmaNode};
use granule::table::Visit;
use granule_model::{Access, AccessKind, Event, Outcome, Regime};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The bytes of table pages for each page size.
const TABLES_APART: u64 = 0x1000_0000;

/// A page of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(super) rights: Rights,
    pub(super) value: u64,
    pub(super) dirty: bool,
}

pub(crate) struct Process<P: Page> {
    pub(super) id: u64,
    pub(crate) space: Space<'static, P, Machine, Frames>,
    pub(super) asid: SpaceAsid,
    pub(super) pages: BTreeMap<u64, Known>,
}

impl<P: Page> Process<P> {
    /// Pages that hold nothing yet.
    pub(super) fn note_new(&mut self, pages: Range<u64>, rights: Rights) {
        let known = Known {
            rights,
            value: 0,
            dirty: false,
        };
        self.pages.extend(pages.map(|page| (page, known)));
    }
}

pub(crate) struct Processes<P: Page> {
    pub(crate) world: Shared,
    pub(crate) geometry: Geometry,
    pub(super) shape: Shape,
    pub(crate) settings: Settings,
    pub(crate) frames: Frames,
    /// Table pages that all spaces have from one place.
    pub(crate) tables: SharedPages,
    pub(crate) all: Vec<Process<P>>,
    pub(crate) cpus: Cpus,
    next_id: u64,
    pub(crate) random: Random,
    /// Hardware updates nothing in the middle of operations.
    pub(crate) quiet: bool,
    pub(super) hardware: Hardware,
}

pub(super) const fn user(kind: AccessKind) -> Access {
    Access {
        regime: Regime::El10,
        kind,
        user: true,
    }
}

impl<P: Page> Processes<P> {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let geometry = shape.geometry::<P>();
        let world = World::shared(model(&shape), seed);
        let tables = Pages::new(&world, P::SIZE.bytes());
        let idle = tables.borrow_mut().allocate();
        let idle = idle.unwrap_or(PhysicalAddress(0));
        world
            .borrow_mut()
            .event(Event::fill(idle.0, P::SIZE.entries() as u32, 0, 0));
        let without = shape.asid(0);
        turn_on(&world, &without, &geometry, idle.0);
        let cpus = Cpus::new(&world, &shape, geometry, idle);
        Self::of((&world, &cpus), shape, seed, 0, tables)
    }

    /// Processes of this page size beside those of others, on the same CPUs. `number` distinguishes
    /// the sizes. apart.
    pub(crate) fn beside(
        (world, cpus): (&Shared, &Cpus),
        shape: Shape,
        seed: u64,
        number: u64,
    ) -> Self {
        let first = TABLES + number * TABLES_APART;
        let tables = Pages::from(world, P::SIZE.bytes(), first);
        Self::of((world, cpus), shape, seed, number, tables)
    }

    fn of(
        (world, cpus): (&Shared, &Cpus),
        shape: Shape,
        seed: u64,
        number: u64,
        tables: SharedPages,
    ) -> Self {
        Self {
            frames: Frames::new(world, P::SIZE.bytes(), FIRST + number * APART),
            cpus: cpus.clone(),
            world: world.clone(),
            geometry: shape.geometry::<P>(),
            shape,
            settings: Settings {
                hardware_access: shape.hardware,
                hardware_dirty: shape.hardware,
                bbm: BbmLevel::from_number(shape.bbm_level.into()),
                break_execute: shape.bbm_level >= 2,
                ..Settings::PLAIN
            },
            tables,
            all: Vec::new(),
            next_id: number << 32,
            random: Random::new(seed),
            quiet: false,
            hardware: Hardware::default(),
        }
    }

    pub(crate) fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    pub(super) fn address(&self, page: u64) -> VirtualAddress {
        VirtualAddress(page * self.page())
    }

    pub(crate) fn cpus(&self) -> u64 {
        self.cpus.count()
    }

    pub(crate) fn on(&self, cpu: u32) {
        self.cpus.on(cpu);
    }

    /// An empty space that nobody runs yet.
    fn new_process(&mut self) -> Result<Process<P>, SpaceError> {
        let pages = Rc::clone(&self.tables);
        let environment = Machine::new(&self.world, pages, capabilities(&self.shape));
        let nodes = Vec::leak(vec![VmaNode::EMPTY, VmaNode::EMPTY, VmaNode::EMPTY]);
        let space = Space::new(self.geometry, environment, nodes, self.settings)?;
        self.next_id += 1;
        Ok(Process {
            id: self.next_id,
            space,
            asid: SpaceAsid::new(),
            pages: BTreeMap::new(),
        })
    }

    /// A first process, which every CPU runs.
    pub(crate) fn start(&mut self) {
        self.start_on(self.cpus() as u32);
    }

    /// A first process, which so many CPUs run.
    pub(crate) fn start_on(&mut self, cpus: u32) {
        match self.new_process() {
            Ok(mut process) => {
                // SAFETY: the TLBIs reach the model's CPUs.
                unsafe { process.space.make_live() };
                self.all.push(process);
            }
            Err(error) => panic!("{error}"),
        }
        for cpu in 0..cpus {
            self.switch(cpu, Some(0));
        }
    }

    /// The process that a CPU runs, by its place.
    pub(crate) fn running(&self, cpu: u32) -> Option<usize> {
        let id = self.cpus.running(cpu)?;
        self.all.iter().position(|process| process.id == id)
    }

    /// A CPU goes to a process, or to none. If others run the process already, their hardware goes on
    /// meanwhile.
    pub(crate) fn switch(&mut self, cpu: u32, to: Option<usize>) {
        let here = |to: &usize| self.cpus.who_run(self.all[*to].id) & !(1 << cpu) != 0;
        let shared = to
            .filter(here)
            .filter(|_| self.shape.hardware && !self.quiet);
        if let Some(to) = shared {
            let random = Random::new(self.random.next());
            let meanwhile = self.hardware.at_random(self.entries(to), random);
            self.world.borrow_mut().meanwhile = Some(meanwhile);
        }
        self.cpus.switch(cpu, to.map(|to| &mut self.all[to]));
        self.world.borrow_mut().meanwhile = None;
        if let Some(to) = shared {
            self.note_written(to);
        }
    }

    /// Records as dirty what hardware wrote of a process since the last call.
    fn note_written(&mut self, process: usize) {
        for va in self.hardware.take_written() {
            let page = va / self.page();
            if let Some(known) = self.all[process].pages.get_mut(&page) {
                known.dirty = true;
            }
        }
    }

    /// Where the descriptors of a process's pages are, by address.
    pub(super) fn entries(&self, process: usize) -> Entries {
        let mut found = Vec::new();
        self.all[process].space.tables().visit_all(|entry| {
            if entry.kind == granule::arch::Kind::Leaf {
                found.push(Leaf {
                    va: entry.start.0,
                    bytes: entry.bytes,
                    at: entry.table.0 + entry.index as u64 * 8,
                    kind: entry.descriptor.0 & 0b11,
                });
            }
            Visit::EVERYTHING
        });
        found
    }

    /// Watches what other CPUs in the space may find beside the pages that an operation is about, in the
    /// middle of it.
    pub(super) fn watch(&self, process: usize, (from, pages): (u64, u64)) {
        let beside = [0, 1, pages / 2, pages.saturating_sub(1), pages, pages + 1];
        meanwhile::watch(
            &mut self.world.borrow_mut(),
            self.cpus.who_run(self.all[process].id),
            user(AccessKind::Read),
            beside.map(|at| (from + at) * self.page()),
        );
    }

    /// Other CPUs in the same space go on while something is done to it: hardware sets access flags
    /// and makes pages dirty.
    fn meanwhile(&mut self, process: usize) {
        let meanwhile = if let Some(injection) = self.hardware.take_injection() {
            let va = self.address(injection.page).0;
            let entries = self.entries(process);
            self.hardware.at_moment(&entries, va, injection)
        } else {
            let here = self.cpus.who_run(self.all[process].id).count_ones();
            if !self.shape.hardware || self.quiet || here < 2 {
                return;
            }
            let random = Random::new(self.random.next());
            self.hardware.at_random(self.entries(process), random)
        };
        self.world.borrow_mut().meanwhile = Some(meanwhile);
    }

    /// Has hardware do something in the middle of the next operation.
    pub(crate) fn inject(&mut self, injection: Injection) {
        self.hardware.inject(injection);
    }

    /// Returns the number of moments of that operation, and whether hardware did something.
    pub(crate) fn injected(&self) -> (u64, bool) {
        self.hardware.injected()
    }

    /// The number that a process last ran under.
    pub(crate) fn number(&self, process: usize) -> Option<u16> {
        self.all[process].asid.number()
    }

    /// Whether a page was accessed, and whether it was written, if it is there.
    pub(crate) fn noted(&self, process: usize, page: u64) -> Option<(bool, bool)> {
        let state = self.all[process].space.page(self.address(page))?;
        Some((state.accessed, state.dirty))
    }

    /// Before something is done to `pages` of a process, from `from` on.
    pub(super) fn begin(&mut self, process: usize, from: u64, pages: u64) {
        self.meanwhile(process);
        self.frames.concerned = Some((from * self.page(), pages * self.page()));
    }

    /// After it: what was written meanwhile is known, and what was done is relied on by all.
    pub(super) fn finish(&mut self, process: Option<usize>) {
        self.frames.concerned = None;
        let mut world = self.world.borrow_mut();
        world.meanwhile = None;
        world.watch.samples.clear();
        drop(world);
        match process {
            Some(process) => self.note_written(process),
            None => drop(self.hardware.take_written()),
        }
        self.settle();
    }

    /// All that was done is relied on by every CPU; the others come by an exception.
    pub(crate) fn settle(&self) {
        self.cpus.settle();
    }

    pub(crate) fn map(&mut self, process: usize, page: u64, count: u64, rights: Rights) -> bool {
        let (start, bytes) = (self.address(page), count * self.page());
        let one = &mut self.all[process];
        match one.space.map(start, bytes, rights, 0) {
            Ok(()) => {
                one.note_new(page..page + count, rights);
                true
            }
            Err(SpaceError::Occupied { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn unmap(&mut self, process: usize, page: u64, count: u64) {
        assert_eq!(self.try_unmap(process, page, count), Ok(()));
    }

    /// An error is one of memory.
    pub(crate) fn try_unmap(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
    ) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        self.begin(process, page, count);
        self.watch(process, (page + count, 1));
        let one = &mut self.all[process];
        let done = one.space.unmap(start, bytes, &mut self.frames);
        if done.is_ok() {
            one.pages.retain(|&at, _| at < page || at >= page + count);
        }
        self.finish(Some(process));
        done
    }

    pub(crate) fn protect(&mut self, process: usize, page: u64, count: u64, rights: Rights) {
        assert_eq!(self.try_protect(process, page, count, rights), Ok(()));
    }

    /// An error is one of memory.
    pub(crate) fn try_protect(
        &mut self,
        process: usize,
        page: u64,
        count: u64,
        rights: Rights,
    ) -> Result<(), SpaceError> {
        let (start, bytes) = (self.address(page), count * self.page());
        self.begin(process, page, count);
        let one = &mut self.all[process];
        let all = (page..page + count).all(|page| one.pages.contains_key(&page));
        let done = one.space.protect(start, bytes, rights, &mut self.frames);
        if done.is_ok() {
            assert!(all, "there is a hole");
            for (_, known) in one.pages.range_mut(page..page + count) {
                known.rights = rights;
            }
        }
        self.finish(Some(process));
        match done {
            Err(SpaceError::NotMapped { .. }) if !all => Ok(()),
            done => done,
        }
    }

    pub(crate) fn fork(&mut self, process: usize) -> Result<usize, SpaceError> {
        let mut child = self.new_process()?;
        self.begin(process, 0, 1);
        self.frames.concerned = None;
        let parent = &mut self.all[process];
        let done = parent.space.fork_into(&mut child.space, &mut self.frames);
        self.finish(Some(process));
        if let Err(error) = done {
            // SAFETY: no CPU was ever in the child.
            unsafe { child.space.destroy(&mut self.frames) };
            return Err(error);
        }
        // SAFETY: the TLBIs reach the model's CPUs.
        unsafe { child.space.make_live() };
        child.pages = self.all[process].pages.clone();
        for known in child.pages.values_mut() {
            known.dirty = false;
        }
        self.all.push(child);
        Ok(self.all.len() - 1)
    }

    /// A process ends on a CPU that runs it; the others are taken out of it first.
    pub(crate) fn exit(&mut self, cpu: u32) {
        let Some(process) = self.running(cpu) else {
            return;
        };
        let id = self.all[process].id;
        for other in 0..self.cpus() as u32 {
            if other != cpu && self.cpus.running(other) == Some(id) {
                self.switch(other, None);
            }
        }
        self.on(cpu);
        let first = self.all[process].pages.keys().next().copied();
        let last = self.all[process].pages.keys().next_back().copied();
        if let (Some(first), Some(last)) = (first, last) {
            self.begin(process, first, last + 1 - first);
        }
        self.all[process].space.clear(&mut self.frames);
        self.finish(None);
        self.switch(cpu, None);
        let one = self.all.swap_remove(process);
        // SAFETY: every CPU left the space above.
        unsafe { one.space.destroy(&mut self.frames) };
        self.settle();
    }

    /// Everything against the reference, and nothing reported.
    pub(crate) fn check(&mut self) {
        assert_eq!(self.violations(), Vec::<String>::new());
        let mut leaves = 0;
        for process in &self.all {
            let mut mapped = 0;
            for (&page, known) in &process.pages {
                let Some(state) = process.space.page(self.address(page)) else {
                    assert_eq!(known.value, 0, "page {page:#x} is lost");
                    continue;
                };
                mapped += 1;
                let value = self.frames.value(state.frame.0);
                assert_eq!(value, known.value, "page {page:#x} {known:?}");
                assert!(state.dirty || !known.dirty, "{page:#x} was written");
            }
            assert_eq!(process.space.stats().resident, mapped);
            leaves += mapped;
        }
        assert_eq!(self.frames.owned(), leaves, "owners and pages");
        let wrong = self.world.borrow_mut().watch.wrong.take();
        assert_eq!(wrong, None);
        // Each CPU finds the memory of the program that it runs.
        for cpu in 0..self.cpus() as u32 {
            let Some(process) = self.running(cpu) else {
                continue;
            };
            let pages = &self.all[process].pages;
            if pages.is_empty() {
                continue;
            }
            for _ in 0..6 {
                let which = self.random.below(pages.len() as u64) as usize;
                let Some((&page, known)) = pages.iter().nth(which) else {
                    continue;
                };
                let va = self.address(page).0;
                let outcomes =
                    self.world
                        .borrow_mut()
                        .model
                        .access(cpu, va, user(AccessKind::Read));
                match outcomes[..] {
                    [Outcome::Memory(to)] => {
                        assert!(known.rights.any());
                        assert_eq!(self.frames.value(to.address), known.value);
                    }
                    [Outcome::Fault(_)] => {}
                    _ => panic!("CPU {cpu} finds {outcomes:?} at {va:#x}"),
                }
            }
        }
        assert_eq!(self.violations(), Vec::<String>::new());
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        let world = self.world.borrow();
        let found = world.model.violations();
        found.iter().map(ToString::to_string).collect()
    }

    /// All end; nothing is left but the idle root.
    pub(crate) fn end(mut self) {
        self.end_all();
        assert_eq!(self.world.borrow().tables, 1, "tables left");
    }

    /// All end, and no frame is left.
    pub(crate) fn end_all(&mut self) {
        while !self.all.is_empty() {
            self.switch(0, Some(0));
            self.exit(0);
            self.check();
        }
        assert_eq!(self.frames.owned(), 0);
    }
}
