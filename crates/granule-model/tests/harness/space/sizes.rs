//! Programs of three page sizes on the same CPUs, with few numbers for all of them: each CPU goes
//! from one size to another and back, while others change the spaces and hardware updates entries.

use super::cpus::Cpus;
use super::exhaustion;
use super::meanwhile::Injection;
use super::processes::Processes;
use super::races::{self, What};
use super::random::{self, WINDOW};
use crate::bench::{model, turn_on};
use crate::machine::{Pages, Shared, TABLES, World};
use crate::random::{Random, from_environment};
use crate::shape::Shape;
use granule::arch::{Level, Page, Page4K, Page16K, Page64K, PhysicalAddress};
use granule::space::{Access, Rights};
use granule_model::{Barrier, Event, System};

/// Where the idle root is: a page of the largest size, after the tables of all three.
const IDLE: u64 = TABLES + 0x4000_0000;
const IDLE_BYTES: u64 = 0x1_0000;

/// The bits of address of programs of each size.
const BITS: [u32; 3] = [39, 47, 42];

/// A machine that programs of three sizes share.
pub(crate) struct Sizes {
    pub(crate) world: Shared,
    pub(crate) cpus: Cpus,
    pub(crate) k4: Processes<Page4K>,
    pub(crate) k16: Processes<Page16K>,
    pub(crate) k64: Processes<Page64K>,
}

/// CPUs with an empty root for every size, and no process.
fn machine(shape: &Shape, seed: u64) -> (Shared, Cpus) {
    let world = World::shared(model(shape), seed);
    let idle = Pages::from(&world, IDLE_BYTES, IDLE)
        .borrow_mut()
        .allocate();
    let idle = idle.unwrap_or(PhysicalAddress(0));
    for event in [
        Event::fill(idle.0, (IDLE_BYTES / 8) as u32, 0, 0),
        Event::lines(System::DC_CIVAC, idle.0, IDLE_BYTES),
        Event::Barrier(Barrier::DSB_SY),
    ] {
        world.borrow_mut().event(event);
    }
    let geometry = shape.geometry::<Page4K>();
    let without = Shape {
        asid: Some(0),
        ..*shape
    };
    turn_on(&world, &without, &geometry, idle.0);
    let cpus = Cpus::new(&world, shape, geometry, idle);
    (world, cpus)
}

fn of_size(shape: Shape, size: usize) -> Shape {
    Shape {
        va_bits: BITS[size],
        ..shape
    }
}

impl Sizes {
    /// No process of any size yet.
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let (world, cpus) = machine(&of_size(shape, 0), seed);
        let all = (&world, &cpus);
        Self {
            k4: Processes::beside(all, of_size(shape, 0), seed, 0),
            k16: Processes::beside(all, of_size(shape, 1), seed, 1),
            k64: Processes::beside(all, of_size(shape, 2), seed, 2),
            world,
            cpus,
        }
    }

    /// Nothing is wrong with any process.
    pub(crate) fn check(&mut self) {
        self.k4.check();
        self.k16.check();
        self.k64.check();
    }

    /// All end; nothing is left but the idle root.
    fn end(mut self) {
        self.k4.end_all();
        self.k16.end_all();
        self.k64.end_all();
        assert_eq!(self.world.borrow().tables, 1, "tables left");
    }
}

fn shapes() -> [Shape; 3] {
    let plain = Shape::kernel(39).asid(1).cpus(4);
    [
        plain,
        plain.hardware(true).tlbi_range(true),
        plain
            .hardware(true)
            .tlbi_range(true)
            .bbm_level(3)
            .repeat(true),
    ]
}

/// The first pages of each size.
fn begin(sizes: &mut Sizes) -> [u64; 3] {
    [
        random::begin(&mut sizes.k4, WINDOW),
        random::begin(&mut sizes.k16, WINDOW),
        random::begin(&mut sizes.k64, WINDOW),
    ]
}

