//! A kernel with its MMU on, a program's tables in the lower half, and a next kernel that is loaded.
//!
//! What it loads: an image of some pages, one of them in place, with a page behind them that the
//! next kernel zeroes itself; a device tree; an initramfs. What the next kernel does first is played
//! after the jump.

use super::cpu::{Cpu, Data, Role, Stopped};
use crate::bench::{Bench, capabilities};
use crate::machine::{Machine, Memory, Pages, Shared, Tap};
use crate::random::Random;
use crate::shape::Shape;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    Attributes, Geometry, Half, Page, Permissions, PhysicalAddress, VirtualAddress,
};
use granule::kexec::steps::leave;
use granule::kexec::{
    Clean, Digest, Extent, Ground, Header, List, ListMemory, Needs, Ranges, Segment, Transition,
    Way, build, reached,
};
use granule::table::{Leaves, PageTables, Parts, TableAllocator};
use granule_model::{Access, Barrier, CacheOp, EventKind, Purpose, Register, Scope, Tlbi};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// RAM that the linear maps show.
pub(crate) const RAM: u64 = 0x8000_0000;
const RAM_BYTES: u64 = 1 << 27;
const IMAGE: u64 = RAM;
const TREE: u64 = RAM + (1 << 24);
const INITRAMFS: u64 = RAM + (2 << 24);
const SOURCES: u64 = RAM + (4 << 24);
const LIST: u64 = RAM + (6 << 24);
/// The relocation code's page.
pub(crate) const CODE: u64 = RAM + (7 << 24);
/// Transitional tables, which the kernel's linear map shows, and theirs need not.
pub(crate) const TABLES: u64 = RAM + (7 << 24) + (1 << 23);
pub(crate) const TABLES_END: u64 = RAM + RAM_BYTES;
/// The kernel's own code, and where it is seen.
const TEXT: u64 = 0x6000_0000;
const TEXT_OFFSET: u64 = 0x60_0000_0000;

const SCTLR_ON: u64 = 1 | 1 << 2 | 1 << 12;

/// What is done otherwise than it should be, beside what a tap does.
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
    List,
    /// The relocation code.
    Code,
    /// The source of the next copy.
    NextSource,
    /// Memory that is not mapped.
    Elsewhere,
}

/// The words of the list: data like other, stored before anybody leaves.
struct ListData<'a>(&'a mut Data);

impl ListMemory for ListData<'_> {
    fn load(&self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }

    fn store(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }
}

