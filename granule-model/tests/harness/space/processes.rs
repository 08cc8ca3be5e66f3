//! Processes on several CPUs: the kernel that the library's spaces are used by.
//!
//! It does what a kernel must (switch TTBR0 with a current number, flush when it is told to, take a
//! CPU out of a space before the root goes) and keeps the reference: what each page of each process
//! holds, and whether it was written.

use super::frames::Frames;
use crate::bench::{capabilities, model, turn_on};
use crate::machine::{Cpu, Memory, Pages, Shared, World};
use crate::random::Random;
use crate::shape::Shape;
use crate::watch::Sample;
use granule::arch::bbm::BbmLevel;
use granule::arch::registers::Ttbr;
use granule::arch::{Descriptor, Geometry, Page, PhysicalAddress, VirtualAddress};
use granule::space::asid::{AsidCpu, AsidMap, Asids, SpaceAsid};
use granule::space::{Access as Wish, Area, Rights, Settings, Space, SpaceError};
use granule::table::{Parts, TableAllocator, TableRun};
use granule_model::{
    Access, AccessKind, Barrier, EventKind, Model, Outcome, Regime, Register, Tlbi,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// One number for each CPU, one more, and the 0: a generation lasts for a few switches.
const NUMBERS: u64 = 5;

/// Table pages that all spaces have from one place.
#[derive(Clone)]
pub(crate) struct SharedPages(pub(crate) Rc<RefCell<Pages>>);

// SAFETY: each call is handed on.
unsafe impl TableAllocator for SharedPages {
    fn reserve(&mut self, tables: usize) -> bool {
        self.0.borrow_mut().reserve(tables)
    }
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        self.0.borrow_mut().allocate(most)
    }
    fn free(&mut self, table: PhysicalAddress) {
        self.0.borrow_mut().free(table);
    }
}

type Environment = Parts<Memory, SharedPages, Cpu>;

/// A page of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    rights: Rights,
    value: u64,
    dirty: bool,
}

pub(crate) struct Process<P: Page> {
    id: u64,
    pub(crate) space: Space<'static, P, Environment>,
    asid: SpaceAsid,
    pages: BTreeMap<u64, Known>,
}

pub(crate) struct Processes<P: Page> {
    pub(crate) world: Shared,
    pub(crate) geometry: Geometry,
    shape: Shape,
    pub(crate) settings: Settings,
    pub(crate) frames: Frames,
    pub(crate) tables: SharedPages,
    pub(crate) all: Vec<Process<P>>,
    /// Whom each CPU runs, by id.
    running: Vec<Option<u64>>,
    idle: PhysicalAddress,
    pub(crate) asids: Asids<'static>,
    map: AsidMap<'static>,
    next_id: u64,
    pub(crate) random: Random,
    pub(crate) rolled: u64,
    /// Hardware updates nothing in the middle of operations.
    pub(crate) quiet: bool,
    /// What hardware wrote in the middle of operations, by address.
    written: Rc<RefCell<BTreeSet<u64>>>,
    /// What hardware is to do at one moment of the next operation.
    injection: Option<Injection>,
    /// The moments of that operation so far, and whether hardware did something.
    injected: Rc<Cell<(u64, bool)>>,
}

/// Hardware's update of one page's entry at one moment of an operation: before the event of that
/// number, an exchange being one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) page: u64,
    /// The dirty state too, and not the access flag alone.
    pub(crate) dirty: bool,
    pub(crate) moment: u64,
}

const fn user(kind: AccessKind) -> Access {
    Access {
        regime: Regime::El10,
        kind,
        user: true,
    }
}

const fn kind(wish: Wish) -> AccessKind {
    match wish {
        Wish::Write => AccessKind::Write,
        Wish::Execute => AccessKind::Fetch,
        _ => AccessKind::Read,
    }
}

