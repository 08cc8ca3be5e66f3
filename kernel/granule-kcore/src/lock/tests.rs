//! The lock under every order of steps that shuttle draws, on CPUs that can be parked wherever their
//! interrupts are unmasked, and nowhere else.

use super::{AnswersCalls, Cpu, Lock, Masked, Policy, RawLock, Unmasked};
use granule_testing::cases::times;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SCHEDULES: usize = 2_000;
const CPUS: usize = 3;
/// The most steps of one schedule: far more than any schedule needs to end, so a deadlock is detected.
const MOST_STEPS: usize = 100_000;

shuttle::thread_local! {
    static NUMBER: Cell<usize> = Cell::new(0);
    static IMPATIENT: Cell<bool> = Cell::new(false);
    static LOOKS: Cell<u64> = Cell::new(0);
    static MASKED: Cell<bool> = Cell::new(false);
    static MACHINE: Cell<Option<&'static Machine>> = Cell::new(None);
}

/// The shared state of one schedule's CPUs. Plain atomics suffice: one thread runs at a time, and a
/// yield marks each point where another may run.
#[derive(Default)]
struct Machine {
    parking: AtomicBool,
    parked: AtomicUsize,
    /// CPUs that have ended and answer no calls.
    gone: AtomicUsize,
}

struct Modelled;

impl Modelled {
    /// A point where an unmasked interrupt is taken.
    fn interrupt() {
        if !MASKED.with(Cell::get) {
            Self::answer();
        }
    }

    /// Parks on request, until all may continue, whether or not interrupts are masked.
    fn answer() {
        let Some(machine) = MACHINE.with(Cell::get) else {
            return;
        };
        if !machine.parking.load(Ordering::Relaxed) {
            return;
        }
        let masked = MASKED.with(|masked| masked.replace(true));
        machine.parked.fetch_add(1, Ordering::Relaxed);
        while machine.parking.load(Ordering::Relaxed) {
            shuttle::thread::yield_now();
        }
        MASKED.with(|own| own.set(masked));
    }
}

impl Cpu for Modelled {
    fn number() -> usize {
        NUMBER.with(Cell::get)
    }
    fn mask() -> u64 {
        shuttle::thread::yield_now();
        Self::interrupt();
        u64::from(MASKED.with(|masked| masked.replace(true)))
    }
    fn restore(before: u64) {
        MASKED.with(|masked| masked.set(before == 1));
        shuttle::thread::yield_now();
        Self::interrupt();
    }
    fn interrupts() -> u64 {
        u64::from(MASKED.with(Cell::get))
    }
    fn are_let_in(state: u64) -> bool {
        state == 0
    }
    fn answer_calls() {
        Self::answer();
    }
    fn relax() {
        shuttle::thread::yield_now();
    }
    /// Stands still but for an impatient CPU.
    fn now() -> u64 {
        LOOKS.with(|looks| {
            let step = u64::from(IMPATIENT.with(Cell::get));
            looks.set(looks.get() + step);
            looks.get()
        })
    }
    fn frequency() -> u64 {
        1
    }
}

fn run(test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
    Runner::new(RandomScheduler::new(SCHEDULES * times()), config).run(test);
}

fn be(number: usize, machine: Option<&'static Machine>) {
    NUMBER.with(|own| own.set(number));
    MASKED.with(|masked| masked.set(false));
    IMPATIENT.with(|impatient| impatient.set(false));
    MACHINE.with(|own| own.set(machine));
}

/// Reads, yields to others, and writes: an addition is lost unless the caller is alone.
fn add(value: &mut u64) {
    let before = *value;
    shuttle::thread::yield_now();
    *value = before + 1;
}

fn one_cpu_at_a_time<P: Policy + 'static>() {
    run(|| {
        let lock = Arc::new(Lock::<u64, Modelled, P>::new(0));
        let cpus: Vec<_> = (0..CPUS)
            .map(|number| {
                let lock = Arc::clone(&lock);
                shuttle::thread::spawn(move || {
                    be(number, None);
                    for _ in 0..3 {
                        if thread_rng().gen_bool(0.5) {
                            lock.with(add);
                        } else {
                            while lock.try_with(add).is_none() {
                                shuttle::thread::yield_now();
                            }
                        }
                        assert!(!MASKED.with(Cell::get), "interrupts stayed masked");
                    }
                })
            })
            .collect();
        for cpu in cpus {
            cpu.join().unwrap();
        }
        be(0, None);
        assert_eq!(lock.with(|value| *value), 3 * CPUS as u64);
    });
}

#[test]
fn one_cpu_at_a_time_has_the_value() {
    one_cpu_at_a_time::<AnswersCalls>();
    one_cpu_at_a_time::<Masked>();
    one_cpu_at_a_time::<Unmasked>();
}

/// Interrupts while the lock is held: masked or unchanged.
#[test]
fn a_holder_has_interrupts_as_its_policy_says() {
    fn masked_inside<P: Policy>() -> bool {
        Lock::<(), Modelled, P>::new(()).with(|()| MASKED.with(Cell::get))
    }
    run(|| {
        be(0, None);
        assert!(masked_inside::<AnswersCalls>() && masked_inside::<Masked>());
        assert!(!masked_inside::<Unmasked>() && !MASKED.with(Cell::get));
        let _ = Modelled::mask();
        assert!(masked_inside::<Unmasked>() && MASKED.with(Cell::get));
    });
}