pub(crate) struct Leaving<P: Page> {
    kernel: Bench<P>,
    segments: Vec<(Segment<'static>, Vec<Extent>)>,
    pub(crate) cpu: Cpu,
    header: Header,
    list: List,
    /// Digests of the segments before they are moved.
    digests: Vec<u64>,
    pub(crate) transition: Transition,
}

/// What came of it.
pub(crate) struct Left {
    pub(crate) world: Shared,
    /// What went wrong without breaking a rule.
    pub(crate) wrong: Option<String>,
    pub(crate) steps: u64,
}

fn clean(world: &Shared, address: u64, bytes: u64) {
    let op = CacheOp::CleanToPoc;
    world
        .borrow_mut()
        .event(EventKind::Cache { op, address, bytes });
}

fn barrier(world: &Shared, barrier: Barrier) {
    world.borrow_mut().event(EventKind::Barrier(barrier));
}

fn stored(world: &Shared, address: u64, bytes: u64, purpose: Purpose) {
    world.borrow_mut().event(EventKind::OtherStore {
        address,
        bytes,
        purpose,
    });
}

fn register(world: &Shared, register: Register, value: u64) {
    let mut world = world.borrow_mut();
    world.event(EventKind::RegisterWrite { register, value });
}

fn tlbi(world: &Shared, name: &str) {
    let op = Tlbi::from_name(name, 0).map(EventKind::Tlbi);
    op.into_iter()
        .for_each(|kind| world.borrow_mut().event(kind));
}

/// What is to be moved, with the pages that it is in.
fn segments(page: u64, random: &mut Random) -> Vec<(Segment<'static>, Vec<Extent>)> {
    // Sources anywhere among theirs, one after the other now and then.
    let mut next = 0;
    let mut source = || {
        next += page * (1 + random.below(2));
        Extent::new(SOURCES + next, page)
    };
    let image = vec![source(), Extent::new(IMAGE + page, page), source()];
    let tree = vec![source()];
    let initramfs = vec![source(), source()];
    let segment = |name, destination, pages: &[Extent], less, behind, clean| Segment {
        name,
        destination,
        bytes: pages.len() as u64 * page - less,
        memory: (pages.len() as u64 + behind) * page,
        pages: &[],
        clean,
    };
    vec![
        (segment("image", IMAGE, &image, 100, 1, Clean::All), image),
        (segment("device tree", TREE, &tree, 8, 0, Clean::All), tree),
        (
            segment("initramfs", INITRAMFS, &initramfs, 0, 0, Clean::Nothing),
            initramfs,
        ),
    ]
}

fn digest(of: &Segment<'_>, word: impl Fn(u64) -> u64) -> u64 {
    let mut digest = Digest::new();
    for at in (0..of.bytes.next_multiple_of(8)).step_by(8) {
        digest.word(word(at));
    }
    digest.value()
}

impl<P: Page> Leaving<P> {
    /// The kernel is up and has loaded the next one. `tap` is there from before the transitional
    /// tables on.
    pub(crate) fn new(va_bits: u32, plan: Plan, seed: u64, tap: Option<Tap>) -> Self {
        let page = P::SIZE.bytes();
        let shape = Shape {
            cpus: 1,
            ..Shape::kernel(va_bits)
        };
        let mut kernel = Bench::<P>::new(shape, seed);
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
        let ram = [Extent::new(RAM, RAM_BYTES)];
        let ground = Ground {
            page: P::SIZE,
            ram: &ram,
            reserved: &[],
            kept: &[],
        };
        let mut pages = Pages::from(&world, page, LIST);
        // The list's pages are no tables, whoever gives them.
        let mut list_pages = Quiet(&mut pages);
        let list = List::write(&mut ListData(&mut data), &mut list_pages, &views, &ground);
        let list = match list {
            Ok(list) => list,
            Err(why) => panic!("{why}"),
        };
        let mut slots = ([Extent::default(); 32], [Extent::default(); 32]);
        let (mut written, mut read) = (Ranges::new(&mut slots.0), Ranges::new(&mut slots.1));
        if plan.map_all {
            assert_eq!(written.insert(ram[0]), Ok(()));
        } else {
            reached(&views, |extent, writes| {
                let ranges = if writes { &mut written } else { &mut read };
                assert_eq!(ranges.insert(extent), Ok(()));
            });
            let each = list.each_page(&ListData(&mut data), |at| {
                assert_eq!(read.insert(Extent::new(at.0, page)), Ok(()));
            });
            assert_eq!(each, Ok(()));
        }
        let code = if plan.other_identity {
            CODE + page
        } else {
            CODE
        };
        let mut machine: Machine = Parts {
            memory: Memory(Rc::clone(&world)),
            allocator: Pages::from(&world, page, TABLES),
            maintenance: crate::machine::Cpu {
                world: Rc::clone(&world),
                can: capabilities(&shape, kernel.geometry),
            },
        };
        let needs = Needs {
            cpu: shape.features(),
            upper: kernel.geometry,
            distance,
            code: PhysicalAddress(code),
            written: written.all(),
            read: read.all(),
            segments: &views,
        };
        let transition = match build::<P, _>(&mut machine, &needs) {
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
        let header = list.seal(&mut ListData(&mut data), &way, &transition, tcr);
        let Ok(header) = header else {
            panic!("{header:?}");
        };
        // The code is copied to its page.
        stored(&world, CODE, 4096, Purpose::Code);
        clean(&world, CODE, 4096);
        barrier(&world, Barrier::DsbSy);
        let scope = Scope::Broadcast;
        world
            .borrow_mut()
            .event(EventKind::InstructionCache { scope });
        barrier(&world, Barrier::DsbIsh);
        barrier(&world, Barrier::Isb);
        if plan.uncached {
            stored(&world, list.head.0, page, Purpose::Data);
            clean(&world, list.head.0, page);
            barrier(&world, Barrier::DsbSy);
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
            Where::Root => self.transition.roots[1].0,
            Where::LastTable => self.last_table(),
            Where::List => self.list.head.0,
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
        let mut table = self.transition.roots[1].0;
        for level in granule::arch::Level::ALL {
            if level < geometry.start_level() {
                continue;
            }
            let entry = table + 8 * P::SIZE.index(SOURCES, level) as u64;
            let entry = granule::arch::Descriptor(world.model.descriptor(entry));
            if level.is_last() || !entry.is_table(level) {
                break;
            }
            table = geometry.address_of(entry, level).0;
        }
        table
    }

    /// All steps, and what the next kernel does first.
    pub(crate) fn leave(mut self) -> Left {
        let header = self.list.head.0.wrapping_add(self.cpu.distance);
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
        stored(&world, IMAGE + 3 * page, page, Purpose::Data);
        tlbi(&world, "vmalle1");
        barrier(&world, Barrier::DsbNsh);
        barrier(&world, Barrier::Isb);
        register(&world, Register::SctlrEl1, SCTLR_ON);
        barrier(&world, Barrier::Isb);
        for line in (0..2 * page).step_by(64) {
            access(
                INITRAMFS.wrapping_add(self.cpu.distance) + line,
                Access::READ,
            );
        }
    }
}

/// Pages that are given out without a word to the model.
struct Quiet<'a>(&'a mut Pages);

// SAFETY: each page is given out once, by the counter of the pages.
unsafe impl TableAllocator for Quiet<'_> {
    fn reserve(&mut self, tables: usize) -> bool {
        self.0.reserve(tables)
    }