#[test]
fn programs_of_three_sizes_in_random_sequences() {
    let (mut refused, mut rolled, mut reshaped) = (0, 0, 0);
    for (number, shape) in shapes().into_iter().enumerate() {
        let seed = from_environment("GRANULE_HARNESS_SEED").unwrap_or(0x512e + number as u64);
        println!("harness: three sizes {shape:?} GRANULE_HARNESS_SEED={seed:#x}");
        let mut sizes = Sizes::new(shape, seed);
        let mut random = Random::new(seed);
        let base = begin(&mut sizes);
        for number in 1..200 {
            refused += match random.below(3) {
                0 => random::step(&mut sizes.k4, (base[0], WINDOW), number),
                1 => random::step(&mut sizes.k16, (base[1], WINDOW), number),
                _ => random::step(&mut sizes.k64, (base[2], WINDOW), number),
            };
            sizes.check();
        }
        rolled += sizes.cpus.rolled();
        reshaped += sizes.cpus.reshaped();
        sizes.end();
    }
    assert!(refused > 0, "nothing ran out");
    assert!(rolled > 10, "{rolled} generations");
    assert!(reshaped > 100, "{reshaped} switches between sizes");
}

#[test]
fn every_allocation_fails_beside_programs_of_other_sizes() {
    fn of<P: Page>(machine: &mut Processes<P>) -> u64 {
        for cpu in 0..3 {
            machine.switch(cpu, Some(0));
        }
        exhaustion::play(machine)
    }
    for shape in shapes() {
        let mut sizes = Sizes::new(shape, 3);
        sizes.k4.start();
        sizes.k16.start();
        // CPU 3 stays in a program of another size each time.
        sizes.k64.start();
        let mut refused = of(&mut sizes.k4);
        sizes.check();
        refused += of(&mut sizes.k16);
        sizes.check();
        sizes.k4.switch(3, Some(0));
        refused += of(&mut sizes.k64);
        sizes.check();
        assert!(refused > 180, "{refused}");
        sizes.end();
    }
}

/// Hardware at each `step`th moment of everything that is done to a group of pages of `P`, while
/// another CPU is in a program of `Q`, which is left as it was. How many runs, and in how many
/// hardware did something.
fn beside<P: Page, Q: Page>(size: usize, other: usize, step: usize) -> (u64, u64) {
    let shape = shapes()[1];
    let group = P::SIZE.contiguous_entries(Level::L3) as u64;
    let (mut runs, mut updates) = (0, 0);
    for what in races::ALL {
        for dirty in [false, true] {
            for moment in (0..).step_by(step) {
                let injection = Injection {
                    page: group / 2 + 1,
                    dirty,
                    moment,
                };
                let (was, updated) = run::<P, Q>((size, other), shape, what, injection);
                if !was {
                    break;
                }
                runs += 1;
                updates += u64::from(updated);
            }
        }
    }
    (runs, updates)
}

fn run<P: Page, Q: Page>(
    (size, other): (usize, usize),
    shape: Shape,
    what: What,
    injection: Injection,
) -> (bool, bool) {
    let (world, cpus) = machine(&of_size(shape, 0), 11);
    let all = (&world, &cpus);
    let mut second = Processes::<Q>::beside(all, of_size(shape, other), 11, other as u64);
    second.start();
    second.map(0, WINDOW, 4, Rights::READ_WRITE);
    for page in WINDOW..WINDOW + 4 {
        assert_eq!(second.touch(3, page, Access::Write, page), Ok(()));
    }
    let first = Processes::<P>::beside(all, of_size(shape, size), 11, size as u64);
    let result = races::run_on(first, what, injection, false);
    second.check();
    second.end_all();
    assert_eq!(world.borrow().tables, 1, "tables left");
    result
}

#[test]
fn hardware_loses_nothing_at_any_moment_beside_another_size() {
    for (runs, updates) in [
        beside::<Page4K, Page64K>(0, 2, 5),
        beside::<Page16K, Page4K>(1, 0, 97),
        beside::<Page64K, Page16K>(2, 1, 11),
    ] {
        assert!(runs > 20 && updates > 10, "{runs} runs, {updates} updates");
    }
}