/// A lock that CPU 1 holds, and CPU 2 waits for without patience.
fn held_by_another() -> RawLock<Modelled, Masked> {
    let lock = RawLock::new();
    be(1, None);
    let _ = lock.acquire();
    be(2, None);
    IMPATIENT.with(|impatient| impatient.set(true));
    lock
}

#[test]
fn a_waiter_that_gives_up_may_take_the_lock_away() {
    run(|| {
        let lock = held_by_another();
        assert!(lock.try_acquire().is_none());
        assert!(!MASKED.with(Cell::get));
        let stuck = lock.acquire_or_give_up().unwrap_err();
        assert!(MASKED.with(Cell::get) && lock.holder() == Some(1));
        // SAFETY: the lock protects nothing.
        unsafe { lock.seize() };
        assert_eq!(lock.holder(), Some(2));
        // SAFETY: this CPU has just taken the lock.
        unsafe { lock.release(stuck.before) };
        assert_eq!((lock.holder(), MASKED.with(Cell::get)), (None, false));
    });
}

#[test]
#[should_panic(expected = "CPU 2 waits for a lock that CPU 1 does not release")]
fn a_holder_that_is_stuck_is_named() {
    run(|| {
        let _ = held_by_another().acquire();
    });
}

thread_local! {
    /// The number of the CPU that runs, and how often it looked at the clock.
    static RUNS: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// A waiter whose clock gives the lock to another CPU now and then, and frees it in the end.
struct Changing;

static PASSED_ON: RawLock<Changing, Masked> = RawLock::new();

impl Cpu for Changing {
    fn number() -> usize {
        RUNS.get().0
    }
    fn mask() -> u64 {
        0
    }
    fn restore(_: u64) {}
    fn interrupts() -> u64 {
        0
    }
    fn are_let_in(_: u64) -> bool {
        false
    }
    fn answer_calls() {}
    fn relax() {}
    fn now() -> u64 {
        let (this, looks) = RUNS.get();
        RUNS.set((1 + looks as usize / 8 % 2, looks + 1));
        // SAFETY: the lock protects nothing.
        unsafe {
            PASSED_ON.seize();
            if looks == 1000 {
                PASSED_ON.release(0);
            }
        }
        RUNS.set((this, looks + 1));
        looks
    }
    fn frequency() -> u64 {
        1
    }
}

/// No holder has the lock for ten seconds, and all together have it for a thousand.
#[test]
fn a_lock_that_changes_hands_is_not_stuck() {
    // SAFETY: the lock protects nothing.
    unsafe { PASSED_ON.seize() };
    RUNS.set((3, 0));
    let before = PASSED_ON.acquire();
    assert_eq!((PASSED_ON.holder(), RUNS.get().1), (Some(3), 1001));
    // SAFETY: this CPU has just taken the lock.
    unsafe { PASSED_ON.release(before) };
}

/// CPU 0 parks all others and then takes both locks. The others take one lock inside the other;
/// wherever they were parked, both must be free.
#[test]
fn the_parking_cpu_finds_the_locks_free() {
    run(|| {
        let machine: &'static Machine = Box::leak(Box::default());
        let outer = Arc::new(Lock::<u64, Modelled>::new(0));
        let inner = Arc::new(Lock::<u64, Modelled>::new(0));
        let others: Vec<_> = (1..CPUS)
            .map(|number| {
                let (outer, inner) = (Arc::clone(&outer), Arc::clone(&inner));
                shuttle::thread::spawn(move || {
                    be(number, Some(machine));
                    for round in 0..2 {
                        if (number + round) % 2 == 0 {
                            outer.with(|value| {
                                add(value);
                                inner.with(add);
                            });
                        } else {
                            inner.with(add);
                        }
                    }
                    let _ = Modelled::mask();
                    machine.gone.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        be(0, None);
        let _ = Modelled::mask();
        machine.parking.store(true, Ordering::Relaxed);
        let away = || machine.parked.load(Ordering::Relaxed) + machine.gone.load(Ordering::Relaxed);
        while away() < CPUS - 1 {
            shuttle::thread::yield_now();
        }
        let seen = outer.try_with(|outer| inner.try_with(|inner| (*outer, *inner)));
        assert!(
            matches!(seen, Some(Some(_))),
            "a parked CPU holds a lock: {outer:?} {inner:?}"
        );
        machine.parking.store(false, Ordering::Relaxed);
        for cpu in others {
            cpu.join().unwrap();
        }
        assert_eq!(outer.with(|value| *value), (CPUS - 1) as u64);
        assert_eq!(inner.with(|value| *value), 2 * (CPUS - 1) as u64);
    });
}

#[test]
#[should_panic(expected = "CPU 2 takes a lock that it holds already")]
fn to_take_it_twice_is_reported() {
    run(|| {
        be(2, None);
        let lock = Lock::<u64, Modelled>::new(0);
        lock.with(|_| lock.with(|_| ()));
    });
}