    fn allocate(&mut self, most: usize) -> Option<granule::table::TableRun> {
        self.0.take(most)
    }

    fn free(&mut self, _table: PhysicalAddress) {}
}

/// What the next kernel is given is loaded: what is in place is stored where it is to be, and what
/// is to be moved past the caches is stored in its sources. Before that all destinations were used,
/// and lines of theirs are dirty.
fn load(
    world: &Shared,
    segments: &[(Segment<'static>, Vec<Extent>)],
    plan: Plan,
    page: u64,
) -> Vec<Role> {
    let mut roles = Vec::new();
    for (segment, pages) in segments {
        let image = segment.destination == IMAGE;
        let purpose = if image { Purpose::Code } else { Purpose::Data };
        let told = segment.clean != Clean::Nothing || plan.uncached;
        let end = segment.destination + segment.memory;
        roles.push(((segment.destination, end), told.then_some(purpose)));
        if told {
            stored(world, segment.destination, segment.memory, Purpose::Data);
        }
        let mut at = segment.destination;
        for run in pages {
            if run.start == at {
                stored(world, at, page, purpose);
            } else if plan.uncached {
                stored(world, run.start, page, Purpose::Data);
            }
            at += run.bytes;
        }
    }
    roles
}

/// A program runs in the lower half, and has something else where the relocation code will be. Gives
/// TCR.
fn run_a_program<P: Page>(kernel: &Bench<P>) -> u64 {
    let cpu = kernel.shape.features();
    let lower = kernel
        .geometry
        .with_half(&cpu, Half::Lower, kernel.shape.va_bits);
    let Ok(lower) = lower else {
        panic!("{lower:?}");
    };
    let page = P::SIZE.bytes();
    let parts = Parts {
        memory: Memory(Rc::clone(&kernel.world)),
        allocator: Pages::from(&kernel.world, page, 0x5000_0000),
        maintenance: crate::machine::Cpu {
            world: Rc::clone(&kernel.world),
            can: capabilities(&kernel.shape, lower),
        },
    };
    let mut tables = match PageTables::<P, _>::new(lower, parts) {
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
    tables.make_live();
    let world = &kernel.world;
    let tcr = Tcr::new(&cpu, Some(&lower), Some(&kernel.geometry)).0;
    register(
        world,
        Register::Ttbr0El1,
        Ttbr::new(&lower, tables.root(), 3).0,
    );
    barrier(world, Barrier::Isb);
    register(world, Register::TcrEl1, tcr);
    barrier(world, Barrier::Isb);
    tlbi(world, "vmalle1");
    barrier(world, Barrier::DsbNsh);
    barrier(world, Barrier::Isb);
    kernel.settle();
    assert_eq!(kernel.violations(), Vec::<String>::new());
    tcr
}
