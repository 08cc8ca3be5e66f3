//! Machines whose firmware refuses, fails or is late, on the host: after a failure everything is as
//! before.

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
    assert_eq!(
        all(&Fake::new(&[WELL; MOST_CPUS - 1])).map(|gone| gone.len()),
        Ok(MOST_CPUS - 1)
    );
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

/// The CPU was never requested to go: it must not be started a second time.
#[test]
fn firmware_that_does_not_answer_at_first_takes_no_cpu_away() {
    let silent = cpu(Reaction::GoesAfter(0), Answers::ErrorFrom(1));
    let fake = stays(&[silent, WELL], 1, Why::Firmware(7));
    assert!(fake.started_again.get().is_empty());
    let fake = stays(&[WELL, silent], 2, Why::Firmware(7));
    assert_eq!(fake.started_again.get(), CpuSet::one(1));
}

#[test]
fn firmware_that_stops_answering_is_believed_nothing() {
    for first in 2..6 {
        let answers = Answers::ErrorFrom(first);
        // The CPU had accepted when firmware began to fail: it is off, or will be.
        for looks in first..8 {
            let fake = stays(
                &[WELL, cpu(Reaction::GoesAfter(looks), answers)],
                2,
                Why::Firmware(7),
            );
            assert_eq!(fake.started_again.get(), set(&[1, 2]));
        }
        // The CPU has not seen the request, which is withdrawn, and it stays.
        let fake = stays(&[WELL, cpu(Reaction::Deaf, answers)], 2, Why::Firmware(7));
        assert_eq!(fake.started_again.get(), CpuSet::one(1));
        // Firmware refused just when it began to fail.
        let refused = cpu(Reaction::RefusedAfter(first - 2), answers);
        let fake = stays(&[WELL, refused], 2, Why::Stays);
        assert_eq!(fake.started_again.get(), CpuSet::one(1));
    }
}

/// One failed query loses no CPU: it goes off, and is started again once it is off.
#[test]
fn firmware_that_fails_once_takes_no_cpu_away() {
    let looks = 8;
    let once = cpu(Reaction::GoesAfter(looks), Answers::ErrorOnce(3));
    let fake = Fake::new(&[WELL, once]);
    assert_eq!(all(&fake), Ok(set(&[1, 2])));
    assert_eq!(fake.state(2), State::Off);
}

#[test]
fn firmware_that_takes_a_running_cpu_for_one_that_is_off_is_not_believed() {
    for reaction in [Reaction::GoesAfter(0), Reaction::Deaf] {
        let fake = stays(&[WELL, cpu(reaction, Answers::Off)], 2, Why::Runs);
        assert_eq!(fake.started_again.get(), CpuSet::one(1));
    }
}

#[test]
fn a_cpu_that_takes_too_long_is_not_waited_for_without_end() {
    // Just in time, and just too late.
    let patience = PATIENCE as u32;
    let fake = Fake::new(&[cpu(Reaction::GoesAfter(patience), Answers::TheTruth), WELL]);
    assert_eq!(all(&fake), Ok(set(&[1, 2])));
    let late = cpu(Reaction::GoesAfter(patience + 1), Answers::TheTruth);
    let fake = stays(&[WELL, late, WELL], 2, Why::Late);
    assert_eq!(fake.started_again.get(), set(&[1, 2]));
    // A CPU that never saw the request is kept, and not started again.
    let fake = stays(
        &[WELL, cpu(Reaction::Deaf, Answers::TheTruth)],
        2,
        Why::Late,
    );
    assert_eq!(fake.started_again.get(), CpuSet::one(1));
}

/// No other CPU is switched off for nothing.
#[test]
fn one_that_nothing_can_switch_off_is_seen_first() {
    let for_good = Cpu {
        for_good: true,
        ..WELL
    };
    let fake = stays(&[WELL, for_good, WELL], 2, Why::ForGood);
    assert!(fake.started_again.get().is_empty());
    assert_eq!(fake.with(1, |cpu| cpu.questions), 0);
    let never = Cpu {
        state: State::NeverStarted,
        ..for_good
    };
    assert_eq!(all(&Fake::new(&[WELL, never])), Ok(set(&[1])));
}

/// The parked CPU is found before any CPU is requested to go.
#[test]
fn one_that_waits_in_this_kernels_memory_is_seen_first() {
    for (answers, why) in [
        (Answers::TheTruth, Why::Parked),
        (Answers::ErrorFrom(1), Why::Firmware(7)),
    ] {
        let parked = Cpu {
            state: State::Parked,
            ..cpu(Reaction::Deaf, answers)
        };
        let fake = stays(&[WELL, WELL, parked], 3, why);
        assert_eq!(fake.with(1, |cpu| cpu.questions), 0);
        assert!(fake.started_again.get().is_empty());
    }
}

/// Three CPUs in every combination of behaviours: either all went, or all are as before.
#[test]
fn all_cpus_go_off_or_none() {
    let patience = PATIENCE as u32;
    let mut each = Vec::new();
    for reaction in [
        Reaction::GoesAfter(0),
        Reaction::GoesAfter(3),
        Reaction::GoesAfter(patience + 5),
        Reaction::RefusedAfter(0),
        Reaction::RefusedAfter(2),
        Reaction::RefusedAfter(patience + 5),
        Reaction::Deaf,
    ] {
        for answers in [
            Answers::TheTruth,
            Answers::ErrorFrom(1),
            Answers::ErrorFrom(2),
            Answers::ErrorFrom(4),
            Answers::Off,
        ] {
            each.push(cpu(reaction, answers));
        }
    }
    let (mut left, mut refused) = (0, 0);
    for &first in &each {
        for &second in &each {
            for third in [WELL, cpu(Reaction::Deaf, Answers::TheTruth)] {
                let cpus = [first, second, third];
                match all(&Fake::new(&cpus)) {
                    Ok(gone) => {
                        let fake = Fake::new(&cpus);
                        assert_eq!(all(&fake), Ok(gone));
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