impl<P: Page> Processes<P> {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let geometry = shape.geometry::<P>();
        let world = World::shared(model(&shape), seed);
        let mut pages = Pages::new(&world, P::SIZE.bytes());
        let idle = pages
            .allocate(1)
            .map_or(PhysicalAddress(0), |run| run.first);
        let tables = SharedPages(Rc::new(RefCell::new(pages)));
        world.borrow_mut().event(EventKind::FillDescriptors {
            address: idle.0,
            count: P::SIZE.entries() as u64,
            first: 0,
            step: 0,
            order: granule_model::Order::Plain,
        });
        let without = Shape {
            asid: Some(0),
            ..shape
        };
        turn_on(&world, &without, &geometry, idle.0);
        let cpus = Vec::leak((0..shape.cpus).map(|_| AsidCpu::unused()).collect());
        Self {
            frames: Frames::new(&world, P::SIZE.bytes()),
            world,
            geometry,
            shape,
            settings: Settings {
                hardware_access: shape.hardware,
                hardware_dirty: shape.hardware,
                contiguous: true,
                bbm: BbmLevel::from_number(shape.bbm_level.into()),
            },
            tables,
            all: Vec::new(),
            running: vec![None; shape.cpus as usize],
            idle,
            asids: Asids::of(cpus),
            map: AsidMap::with_numbers(Vec::leak(vec![0; 1]), NUMBERS),
            next_id: 0,
            random: Random::new(seed),
            rolled: 0,
            quiet: false,
            written: Rc::default(),
            injection: None,
            injected: Rc::default(),
        }
    }

    pub(crate) fn page(&self) -> u64 {
        self.geometry.page_size().bytes()
    }

    fn address(&self, page: u64) -> VirtualAddress {
        VirtualAddress(page * self.page())
    }

    pub(crate) fn cpus(&self) -> u64 {
        self.running.len() as u64
    }

    pub(crate) fn on(&self, cpu: u32) {
        self.world.borrow_mut().cpu = cpu;
    }

    fn event(&self, kind: EventKind) {
        self.world.borrow_mut().event(kind);
    }

    /// An empty space that nobody runs yet.
    fn new_process(&mut self) -> Result<Process<P>, SpaceError> {
        let environment = Parts {
            memory: Memory(Rc::clone(&self.world)),
            allocator: self.tables.clone(),
            maintenance: Cpu {
                world: Rc::clone(&self.world),
                can: capabilities(&self.shape, self.geometry),
            },
        };
        let areas = Vec::leak(vec![Area::EMPTY; 60]);
        let space = Space::new(self.geometry, environment, areas, self.settings)?;
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
        match self.new_process() {
            Ok(mut process) => {
                process.space.make_live();
                self.all.push(process);
            }
            Err(error) => panic!("{error}"),
        }
        for cpu in 0..self.cpus() as u32 {
            self.switch(cpu, Some(0));
        }
    }

    /// The process that a CPU runs, by its place.
    pub(crate) fn running(&self, cpu: u32) -> Option<usize> {
        let id = self.running[cpu as usize]?;
        self.all.iter().position(|process| process.id == id)
    }

    /// A CPU invalidates all of its own TLB.
    fn flush(&self) {
        if let Some(kind) = Tlbi::from_name("vmalle1", 0).map(EventKind::Tlbi) {
            self.event(kind);
        }
        self.event(EventKind::Barrier(Barrier::DsbNsh));
        self.event(EventKind::Barrier(Barrier::Isb));
    }

    /// A CPU goes to a process, or to none.
    pub(crate) fn switch(&mut self, cpu: u32, to: Option<usize>) {
        self.on(cpu);
        let (mut flush, mut rolled) = (false, false);
        let (root, number) = match to {
            None => (self.idle, 0),
            Some(to) => {
                let process = &mut self.all[to];
                let number = match self.asids.enter(cpu as usize, &process.asid) {
                    Some(number) => number,
                    None => {
                        let renewed = self.asids.renew(&mut self.map, cpu as usize, &process.asid);
                        match renewed {
                            Ok(renewed) => {
                                rolled = renewed.rolled_over;
                                self.rolled += u64::from(rolled);
                                flush = renewed.flush;
                                renewed.asid
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                process.space.set_asid(Some(number));
                (process.space.root(), number)
            }
        };
        if rolled {
            // Each CPU could do it later, before it enters a space (`tests/asids.rs`). But the model
            // takes one that left a space to go on holding all of it, and relies on every CPU at
            // each step, where what is held under a number that the CPU does not use is harmless.
            for other in (0..self.cpus() as u32).filter(|other| *other != cpu) {
                self.on(other);
                self.flush();
            }
            self.on(cpu);
        }
        if flush {
            self.flush();
        }
        self.event(EventKind::RegisterWrite {
            register: Register::Ttbr0El1,
            value: Ttbr::new(&self.geometry, root, number).0,
        });
        self.event(EventKind::Barrier(Barrier::Isb));
        self.running[cpu as usize] = to.map(|to| self.all[to].id);
    }

    /// Where the descriptors of a process's pages are, by address.
    fn entries(&self, process: usize) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        self.all[process].space.tables().visit_all(|entry| {
            if entry.kind == granule::arch::Kind::Leaf {
                found.push((entry.start.0, entry.table.0 + entry.index as u64 * 8));
            }
            true
        });
        found
    }

    /// What other CPUs in the space may find beside the pages that an operation is about, in the
    /// middle of it: the frames that are there before and after it, or a fault.
    fn watch(&self, process: usize, concerned: (u64, u64)) {
        let mut world = self.world.borrow_mut();
        let mut samples = Vec::new();
        let (from, pages) = concerned;
        for at in [0, 1, pages / 2, pages.saturating_sub(1), pages, pages + 1] {
            let va = (from + at) * self.page();
            let access = user(AccessKind::Read);
            if let [before] = world.model.outcomes(world.cpu, va, access)[..] {
                samples.push(Sample {
                    va,
                    access,
                    before,
                    after: before,
                });
            }
        }
        let id = self.all[process].id;
        let cpus = self.running.iter().enumerate();
        world.watch.cpus = cpus
            .filter(|(_, one)| **one == Some(id))
            .fold(0, |mask, (cpu, _)| mask | 1 << cpu);
        world.watch.may_fault = true;
        world.watch.samples = samples;
    }

    /// Other CPUs in the same space go on while something is done to it: hardware sets access flags
    /// and makes pages dirty.
    fn meanwhile(&mut self, process: usize) {
        if let Some(injection) = self.injection.take() {
            self.meanwhile_at(process, injection);
            return;
        }
        if !self.shape.hardware || self.quiet {
            return;
        }
        let id = self.all[process].id;
        let here = self.running.iter().filter(|one| **one == Some(id)).count();
        if here < 2 {
            return;
        }
        let entries = self.entries(process);
        let mut random = Random::new(self.random.next());
        let written = Rc::clone(&self.written);
        self.world.borrow_mut().meanwhile = Some(Box::new(move |model: &mut Model| {
            if entries.is_empty() || !random.once_in(3) {
                return;
            }
            let (va, address) = entries[random.below(entries.len() as u64) as usize];
            let entry = Descriptor(model.descriptor(address));
            let clean = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
            let dirty = random.either() && entry.0 & clean == clean;
            if entry.is_valid() && model.update_by_hardware(address, dirty) && dirty {
                written.borrow_mut().insert(va);
            }
        }));
    }

    /// Has hardware do something in the middle of the next operation.
    pub(crate) fn inject(&mut self, injection: Injection) {
        self.injected.set((0, false));
        self.injection = Some(injection);
    }

    /// How many moments that operation had, and whether hardware did something.
    pub(crate) fn injected(&self) -> (u64, bool) {
        self.injected.get()
    }

    fn meanwhile_at(&mut self, process: usize, injection: Injection) {
        let va = self.address(injection.page).0;
        let entries = self.entries(process);
        let Some(&(_, address)) = entries.iter().find(|(start, _)| *start == va) else {
            panic!("page {:#x} is not there", injection.page);
        };
        let (written, injected) = (Rc::clone(&self.written), Rc::clone(&self.injected));
        self.world.borrow_mut().meanwhile = Some(Box::new(move |model: &mut Model| {
            let (moment, done) = injected.get();
            let mut updated = false;
            if moment == injection.moment {
                let entry = Descriptor(model.descriptor(address));
                let clean = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
                let may = entry.0 & clean == clean || !injection.dirty;
                updated =
                    entry.is_valid() && may && model.update_by_hardware(address, injection.dirty);
                if updated && injection.dirty {
                    written.borrow_mut().insert(va);
                }
            }
            injected.set((moment + 1, done || updated));
        }));
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
    fn begin(&mut self, process: usize, from: u64, pages: u64) {
        self.meanwhile(process);
        self.frames.concerned = Some((from * self.page(), pages * self.page()));
    }

    /// After it: what was written meanwhile is known, and what was done is relied on by all.
    fn finish(&mut self, process: Option<usize>) {
        self.frames.concerned = None;
        let mut world = self.world.borrow_mut();
        world.meanwhile = None;
        world.watch.samples.clear();
        drop(world);
        let written = core::mem::take(&mut *self.written.borrow_mut());
        if let Some(process) = process {
            for va in written {
                let page = va / self.page();
                if let Some(known) = self.all[process].pages.get_mut(&page) {
                    known.dirty = true;
                }
            }
        }
        self.settle();
    }

    /// All that was done is relied on by every CPU; the others come by an exception.
    pub(crate) fn settle(&self) {
        self.event(EventKind::Sync);
        let by = self.world.borrow().cpu;
        for cpu in (0..self.cpus() as u32).filter(|cpu| *cpu != by) {
            self.on(cpu);
            self.event(EventKind::Barrier(Barrier::Isb));
        }
        self.on(by);
    }

    pub(crate) fn map(&mut self, process: usize, page: u64, count: u64, rights: Rights) -> bool {
        let (start, bytes) = (self.address(page), count * self.page());
        let one = &mut self.all[process];
        match one.space.map(start, bytes, rights, 0) {
            Ok(()) => {
                let known = Known {
                    rights,
                    value: 0,
                    dirty: false,
                };
                one.pages
                    .extend((page..page + count).map(|page| (page, known)));
                true
            }
            Err(SpaceError::Occupied { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn unmap(&mut self, process: usize, page: u64, count: u64) {
        let (start, bytes) = (self.address(page), count * self.page());
        self.begin(process, page, count);
        self.watch(process, (page + count, 1));
        let one = &mut self.all[process];
        let done = one.space.unmap(start, bytes, &mut self.frames);
        assert_eq!(done, Ok(()));
        one.pages.retain(|&at, _| at < page || at >= page + count);
        self.finish(Some(process));
    }

    pub(crate) fn protect(&mut self, process: usize, page: u64, count: u64, rights: Rights) {
        let (start, bytes) = (self.address(page), count * self.page());
        self.begin(process, page, count);
        let one = &mut self.all[process];
        let all = (page..page + count).all(|page| one.pages.contains_key(&page));
        let done = one.space.protect(start, bytes, rights, &mut self.frames);
        assert_eq!(done.is_ok(), all, "{done:?}");
        if all {
            for (_, known) in one.pages.range_mut(page..page + count) {
                known.rights = rights;
            }
        }
        self.finish(Some(process));
    }

    /// A program's access on a CPU, with a write of `value` where it is one. An error is one of
    /// memory.
    pub(crate) fn touch(
        &mut self,
        cpu: u32,
        page: u64,
        wish: Wish,
        value: u64,
    ) -> Result<(), SpaceError> {
        let Some(process) = self.running(cpu) else {
            return Ok(());
        };
        let address = self.address(page);
        self.on(cpu);
        for _ in 0..4 {
            let access = user(kind(wish));
            let outcomes = self.world.borrow_mut().model.access(cpu, address.0, access);
            let known = self.all[process].pages.get_mut(&page);
            let may = known
                .as_ref()
                .is_some_and(|known| known.rights.allows(wish));
            if let [Outcome::Memory(to)] = outcomes[..] {
                assert!(may, "page {page:#x} allows {wish:?}");
                let Some(known) = known else { return Ok(()) };
                if wish == Wish::Write {
                    self.frames.write(to.address, value);
                    (known.value, known.dirty) = (value, true);
                } else {
                    assert_eq!(self.frames.value(to.address), known.value, "{page:#x}");
                }
                self.update(process, page, wish == Wish::Write);
                return Ok(());
            }
            self.begin(process, page, 1);
            self.watch(process, (page, 0));
            self.world
                .borrow_mut()
                .watch
                .samples
                .retain(|sample| sample.va != address.0);
            let done = self.all[process]
                .space
                .fault(address, wish, &mut self.frames);
            self.finish(Some(process));
            match done {
                Ok(_) => assert!(may, "page {page:#x}: {wish:?}"),
                Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => {
                    assert!(!may, "page {page:#x}: {done:?}");
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        // With a fault planted nothing need come of it.
        assert!(
            self.world.borrow().tap.is_some(),
            "{page:#x} faults for ever"
        );
        Ok(())
    }

    /// A fault that a CPU took some time ago is dealt with now, whatever the tables are by now. What
    /// comes of it must be what the program may do.
    pub(crate) fn late_fault(&mut self, cpu: u32, page: u64, wish: Wish) {
        let Some(process) = self.running(cpu) else {
            return;
        };
        self.on(cpu);
        let address = self.address(page);
        self.begin(process, page, 1);
        let one = &mut self.all[process];
        let may = one.pages.get(&page).map(|known| known.rights.allows(wish));
        let done = one.space.fault(address, wish, &mut self.frames);
        self.finish(Some(process));
        match may {
            Some(true) => assert!(done.is_ok(), "{done:?}"),
            Some(false) => assert!(matches!(done, Err(SpaceError::Denied { .. })), "{done:?}"),
            None => assert!(
                matches!(done, Err(SpaceError::NotMapped { .. })),
                "{done:?}"
            ),
        }
        if done.is_ok() && wish == Wish::Write {
            // Whoever asks for a writable page has it made dirty, by the program's next access.
            let state = self.all[process].space.page(address);
            assert!(state.is_some_and(|state| state.dirty), "{state:?}");
        }
    }

    /// Hardware's account of an access: in the one entry, and none where another member of the
    /// group has it already.
    fn update(&mut self, process: usize, page: u64, dirty: bool) {
        if !self.shape.hardware {
            return;
        }
        let va = self.address(page);
        let space = &self.all[process].space;
        let state = space.page(va);
        if state.is_some_and(|state| state.accessed && (state.dirty || !dirty)) {
            return;
        }
        let entries = self.entries(process);
        if let Some((_, address)) = entries.iter().find(|(start, _)| *start == va.0) {
            self.world
                .borrow_mut()
                .model
                .update_by_hardware(*address, dirty);
        }
    }

    /// The kernel's access for the program that a CPU runs.
    pub(crate) fn by_kernel(
        &mut self,
        cpu: u32,
        page: u64,
        wish: Wish,
        value: u64,
    ) -> Result<(), SpaceError> {
        let Some(process) = self.running(cpu) else {
            return Ok(());
        };
        self.on(cpu);
        self.begin(process, page, 1);
        let address = self.address(page);
        let one = &mut self.all[process];
        let done = one.space.frame_for(address, wish, &mut self.frames);
        let known = one.pages.get_mut(&page);
        if let (Ok(frame), Some(known)) = (&done, known) {
            if wish == Wish::Write {
                self.frames.write(frame.0, value);
                (known.value, known.dirty) = (value, true);
            } else {
                assert_eq!(self.frames.value(frame.0), known.value);
            }
        }
        self.finish(Some(process));
        match done {
            Ok(_) | Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => Ok(()),
            Err(error) => Err(error),
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
            child.space.destroy(&mut self.frames);
            return Err(error);
        }
        child.space.make_live();
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
            if other != cpu && self.running[other as usize] == Some(id) {
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
        one.space.destroy(&mut self.frames);
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
        // What each CPU finds is what the program that it runs has.
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
        while !self.all.is_empty() {
            self.switch(0, Some(0));
            self.exit(0);
            self.check();
        }
        assert_eq!(self.frames.owned(), 0);
        assert_eq!(self.world.borrow().tables, 1, "tables left");
    }
}
