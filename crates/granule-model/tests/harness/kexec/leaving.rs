//! A kernel with its MMU on and a program's tables in the lower half, which leaves for what is
//! [`loaded`](super::loaded). What the next kernel does first is played after the jump.

use super::cpu::{Cpu, Data, Stopped};
use super::events::{barrier, clean, register, stored, stored_code, tlbi};
use super::loaded::{
    CODE, IMAGE, INITRAMFS, LIST, RAM, RAM_BYTES, SOURCES, TABLES, TABLES_END, TEXT, TEXT_OFFSET,
    TREE, digest, load, segments,
};
use crate::bench::{Bench, capabilities};
use crate::machine::{Machine, Pages, Shared, SharedPages, Tap};
use crate::random::Random;
use crate::shape::Shape;
use granule::arch::registers::Tcr;
use granule::arch::{
    Attributes, Geometry, Page, Permissions, PhysicalAddress, VaRange, VirtualAddress,
};
use granule::table::{
    FreedTable, Leaves, Maintenance, PageTables, Reservation, TableEnvironment, TableRun,
};
use granule_kexec::steps::leave;
use granule_kexec::{
    ListHeader, ListMemory, MemoryMap, Needs, PhysRange, Ranges, RelocationList, Segment,
    Transition, Way, build, reached,
};
use granule_model::{Access, Barrier, Event, System};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

const SCTLR_ON: u64 = 1 | 1 << 2 | 1 << 12;

/// The planted mistakes, beside those of a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) uncached: bool,
    /// All of RAM is mapped writable, not only what is needed.
    pub(crate) map_all: bool,
    /// The identity map is of another page.
    pub(crate) other_identity: bool,
    /// The record of this number gets another destination, source, or length.
    pub(crate) record: Option<(u64, Change)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Destination(Where),
    Source(Where),
    /// So many pages more.
    Longer(u64),
}

/// A page to write over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The upper root.
    Root,
    /// A table of the last level.
    LastTable,
    /// The list's first page.
    RelocationList,
    /// The relocation code.
    Code,
    /// The source of the next copy.
    NextSource,
    /// Memory that is not mapped.
    Elsewhere,
}

/// The words of the list: data like other, stored before anybody leaves.
struct ListData<'a>(&'a mut Data);

// SAFETY: a map of words, which has no other memory.
unsafe impl ListMemory for ListData<'_> {
    fn load(&self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }

    unsafe fn store(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }
}

