//! Address space numbers given out by several CPUs at once, in many interleavings: whatever a CPU
//! finds in its TLB under the number that it runs under is of the space that it runs, and no older
//! than the last invalidation for that space.
//!
//! The TLBs here are sets that forget nothing: what a CPU walked to under a number stays until it
//! is invalidated.

#![allow(clippy::unwrap_used, reason = "a poisoned lock is a failed test")]

use granule::space::asid::{AsidCpu, AsidMap, Asids, SpaceAsid, Word};
use granule_testing::cases::times;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex, atomic};
use shuttle::{Runner, thread};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

const CPUS: usize = 3;
const SPACES: usize = 6;
/// One more than CPUs, and 0: generations last for a few switches.
const NUMBERS: u64 = 5;
const SWITCHES: u64 = 8;

/// A word of which every access is a point where others may run.
#[derive(Debug)]
struct Watched(atomic::AtomicU64);

impl Word for Watched {
    fn new(value: u64) -> Self {
        Self(atomic::AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn store(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::SeqCst)
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        self.0
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// The step that a kernel omits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A CPU omits a requested flush.
    Flush,
    /// A space is renewed by a CPU that may not change its tables.
    SpaceLock,
}

/// The space, and the version of its tables, that an entry comes from.
type Entry = (usize, u64);

/// The contents of the CPUs' TLBs by number, and the tables.
struct World {
    tlbs: [BTreeMap<u16, Entry>; CPUS],
    versions: [u64; SPACES],
    wrong: bool,
}

impl World {
    /// A CPU uses a page of a space under a number.
    fn access(&mut self, cpu: usize, number: u16, space: usize) {
        let now = (space, self.versions[space]);
        let found = *self.tlbs[cpu].entry(number).or_insert(now);
        self.wrong |= found != now;
    }

    /// A speculative walk, under the present TTBR0.
    fn speculate(&mut self, cpu: usize, number: u16, space: usize) {
        let now = (space, self.versions[space]);
        self.tlbs[cpu].entry(number).or_insert(now);
    }
}

struct System {
    asids: Asids<'static, Watched>,
    map: Mutex<AsidMap<'static>>,
    /// Each with the lock of its tables.
    spaces: Vec<(SpaceAsid<Watched>, Mutex<()>)>,
    world: Mutex<World>,
    fault: Fault,
    rolled: AtomicU64,
}

/// Goes to a space: the number it runs under.
fn switch(system: &System, cpu: usize, space: usize) -> u16 {
    let (asid, tables) = &system.spaces[space];
    if let Some(number) = system.asids.enter(cpu, asid) {
        return number;
    }
    let held = (system.fault != Fault::SpaceLock).then(|| tables.lock().unwrap());
    let mut map = system.map.lock().unwrap();
    let renewed = match system.asids.renew(&mut map, cpu, asid) {
        Ok(renewed) => renewed,
        Err(error) => panic!("{error}"),
    };
    drop(map);
    drop(held);
    system
        .rolled
        .fetch_add(u64::from(renewed.rolled_over), Ordering::Relaxed);
    if renewed.flush && system.fault != Fault::Flush {
        system.world.lock().unwrap().tlbs[cpu].clear();
    }
    renewed.asid
}

/// Takes a page away: the tables change, then the TLBI names the number that the space has.
fn unmap(system: &System, space: usize) {
    let (asid, tables) = &system.spaces[space];
    let held = tables.lock().unwrap();
    let number = asid.number();
    // The entries are changed one after the other.
    for _ in 0..6 {
        thread::yield_now();
    }
    let mut world = system.world.lock().unwrap();
    world.versions[space] += 1;
    if let Some(number) = number {
        for tlb in &mut world.tlbs {
            tlb.remove(&number);
        }
    }
    drop(world);
    drop(held);
}

fn run(system: &System, cpu: usize) {
    let mut running: Option<(u16, usize)> = None;
    for _ in 0..SWITCHES {
        let space = thread_rng().gen_range(0..SPACES);
        let number = switch(system, cpu, space);
        if let Some((number, space)) = running {
            system.world.lock().unwrap().speculate(cpu, number, space);
        }
        running = Some((number, space));
        system.world.lock().unwrap().access(cpu, number, space);
        if thread_rng().gen_range(0..3) == 0 {
            // Its own, or another's, as a parent does that forks.
            let other = if thread_rng().gen_range(0..2) == 0 {
                space
            } else {
                thread_rng().gen_range(0..SPACES)
            };
            unmap(system, other);
        }
        system.world.lock().unwrap().access(cpu, number, space);
    }
}

/// Plays so many interleavings: in how many something was wrong, and how many generations began.
fn play(schedules: usize, fault: Fault) -> (u64, u64) {
    let counts = std::sync::Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let counted = counts.clone();
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    Runner::new(RandomScheduler::new(schedules), config).run(move || {
        let cpus = Vec::leak((0..CPUS).map(|_| AsidCpu::new()).collect());
        let words = Vec::leak(vec![0; 1]);
        let system = Arc::new(System {
            asids: Asids::new(cpus),
            map: Mutex::new(AsidMap::with_numbers(words, NUMBERS)),
            spaces: (0..SPACES)
                .map(|_| (SpaceAsid::new(), Mutex::new(())))
                .collect(),
            world: Mutex::new(World {
                tlbs: Default::default(),
                versions: [0; SPACES],
                wrong: false,
            }),
            fault,
            rolled: AtomicU64::new(0),
        });
        let threads: Vec<_> = (0..CPUS)
            .map(|cpu| {
                let system = system.clone();
                thread::spawn(move || run(&system, cpu))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let wrong = system.world.lock().unwrap().wrong;
        assert!(!wrong || fault != Fault::None, "a stale translation");
        counted.0.fetch_add(u64::from(wrong), Ordering::Relaxed);
        let rolled = system.rolled.load(Ordering::Relaxed);
        counted.1.fetch_add(rolled, Ordering::Relaxed);
    });
    (
        counts.0.load(Ordering::Relaxed),
        counts.1.load(Ordering::Relaxed),
    )
}

#[test]
fn no_cpu_finds_another_space_under_its_number() {
    let (wrong, rolled) = play(1000 * times(), Fault::None);
    assert_eq!(wrong, 0);
    assert!(rolled > 1000, "only {rolled} generations");
}

#[test]
fn a_flush_that_is_left_out_is_found() {
    let (wrong, _) = play(300, Fault::Flush);
    assert!(wrong > 100, "{wrong}");
}

#[test]
fn a_renewal_without_the_lock_of_the_space_is_found() {
    let (wrong, _) = play(1500, Fault::SpaceLock);
    assert!(wrong > 3, "{wrong}");
}
