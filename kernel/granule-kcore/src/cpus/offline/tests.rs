//! Machines whose firmware refuses, fails or is late: after a failure everything is as before.

use super::{Others, Why, all};
use crate::cpus::MOST_CPUS;
use crate::cpus::set::CpuSet;
use crate::timeout::Timeout;
use std::cell::{Cell, RefCell};

/// A CPU's reaction to a request to go off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// Accepts at once, and is off after that many polls.
    GoesAfter(u32),
    /// Accepts; firmware refuses after that many polls.
    RefusedAfter(u32),
    /// Never reaches its loop.
    Deaf,
}

/// Firmware's answers about a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    TheTruth,
    /// An error, from that query on.
    ErrorFrom(u32),
    /// An error to that query only.
    ErrorOnce(u32),
    /// Always off.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    NeverStarted,
    Runs,
    /// Has accepted to go off.
    Goes,
    /// Runs, because firmware refused.
    Stays,
    Off,
    /// In this kernel's memory, and not online.
    Parked,
    /// As `Parked`, because it was given up before firmware refused.
    Halted,
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    reaction: Reaction,
    answers: Answers,
    state: State,
    asked: bool,
    /// Nothing can switch it off.
    for_good: bool,
    given_up: bool,
    /// Polls since the request, and queries to firmware about it.
    looks: u32,
    questions: u32,
}

const fn cpu(reaction: Reaction, answers: Answers) -> Cpu {
    Cpu {
        reaction,
        answers,
        state: State::Runs,
        asked: false,
        for_good: false,
        given_up: false,
        looks: 0,
        questions: 0,
    }
}

fn set(cpus: &[usize]) -> CpuSet {
    cpus.iter()
        .fold(CpuSet::default(), |set, cpu| set.with(*cpu))
}

const WELL: Cpu = cpu(Reaction::GoesAfter(2), Answers::TheTruth);

/// The time limit in polls.
const PATIENCE: u64 = 20;

#[derive(Debug)]
struct Fake {
    /// The CPUs from number 1 on.
    cpus: RefCell<Vec<Cpu>>,
    online: Cell<CpuSet>,
    time: Cell<u64>,
    started_again: Cell<CpuSet>,
}

impl Fake {
    fn new(cpus: &[Cpu]) -> Self {
        let mut online = CpuSet::default();
        for (index, cpu) in cpus.iter().enumerate() {
            if cpu.state == State::Runs {
                online = online.with(index + 1);
            }
        }
        Self {
            cpus: RefCell::new(cpus.to_vec()),
            online: Cell::new(online),
            time: Cell::new(0),
            started_again: Cell::new(CpuSet::default()),
        }
    }

    fn with<R>(&self, number: usize, work: impl FnOnce(&mut Cpu) -> R) -> R {
        work(&mut self.cpus.borrow_mut()[number - 1])
    }

    fn state(&self, number: usize) -> State {
        self.with(number, |cpu| cpu.state)
    }
}

impl Others for Fake {
    type Error = u8;

    fn online(&self) -> CpuSet {
        self.online.get()
    }

    fn was_started(&self, number: usize) -> bool {
        let cpus = self.cpus.borrow();
        let cpu = cpus.get(number - 1);
        cpu.is_some_and(|cpu| cpu.state != State::NeverStarted)
    }

    fn can_go_off(&self, number: usize) -> bool {
        !self.with(number, |cpu| cpu.for_good)
    }

    /// Advances the time: a CPU with a request does its next step.
    fn is_off(&self, number: usize) -> Result<bool, u8> {
        self.time.set(self.time.get() + 1);
        self.with(number, |cpu| {
            cpu.questions += 1;
            if cpu.asked && cpu.reaction != Reaction::Deaf {
                cpu.asked = false;
                cpu.state = State::Goes;
            }
            if cpu.state == State::Goes {
                cpu.looks += 1;
                match cpu.reaction {
                    Reaction::GoesAfter(looks) if cpu.looks > looks => cpu.state = State::Off,
                    Reaction::RefusedAfter(looks) if cpu.looks > looks => {
                        cpu.state = match cpu.given_up {
                            true => State::Halted,
                            false => State::Stays,
                        }
                    }
                    _ => {}
                }
            }
            match cpu.answers {
                Answers::TheTruth => Ok(cpu.state == State::Off),
                Answers::ErrorFrom(first) if cpu.questions >= first => Err(7),
                Answers::ErrorOnce(at) if cpu.questions == at => Err(7),
                Answers::ErrorFrom(_) | Answers::ErrorOnce(_) => Ok(cpu.state == State::Off),
                Answers::Off => Ok(true),
            }
        })
    }

    fn ask(&self, number: usize) {
        self.with(number, |cpu| {
            assert_eq!(cpu.state, State::Runs, "CPU {number} is asked");
            cpu.asked = true;
        });
    }

    fn take_back(&self, number: usize) -> bool {
        self.with(number, |cpu| core::mem::take(&mut cpu.asked))
    }

    fn stays(&self, number: usize) -> bool {
        self.state(number) == State::Stays
    }