pub(crate) struct Leaving<P: Page> {
    kernel: Bench<P>,
    segments: Vec<(Segment<'static>, Vec<PhysRange>)>,
    pub(crate) cpu: Cpu,
    header: ListHeader,
    list: RelocationList,
    /// Digests of the segments before they are moved.
    digests: Vec<u64>,
    pub(crate) transition: Transition,
}

/// The result.
pub(crate) struct Left {
    pub(crate) world: Shared,
    /// The error that broke no rule.
    pub(crate) wrong: Option<String>,
    pub(crate) steps: u64,
}

impl<P: Page> Leaving<P> {
    /// The kernel is up and has loaded the next one. `tap` is there from before the transitional
    /// tables on.
    pub(crate) fn new(va_bits: u32, plan: Plan, seed: u64, tap: Option<Tap>) -> Self {
        let page = P::SIZE.bytes();
        let shape = Shape::kernel(va_bits).cpus(1);
        let mut kernel = Bench::<P>::of(shape, seed);
        let distance = kernel.geometry.base().0;
        let world = Rc::clone(&kernel.world);
        let mut map = |at: u64, output: u64, bytes, permissions| {
            let attributes = Attributes::normal(permissions);
            let at = VirtualAddress(distance.wrapping_add(at));
            let output = PhysicalAddress(output);
            let mapped = kernel
                .tables
                .map(at, output, bytes, attributes, Leaves::LARGEST);
            assert_eq!(mapped, Ok(()));
        };
        map(RAM, RAM, RAM_BYTES, Permissions::READ_WRITE);
        map(TEXT_OFFSET, TEXT, page, Permissions::READ_EXECUTE);
        let tcr = run_a_program::<P>(&kernel);

        let mut random = Random::new(seed);
        let segments = segments(page, &mut random);
        world.borrow_mut().tap = tap;
        let mut data = Data::default();
        let roles = load(&world, &segments, plan, page);
        let views: Vec<Segment<'_>> = segments
            .iter()
            .map(|(segment, pages)| Segment { pages, ..*segment })
            .collect();
        let ram = [PhysRange::new(RAM, RAM_BYTES)];
        let memory_map = MemoryMap {
            page: P::SIZE,
            ram: &ram,
            reserved: &[],
            kept: &[],
        };
        // The list's pages are not tables, whoever gives them.
        let mut list_pages = Quiet(Pages::from(&world, page, LIST));
        // SAFETY: the map of words has a place for every page.
        let list = unsafe {
            RelocationList::write(
                &mut ListData(&mut data),
                &mut list_pages,
                &views,
                &memory_map,
            )
        };
        let mut list = match list {
            Ok(list) => list,
            Err(why) => panic!("{why}"),
        };
        let mut slots = ([PhysRange::default(); 32], [PhysRange::default(); 32]);
        let (mut written, mut read) = (Ranges::new(&mut slots.0), Ranges::new(&mut slots.1));
        if plan.map_all {
            assert_eq!(written.insert(ram[0]), Ok(()));
        } else {
            reached(&views, |extent, writes| {
                let ranges = if writes { &mut written } else { &mut read };
                assert_eq!(ranges.insert(extent), Ok(()));
            });
            let each = list.each_page(&ListData(&mut data), |at| {
                assert_eq!(read.insert(PhysRange::new(at.0, page)), Ok(()));
            });
            assert_eq!(each, Ok(()));
        }
        let code = if plan.other_identity {
            CODE + page
        } else {
            CODE
        };
        let pages = Pages::from(&world, page, TABLES);
        let machine = Machine::new(&world, pages, capabilities(&shape));
        let needs = Needs {
            cpu: shape.features(),
            upper: kernel.geometry,
            distance,
            code: PhysicalAddress(code),
            written: written.all(),
            read: read.all(),
            segments: &views,
        };
        let transition = match build(machine, &needs) {
            Ok(transition) => transition,
            Err(why) => panic!("{why}"),
        };
        let way = Way {
            uncached: plan.uncached,
            el2: false,
            sctlr: 0x30d0_0800,
            sctlr_el2: 0,
            entry: PhysicalAddress(IMAGE),
            tree: PhysicalAddress(TREE),
            code: PhysicalAddress(CODE),
        };
        // SAFETY: as for `write`.
        let header = unsafe { list.seal(&mut ListData(&mut data), &way, &transition, tcr) };
        let Ok(header) = header else {
            panic!("{header:?}");
        };
        // The code is copied to its page.
        stored_code(&world, CODE, 4096);
        clean(&world, CODE, 4096);
        barrier(&world, Barrier::DSB_SY);
        let scope = System::IC_IALLUIS;
        world.borrow_mut().event(Event::System(scope, 0));
        barrier(&world, Barrier::DSB_ISH);
        barrier(&world, Barrier::ISB);
        if plan.uncached {
            stored(&world, list.head().0, page);
            clean(&world, list.head().0, page);
            barrier(&world, Barrier::DSB_SY);
        }
        let digests = segments
            .iter()
            .map(|(segment, pages)| {
                digest(segment, |at| {
                    super::cpu::untouched(pages[(at / page) as usize].start + at % page)
                })
            })
            .collect();
        let cpu = Cpu {
            world,
            data,
            distance,
            tcr,
            roles,
            tables: (TABLES, TABLES_END),
            fetched: (distance.wrapping_add(TEXT_OFFSET), TEXT),
            mmu_off: false,
            wrong: None,
            steps: 0,
        };
        let mut leaving = Self {
            kernel,
            segments,
            cpu,
            header,
            list,
            digests,
            transition,
        };
        if let Some((record, change)) = plan.record {
            leaving.change(record, change);
        }
        leaving
    }

    /// Changes a record behind everybody's back.
    fn change(&mut self, record: u64, change: Change) {
        let page = P::SIZE.bytes();
        let at = self.header.first + 32 * record;
        let (word, value) = match change {
            Change::Destination(to) => (at, self.place(to, at)),
            Change::Source(from) => (at + 8, self.place(from, at)),
            Change::Longer(pages) => (at + 16, self.cpu.peek(at + 16) + pages * page),
        };
        self.cpu.data.insert(word, value);
    }

    fn place(&self, place: Where, record: u64) -> u64 {
        match place {
            Where::Root => self.transition.roots()[1].0,
            Where::LastTable => self.last_table(),
            Where::RelocationList => self.list.head().0,
            Where::Code => CODE,
            // What is between them is in place, and only cleaned.
            Where::NextSource => self.cpu.peek(record + 64 + 8),
            Where::Elsewhere => RAM + (5 << 24),
        }
    }

    /// The table of the last level for the first source.
    fn last_table(&self) -> u64 {
        let geometry: Geometry = self.kernel.geometry;
        let world = self.cpu.world.borrow();
        let mut table = self.transition.roots()[1].0;
        for level in granule::arch::Level::ALL {
            if level < geometry.start_level() {
                continue;
            }
            let entry = table + 8 * P::SIZE.index(SOURCES, level) as u64;
            let entry = granule::arch::Descriptor(world.model.descriptor(entry));
            if entry.kind(&geometry, level) != granule::arch::Kind::Table {
                break;
            }
            table = geometry.address_of(entry, level).0;
        }
        table
    }

