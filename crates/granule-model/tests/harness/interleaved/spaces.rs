//! Threads of one program on several CPUs: each touches pages, takes faults, unmaps, protects and
//! forks, the kernel's part of it under the space's lock, while the others go on with whatever
//! their TLBs hold and hardware sets access flags and dirty states.
//!
//! Now and then a CPU goes to a program of another page size and comes back ([`switches`](super::switches)).
//!
//! Whatever an access finds at any moment is a frame that is the page's: not one that was given
//! back, nor one that has come to be another page's since.

use super::frames::Frames;
use super::machine::{Environment, Fault, Machine, PAGE, Shared, interleave};
use super::switches::Other;
use crate::environment::{Gate, tcr, turn_on};
use granule::arch::bbm::BbmLevel;
use granule::arch::registers::Ttbr;
use granule::arch::{
    CpuFeatures, Descriptor, Geometry, Page4K, PageSize, PhysicalAddress, VaRange, VirtualAddress,
};
use granule::space::{Access as Wish, LargeLeaves, Rights, Settings, Space, SpaceError, VmaNode};
use granule_model::{Access, AccessKind, Barrier, Event, Model, Outcome, Regime};
use granule_testing::cases::times;
use granule_testing::shape::PLAIN;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::sync::atomic::{AtomicU64, Ordering};

const CPUS: u32 = 3;
const STEPS: u32 = 3;
/// The first page, of a group, and how many there are: the group and two more.
const FIRST: u64 = 0x4000_0000 / PAGE;
const PAGES: u64 = 18;
const GROUP: u64 = 16;

type Tested = Space<'static, Page4K, Environment, Frames>;

/// The program: its space with its lock, and all that its threads share.
struct Program {
    world: Shared,
    space: Mutex<(Tested, Frames)>,
    frames: Frames,
    geometry: Geometry,
    root: u64,
    machine: Machine,
    /// A program of another page size.
    other: Other,
    /// Accesses that found a frame that is not the page's.
    wrong: AtomicU64,
    /// Accesses that found memory.
    found: AtomicU64,
    /// Times that a CPU went to the other program and came back.
    visits: AtomicU64,
}

fn at(page: u64) -> VirtualAddress {
    VirtualAddress(page * PAGE)
}

/// The entry of a page, by its tables in memory: 39 bits, so three levels.
fn entry(model: &Model, root: u64, page: u64) -> Option<u64> {
    let mut table = root;
    for level in [2, 1, 0] {
        let index = page >> (9 * level) & 511;
        let address = table + index * 8;
        if level == 0 {
            return Some(address);
        }
        let next = model.descriptor(address);
        if next & 0b11 != 0b11 {
            return None;
        }
        table = next & 0x0000_ffff_ffff_f000;
    }
    None
}

impl Program {
    fn access(&self, cpu: u32, page: u64, wish: Wish) -> bool {
        let kind = match wish {
            Wish::Read => AccessKind::Read,
            Wish::Write => AccessKind::Write,
            _ => AccessKind::Fetch,
        };
        let access = Access {
            regime: Regime::El10,
            kind,
            user: true,
        };
        // One step: what may be found, whose it is, and what hardware notes of it.
        let mut world = self.world.lock().unwrap();
        let outcomes = world.model.outcomes(cpu, at(page).0, access);
        for outcome in &outcomes {
            let right = match outcome {
                Outcome::Fault(_) => true,
                Outcome::Memory(to) => {
                    let frame = PhysicalAddress(to.address);
                    self.frames
                        .with(frame, |frame| frame.owners > 0 && frame.page == page)
                }
                _ => false,
            };
            self.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
        }
        let Some(Outcome::Memory(to)) = outcomes.first() else {
            return false;
        };
        self.found.fetch_add(1, Ordering::Relaxed);
        if let Some(address) = entry(&world.model, self.root, page) {
            let now = Descriptor(world.model.descriptor(address));
            let same = now.is_valid() && now.0 & 0x0000_ffff_ffff_f000 == to.address;
            if same {
                world.model.update_by_hardware(address, wish == Wish::Write);
                if wish == Wish::Write {
                    let frame = PhysicalAddress(to.address);
                    self.frames.with(frame, |frame| frame.written = true);
                }
            }
        }
        true
    }

    /// Does something in the kernel, for a thread on a CPU. It comes there by an exception.
    fn kernel<R>(&self, cpu: u32, what: impl FnOnce(&mut Tested, &mut Frames) -> R) -> R {
        let mut held = self.space.lock().unwrap();
        self.machine.on(cpu);
        let (space, frames) = &mut *held;
        let result = what(space, frames);
        drop(held);
        let kind = Event::Barrier(Barrier::ISB);
        self.world.lock().unwrap().event(cpu, kind);
        result
    }

