//! Whose turn it is: one word a task, which says whether it runs, waits for its turn, or sleeps.
//!
//! A task that goes to sleep says so first ([`Turn::about_to_sleep`]), looks then whether what it
//! waits for is there, and leaves its CPU only if it is not. Who makes it come true wakes afterwards
//! ([`Turn::wake`]). Whatever the order, either the sleeper sees that it is there or the waker sees
//! the sleeper. A task that is woken before it has left its CPU is put back into the queue by the
//! CPU that it leaves, never by the waker: so nobody runs it while its registers are not saved yet,
//! and it is in the queue once. Pure; every order of steps is tried by shuttle.

#[cfg(not(test))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU32, Ordering, fence};

/// It has no turn: not begun, or ended.
const NONE: u32 = 0;
/// It waits in the queue.
const READY: u32 = 1;
/// A CPU runs it.
const RUNNING: u32 = 2;
/// A CPU runs it, and it is about to sleep.
const PARKING: u32 = 3;
/// As [`PARKING`], and it was woken meanwhile.
const WOKEN: u32 = 4;
/// It sleeps.
const ASLEEP: u32 = 5;

/// One task's.
#[derive(Debug)]
pub(crate) struct Turn(AtomicU32);

/// What the CPU that a task has left does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Puts it at the queue's end.
    Queue,
    /// Nothing: who wakes it will queue it.
    Sleeps,
    /// Buries it.
    Ended,
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }

    /// It is about to be put into the queue for the first time.
    pub(crate) fn begin(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// A CPU has taken it out of the queue and runs it.
    pub(crate) fn run(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// For the task itself: it is going to look whether it must sleep.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(PARKING, Ordering::Relaxed);
        // Before the look: see `wake`.
        fence(Ordering::SeqCst);
    }

    /// For the task itself: it does not sleep after all.
    pub(crate) fn stay(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// For the task itself: it never comes back once it has left its CPU.
    pub(crate) fn end(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    /// For the CPU that it has left, its registers saved.
    pub(crate) fn left(&self) -> Left {
        let old = self.0.load(Ordering::Relaxed);
        match old {
            NONE => return Left::Ended,
            PARKING => {
                let slept = self.0.compare_exchange(
                    PARKING,
                    ASLEEP,
                    // The registers are saved before whoever wakes it has it run.
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if slept.is_ok() {
                    return Left::Sleeps;
                }
            }
            _ => {}
        }
        self.0.store(READY, Ordering::Release);
        Left::Queue
    }

    /// What it may wait for came true before this call. Whether the caller must put it into the
    /// queue.
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        // What came true is seen by who looks after it parked, or we see that it parks.
        fence(Ordering::SeqCst);
        loop {
            let old = self.0.load(Ordering::Relaxed);
            let new = match old {
                ASLEEP => READY,
                PARKING => WOKEN,
                _ => return false,
            };
            let changed = self
                .0
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
            if changed.is_ok() {
                return new == READY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::cases::times;
    use shuttle::sync::atomic::{AtomicBool, AtomicUsize};
    use shuttle::sync::{Arc, Mutex};

    const SCHEDULES: usize = 3_000;

    /// A task's turn, the queue, and what is to be true when it goes on.
    struct World {
        turn: Turn,
        queue: Mutex<usize>,
        running: AtomicUsize,
        came: [AtomicBool; 2],
        over: AtomicBool,
    }

    impl World {
        fn enqueue(&self) {
            let mut queue = self.queue.lock().unwrap();
            *queue += 1;
            assert_eq!(*queue, 1, "in the queue twice");
        }

        fn make_true(&self, which: usize) {
            self.came[which].store(true, Ordering::SeqCst);
            if self.turn.wake() {
                self.enqueue();
            }
        }

        /// What the task does in one turn: sleeps until the first has come, yields, sleeps until
        /// the second has come. `at` is where it is; true if it has ended.
        fn task(&self, at: &Mutex<usize>) {
            let mut at = at.lock().unwrap();
            loop {
                match *at {
                    1 => {
                        *at = 2;
                        return;
                    }
                    3 => {
                        self.over.store(true, Ordering::SeqCst);
                        self.turn.end();
                        return;
                    }
                    step => {
                        let which = step / 2;
                        self.turn.about_to_sleep();
                        if !self.came[which].load(Ordering::SeqCst) {
                            return;
                        }
                        self.turn.stay();
                        *at += 1;
                    }
                }
            }
        }
    }

    fn cpu(world: &World, at: &Mutex<usize>) {
        while !world.over.load(Ordering::SeqCst) {
            let taken = {
                let mut queue = world.queue.lock().unwrap();
                let taken = *queue > 0;
                *queue = 0;
                taken
            };
            if !taken {
                shuttle::thread::yield_now();
                continue;
            }
            assert_eq!(
                world.running.fetch_add(1, Ordering::SeqCst),
                0,
                "runs twice"
            );
            world.turn.run();
            world.task(at);
            world.running.fetch_sub(1, Ordering::SeqCst);
            if world.turn.left() == Left::Queue {
                world.enqueue();
            }
        }
    }

    #[test]
    fn no_wake_is_lost_and_nobody_runs_twice() {
        // A task that was forgotten would leave the CPUs looking for it for ever: more steps than
        // any schedule that ends has.
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(20_000);
        let scheduler = shuttle::scheduler::RandomScheduler::new(SCHEDULES * times());
        shuttle::Runner::new(scheduler, config).run(|| {
            let world = Arc::new(World {
                turn: Turn::new(),
                queue: Mutex::new(0),
                running: AtomicUsize::new(0),
                came: [AtomicBool::new(false), AtomicBool::new(false)],
                over: AtomicBool::new(false),
            });
            let at = Arc::new(Mutex::new(0));
            world.turn.begin();
            world.enqueue();
            let mut threads = Vec::new();
            for _ in 0..2 {
                let (world, at) = (world.clone(), at.clone());
                threads.push(shuttle::thread::spawn(move || cpu(&world, &at)));
            }
            for which in 0..2 {
                let world = world.clone();
                threads.push(shuttle::thread::spawn(move || world.make_true(which)));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(*at.lock().unwrap(), 3);
        });
    }
}