    fn give_up(&self, number: usize) -> bool {
        self.with(number, |cpu| {
            assert!(
                matches!(cpu.state, State::Goes | State::Stays | State::Off),
                "CPU {number}, which is {:?}, is given up",
                cpu.state
            );
            cpu.given_up = cpu.state != State::Stays;
            cpu.given_up
        })
    }

    fn goes_on(&self, number: usize) {
        self.with(number, |cpu| {
            assert_eq!(cpu.state, State::Stays, "CPU {number} goes on");
            cpu.state = State::Runs;
        });
    }

    fn is_gone(&self, number: usize) {
        assert!(self.online.get().contains(number), "CPU {number} goes once");
        self.online.set(self.online.get().without(number));
    }

    fn bring_back(&self, gone: CpuSet) {
        self.started_again.set(gone);
        for number in gone.iter() {
            assert!(
                !self.online.get().contains(number),
                "CPU {number} is online"
            );
            self.with(number, |cpu| {
                // Starting a CPU that runs would destroy its stack.
                assert!(
                    matches!(cpu.state, State::Off | State::Goes),
                    "CPU {number}, which is {:?}, is started",
                    cpu.state
                );
                if cpu.state == State::Off {
                    cpu.state = State::Runs;
                    self.online.set(self.online.get().with(number));
                }
            });
        }
    }

    fn timeout(&self) -> Timeout {
        Timeout::new(PATIENCE, 1, self.time.get())
    }

    fn is_late(&self, timeout: &mut Timeout) -> bool {
        timeout.is_over(self.time.get())
    }
}

/// Checks that this CPU does not go off, and that all others are as before, except those that firmware
/// holds between on and off.
#[track_caller]
fn stays(cpus: &[Cpu], number: usize, why: Why<u8>) -> Fake {
    let fake = Fake::new(cpus);
    let before = fake.online.get();
    assert_eq!(all(&fake), Err((number, why)), "{cpus:?}");
    for (index, cpu) in cpus.iter().enumerate() {
        let at = index + 1;
        let now = fake.with(at, |cpu| *cpu);
        assert!(!now.asked, "CPU {at} is still asked: {cpus:?}");
        let online = fake.online.get().contains(at);
        if now.state == State::Goes {
            // The attempt to start it again takes care of it; it does not count as running.
            assert!(!online && at == number, "CPU {at}: {cpus:?}");
            assert!(fake.started_again.get().contains(at));
        } else {
            assert_eq!(now.state, cpu.state, "CPU {at}: {cpus:?}");
            assert_eq!(online, before.contains(at), "CPU {at}: {cpus:?}");
        }
    }
    fake
}

#[test]
fn all_that_run_go_and_are_reported() {
    let parked_off = Cpu {
        state: State::Off,
        ..WELL
    };
    let never = Cpu {
        state: State::NeverStarted,
        answers: Answers::ErrorFrom(1),
        ..WELL
    };
    let fake = Fake::new(&[WELL, parked_off, WELL, never]);
    assert_eq!(all(&fake), Ok(set(&[1, 3])));
    assert!(fake.online.get().is_empty());
    assert_eq!((fake.state(1), fake.state(3)), (State::Off, State::Off));
    assert_eq!(fake.with(4, |cpu| cpu.questions), 0);
    assert_eq!(all(&Fake::new(&[])), Ok(CpuSet::default()));
    let most = all(&Fake::new(&[WELL; MOST_CPUS - 1]));
    assert_eq!(most.map(|gone| gone.len()), Ok(MOST_CPUS - 1));
}