    /// All steps, and what the next kernel does first.
    pub(crate) fn leave(mut self) -> Left {
        let header = self.list.head().0.wrapping_add(self.cpu.distance);
        let steps = AssertUnwindSafe(|| leave(&mut self.cpu, header));
        match catch_unwind(steps) {
            Ok(begin) => {
                assert_eq!((begin.address, begin.arguments), (IMAGE, [TREE, 0, 0, 0]));
                self.next_kernel();
            }
            Err(why) if why.is::<Stopped>() => {}
            Err(why) => resume_unwind(why),
        }
        let compared = self.segments.iter().zip(&self.digests);
        let other = compared
            .filter(|((segment, _), before)| {
                digest(segment, |at| self.cpu.peek(segment.destination + at)) != **before
            })
            .map(|((segment, _), _)| format!("the {} has other bytes", segment.name))
            .next();
        self.cpu.wrong = self.cpu.wrong.take().or(other);
        Left {
            world: self.cpu.world,
            wrong: self.cpu.wrong,
            steps: self.cpu.steps,
        }
    }

    /// With its MMU off it runs its image, reads the tree, and writes behind its bytes; with caches
    /// on it reads the initramfs, through tables of its own, in place of which ours do.
    fn next_kernel(&mut self) {
        let page = P::SIZE.bytes();
        let world = Rc::clone(&self.cpu.world);
        let access = |address, access| {
            let _ = world.borrow_mut().model.access(0, address, access);
        };
        for line in (0..3 * page).step_by(64) {
            access(IMAGE + line, Access::FETCH);
            access(IMAGE + line, Access::READ);
        }
        for line in (0..page).step_by(64) {
            access(TREE + line, Access::READ);
        }
        stored(&world, IMAGE + 3 * page, page);
        tlbi(&world, System::VMALLE1);
        barrier(&world, Barrier::DSB_NSH);
        barrier(&world, Barrier::ISB);
        register(&world, System::SCTLR_EL1, SCTLR_ON);
        barrier(&world, Barrier::ISB);
        for line in (0..2 * page).step_by(64) {
            access(
                INITRAMFS.wrapping_add(self.cpu.distance) + line,
                Access::READ,
            );
        }
    }
}

/// Pages that are given out without a word to the model.
struct Quiet(SharedPages);

// SAFETY: each page is given out once, by the counter of the pages. No tables are made of them.
unsafe impl TableEnvironment for Quiet {
    fn reach(&self, page: PhysicalAddress) -> *mut u64 {
        panic!("a table at {page}")
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        self.0.borrow().reserve(tables)
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        self.0.borrow_mut().take(most)
    }

    fn free(&mut self, _table: FreedTable) {}

    fn invalidate(&mut self, instruction: Maintenance) {
        panic!("{instruction:?} for pages that are no tables")
    }
}

/// A program runs in the lower half, and has something else where the relocation code will be.
/// Gives TCR.
fn run_a_program<P: Page>(kernel: &Bench<P>) -> u64 {
    let cpu = kernel.shape.features();
    let lower = kernel
        .geometry
        .with_va_range(&cpu, VaRange::Lower, kernel.shape.va_bits, P::SIZE);
    let Ok(lower) = lower else {
        panic!("{lower:?}");
    };
    let page = P::SIZE.bytes();
    let pages = Pages::from(&kernel.world, page, 0x5000_0000);
    let machine = Machine::new(&kernel.world, pages, capabilities(&kernel.shape));
    let mut tables = match PageTables::<P, _>::new(lower, machine) {
        Ok(tables) => tables,
        Err(why) => panic!("{why}"),
    };
    let attributes = Attributes {
        global: false,
        ..Attributes::normal(Permissions::READ_WRITE)
    };
    let output = PhysicalAddress(0x7000_0000);
    let mapped = tables.map(
        VirtualAddress(CODE),
        output,
        page,
        attributes,
        Leaves::PAGES,
    );
    assert_eq!(mapped, Ok(()));
    // SAFETY: the TLBIs reach the model's CPUs.
    let tables = unsafe { tables.make_live() };
    let world = &kernel.world;
    let tcr = Tcr::new(&cpu, Some(&lower), Some(&kernel.geometry)).0;
    register(world, System::TTBR0_EL1, tables.ttbr(3).bits());
    barrier(world, Barrier::ISB);
    register(world, System::TCR_EL1, tcr);
    barrier(world, Barrier::ISB);
    tlbi(world, System::VMALLE1);
    barrier(world, Barrier::DSB_NSH);
    barrier(world, Barrier::ISB);
    kernel.settle();
    assert_eq!(kernel.violations(), Vec::<String>::new());
    tcr
}