    fn touch(&self, cpu: u32, page: u64, wish: Wish) {
        // Others may take it away again and again, but not for ever.
        for _ in 0..20 {
            if self.access(cpu, page, wish) {
                return;
            }
            let done = self.kernel(cpu, |space, frames| {
                frames.page = page;
                frames.runs = thread_rng().gen_bool(0.3);
                space.fault(at(page), wish, frames)
            });
            match done {
                Ok(_) => {}
                Err(SpaceError::NotMapped { .. } | SpaceError::Denied { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn step(&self, cpu: u32) {
        let page = FIRST + thread_rng().gen_range(0..PAGES);
        let count = thread_rng().gen_range(1..=3).min(FIRST + PAGES - page);
        match thread_rng().gen_range(0..10) {
            0..=3 => {
                let wish = [Wish::Read, Wish::Write][thread_rng().gen_range(0..2usize)];
                self.touch(cpu, page, wish);
            }
            4 | 5 => {
                let bytes = count * PAGE;
                let done = self.kernel(cpu, |space, frames| space.unmap(at(page), bytes, frames));
                assert_eq!(done, Ok(()));
                // Another thread may be quicker.
                let done = self.kernel(cpu, |space, _| {
                    space.map(at(page), bytes, Rights::READ_WRITE, 0)
                });
                assert!(matches!(done, Ok(()) | Err(SpaceError::Occupied { .. })));
            }
            6 => {
                let rights = [Rights::READ, Rights::READ_WRITE][thread_rng().gen_range(0..2usize)];
                let done = self.kernel(cpu, |space, frames| {
                    space.protect(at(page), count * PAGE, rights, frames)
                });
                assert!(matches!(done, Ok(()) | Err(SpaceError::NotMapped { .. })));
            }
            7 | 8 => {
                let right = self.other.visit(&self.world, cpu);
                self.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
                self.visits.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let mut child = self.empty();
                let done = self.kernel(cpu, |space, frames| space.fork_into(&mut child, frames));
                assert_eq!(done, Ok(()));
                // The child never runs. Until it ends, whoever writes gets a copy.
                self.touch(cpu, page, Wish::Write);
                self.kernel(cpu, |_, frames| {
                    // SAFETY: no CPU was ever in the child.
                    unsafe { child.destroy(frames) }
                });
            }
        }
    }

    fn empty(&self) -> Tested {
        match Space::new(self.geometry, self.machine.parts(), nodes(), SETTINGS) {
            Ok(space) => space,
            Err(error) => panic!("{error}"),
        }
    }
}

const SETTINGS: Settings = Settings {
    hardware_access: true,
    hardware_dirty: true,
    large_leaves: LargeLeaves::BLOCKS,
    bbm: BbmLevel::Level0,
    break_execute: false,
    most_vmas: Settings::MOST_VMAS,
};

/// Nodes for the VMAs of one space, which are few.
fn nodes() -> &'static mut [VmaNode<'static>] {
    Vec::leak(vec![VmaNode::EMPTY])
}

/// Three CPUs in one program, whose group lacks one page.
fn start(fault: Fault) -> Program {
    let features = CpuFeatures {
        // HAFDBS.
        mmfr1: 2,
        ..PLAIN.features()
    };
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let machine = Machine::new(CPUS);
    let mut space = match Tested::new(geometry, machine.parts(), nodes(), SETTINGS) {
        Ok(space) => space,
        Err(error) => panic!("{error}"),
    };
    // SAFETY: the model's CPUs use this ASID.
    unsafe { space.set_asid(Some(1)) };
    let root = space.tables().root_table();
    turn_on(&machine, CPUS, &features, &geometry, root, 1, true);
    // SAFETY: the TLBIs reach the model's CPUs.
    unsafe { space.make_live() };
    assert_eq!(
        space.map(at(FIRST), PAGES * PAGE, Rights::READ_WRITE, 0),
        Ok(())
    );
    let mut frames = Frames::new();
    for page in FIRST..FIRST + GROUP - 1 {
        frames.page = page;
        assert!(space.fault(at(page), Wish::Read, &mut frames).is_ok());
    }
    let home = tcr(&features, &geometry, true);
    // SAFETY: only the model's CPUs get the value, and the space is live.
    let ttbr = unsafe { Ttbr::from_root(&geometry, root, 1) };
    let other = Other::new(&machine, (home, ttbr));
    let world = machine.world.clone();
    {
        let mut world = world.lock().unwrap();
        for cpu in 0..CPUS {
            world.event(cpu, Event::Barrier(Barrier::ISB));
        }
        world.left_out = fault.leaves_out();
    }
    Program {
        world,
        frames: frames.clone(),
        space: Mutex::new((space, frames)),
        geometry,
        root: root.0,
        machine,
        other,
        wrong: AtomicU64::new(0),
        found: AtomicU64::new(0),
        visits: AtomicU64::new(0),
    }
}

/// The results of many interleavings: in how many the model reported something, in how many an
/// access found what it must not, how many accesses found memory, and groups that came to be.
#[derive(Default)]
struct Sums {
    broken: AtomicU64,
    wrong: AtomicU64,
    found: AtomicU64,
    folded: AtomicU64,
    unfolded: AtomicU64,
    copied: AtomicU64,
    visits: AtomicU64,
}

fn play(schedules: usize, fault: Fault) -> std::sync::Arc<Sums> {
    let sums = std::sync::Arc::new(Sums::default());
    let counted = sums.clone();
    interleave(schedules, move || {
        let program = Arc::new(start(fault));
        let threads: Vec<_> = (0..CPUS)
            .map(|cpu| {
                let program = program.clone();
                thread::spawn(move || {
                    if cpu == 0 {
                        // The page that the group lacks.
                        program.touch(0, FIRST + GROUP - 1, Wish::Read);
                    }
                    for _ in 0..STEPS {
                        program.step(cpu);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        finish(&program, fault, &counted);
    });
    sums
}

fn finish(program: &Program, fault: Fault, sums: &Sums) {
    let mut held = program.space.lock().unwrap();
    let (space, frames) = &mut *held;
    {
        let mut world = program.world.lock().unwrap();
        for cpu in 0..CPUS {
            let kind = Event::Settled;
            assert_eq!(world.model.event(cpu, kind), Ok(()));
        }
        let violations = world.model.violations();
        let wrong = program.wrong.load(Ordering::Relaxed);
        if fault == Fault::None {
            assert_eq!(violations, []);
            assert_eq!(wrong, 0, "accesses found frames of others");
        }
        let add = |sum: &AtomicU64, value: bool| sum.fetch_add(value.into(), Ordering::Relaxed);
        add(&sums.broken, !violations.is_empty());
        add(&sums.wrong, wrong > 0);
    }
    let stats = space.stats();
    for (sum, value) in [
        (&sums.found, program.found.load(Ordering::Relaxed)),
        (&sums.visits, program.visits.load(Ordering::Relaxed)),
        (&sums.folded, stats.folded),
        (&sums.unfolded, stats.unfolded),
        (&sums.copied, stats.copied),
    ] {
        sum.fetch_add(value, Ordering::Relaxed);
    }
    if fault != Fault::None {
        return;
    }
    // Every written page is known to be dirty, and every frame has one owner.
    let mut mapped = 0;
    for page in FIRST..FIRST + PAGES {
        let Some(state) = space.page(at(page)) else {
            continue;
        };
        mapped += 1;
        let frame = frames.with(state.frame, |frame| *frame);
        assert_eq!((frame.owners, frame.page), (1, page));
        assert!(state.dirty || !frame.written, "{page:#x} was written");
    }
    let owned = |frames: &Frames| {
        let all = frames.all.lock().unwrap();
        all.iter().map(|frame| frame.owners).sum::<u32>()
    };
    assert_eq!(owned(frames), mapped);
    space.clear(frames);
    assert_eq!(owned(frames), 0, "frames are lost");
}

#[test]
fn threads_find_their_own_pages_whatever_the_others_do() {
    let sums = play(100 * times(), Fault::None);
    let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    println!(
        "{} accesses, {} groups made, {} taken apart, {} copies",
        of(&sums.found),
        of(&sums.folded),
        of(&sums.unfolded),
        of(&sums.copied)
    );
    assert!(of(&sums.found) > 300, "{} accesses", of(&sums.found));
    assert!(of(&sums.folded) > 5 && of(&sums.unfolded) > 3);
    assert!(of(&sums.copied) > 10, "{} copies", of(&sums.copied));
    assert!(of(&sums.visits) > 50, "{} visits", of(&sums.visits));
}

#[test]
fn a_step_that_is_left_out_is_found_out_by_the_model_and_by_what_threads_find() {
    for fault in [Fault::Tlbi, Fault::Completion] {
        let sums = play(30, fault);
        let broken = sums.broken.load(Ordering::Relaxed);
        let wrong = sums.wrong.load(Ordering::Relaxed);
        assert!(broken > 20, "reported in {broken}");
        assert!(wrong > 1, "found by an access in {wrong}");
    }
    // An access finds nothing wrong: what the CPU holds has another ASID, and what it may hold of
    // TCR is not a translation.
    let sums = play(30, Fault::SwitchTlbi);
    let broken = sums.broken.load(Ordering::Relaxed);
    assert!(broken > 10, "reported in {broken}");
}