/// CPUs of which one does not go off, its number, the reason, and those that are started again.
type Failure = (Vec<Cpu>, usize, Why<u8>, &'static [usize]);

#[test]
fn after_a_failure_only_those_that_went_are_started_again() {
    let truth = |reaction| cpu(reaction, Answers::TheTruth);
    // The CPU was never requested to go: it must not be started a second time.
    let silent = cpu(Reaction::GoesAfter(0), Answers::ErrorFrom(1));
    // A CPU that takes too long is not waited for without end.
    let late = truth(Reaction::GoesAfter(PATIENCE as u32 + 1));
    // A CPU that never saw the request is kept, and not started again.
    let deaf = truth(Reaction::Deaf);
    let mut cases: Vec<Failure> = vec![
        (vec![silent, WELL], 1, Why::Firmware(7), &[]),
        (vec![WELL, silent], 2, Why::Firmware(7), &[1]),
        (vec![WELL, late, WELL], 2, Why::Late, &[1, 2]),
        (vec![WELL, deaf], 2, Why::Late, &[1]),
    ];
    // Firmware that takes a running CPU for one that is off is not believed.
    for reaction in [Reaction::GoesAfter(0), Reaction::Deaf] {
        cases.push((vec![WELL, cpu(reaction, Answers::Off)], 2, Why::Runs, &[1]));
    }
    // Firmware that stops answering is believed nothing.
    for first in 2..6 {
        let answers = Answers::ErrorFrom(first);
        // The CPU had accepted when firmware began to fail: it is off, or will be.
        for looks in first..8 {
            let accepted = cpu(Reaction::GoesAfter(looks), answers);
            cases.push((vec![WELL, accepted], 2, Why::Firmware(7), &[1, 2]));
        }
        // The CPU has not seen the request, which is withdrawn, and it stays.
        let deaf = cpu(Reaction::Deaf, answers);
        cases.push((vec![WELL, deaf], 2, Why::Firmware(7), &[1]));
        // Firmware refused just when it began to fail.
        let refused = cpu(Reaction::RefusedAfter(first - 2), answers);
        cases.push((vec![WELL, refused], 2, Why::Stays, &[1]));
    }
    for (cpus, number, why, again) in cases {
        let fake = stays(&cpus, number, why);
        assert_eq!(fake.started_again.get(), set(again), "{cpus:?}");
    }
    // Just in time, and one failed query: it goes off, and is started again once it is off.
    let just_in_time = truth(Reaction::GoesAfter(PATIENCE as u32));
    let once = cpu(Reaction::GoesAfter(8), Answers::ErrorOnce(3));
    for goes in [just_in_time, once] {
        let fake = Fake::new(&[WELL, goes]);
        assert_eq!(all(&fake), Ok(set(&[1, 2])));
        assert_eq!(fake.state(2), State::Off);
    }
}

#[test]
fn firmware_that_refuses_cpu_off_leaves_it_running() {
    for looks in 0..4 {
        let refused = cpu(Reaction::RefusedAfter(looks), Answers::TheTruth);
        let fake = stays(&[WELL, refused, WELL], 2, Why::Stays);
        assert_eq!(fake.started_again.get(), CpuSet::one(1));
        assert_eq!(fake.with(3, |cpu| cpu.questions), 0);
        // A second attempt must not mistake the old refusal for a new one.
        assert_eq!(all(&fake), Err((2, Why::Stays)));
        assert_eq!(fake.state(2), State::Runs);
    }
}

/// The CPU no longer gets calls when tables change, so it must not run, and the kernel must not be
/// left while it is there.
#[test]
fn firmware_that_refuses_too_late_finds_it_given_up() {
    let looks = PATIENCE as u32 + 5;
    let refused = cpu(Reaction::RefusedAfter(looks), Answers::TheTruth);
    let fake = stays(&[WELL, refused], 2, Why::Late);
    assert_eq!(fake.state(2), State::Goes);
    for _ in 0..looks {
        assert_eq!(fake.is_off(2), Ok(false));
    }
    assert_eq!(fake.state(2), State::Halted);
    assert_eq!(all(&fake), Err((2, Why::Parked)));
    assert!(!fake.online.get().contains(2));
}

/// No other CPU is switched off, or even requested to go, for nothing.
#[test]
fn one_that_cannot_go_off_is_seen_first() {
    let for_good = Cpu {
        for_good: true,
        ..WELL
    };
    let parked = |answers| Cpu {
        state: State::Parked,
        ..cpu(Reaction::Deaf, answers)
    };
    for (last, why) in [
        (for_good, Why::ForGood),
        (parked(Answers::TheTruth), Why::Parked),
        (parked(Answers::ErrorFrom(1)), Why::Firmware(7)),
    ] {
        let fake = stays(&[WELL, WELL, last], 3, why);
        assert_eq!(fake.with(1, |cpu| cpu.questions), 0);
        assert!(fake.started_again.get().is_empty());
    }
    let never = Cpu {
        state: State::NeverStarted,
        ..for_good
    };
    assert_eq!(all(&Fake::new(&[WELL, never])), Ok(set(&[1])));
}

/// Three CPUs in every combination of behaviours: either all went, or all are as before.
#[test]
fn all_cpus_go_off_or_none() {
    use Answers::{ErrorFrom, TheTruth};
    use Reaction::{Deaf, GoesAfter, RefusedAfter};
    let late = PATIENCE as u32 + 5;
    let goes = [0, 3, late].map(GoesAfter);
    let refuses = [0, 2, late].map(RefusedAfter);
    let errors = [1, 2, 4].map(ErrorFrom);
    let mut each = Vec::new();
    for reaction in goes.into_iter().chain(refuses).chain([Deaf]) {
        for answers in [TheTruth, Answers::Off].into_iter().chain(errors) {
            each.push(cpu(reaction, answers));
        }
    }
    let (mut left, mut refused) = (0, 0);
    for &first in &each {
        for &second in &each {
            for third in [WELL, cpu(Deaf, TheTruth)] {
                let cpus = [first, second, third];
                let fake = Fake::new(&cpus);
                match all(&fake) {
                    Ok(gone) => {
                        assert_eq!(gone, set(&[1, 2, 3]), "{cpus:?}");
                        assert!((1..=3).all(|at| fake.state(at) == State::Off), "{cpus:?}");
                        left += 1;
                    }
                    Err((number, why)) => {
                        stays(&cpus, number, why);
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(left > 4 && refused > 1000, "{left}, {refused}");
}
