//! The scheduling state of a task, in one word: the task runs, waits for its turn, or sleeps.
//!
//! Before it sleeps a task announces it ([`Turn::about_to_sleep`]), checks its condition, and leaves its
//! CPU only if the condition is false. A waker makes the condition true and then calls [`Turn::wake`].
//! In either order the sleeper sees the condition or the waker sees the sleeper. If a task is woken
//! before it has left its CPU, that CPU requeues it, never the waker. So no CPU runs the task before its
//! registers are saved, and the task is queued once. Pure; shuttle tests the orders of steps.

#[cfg(not(test))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU32, Ordering, fence};

/// No turn: the task has not begun, or has ended.
const NONE: u32 = 0;
/// The task waits in the queue.
const READY: u32 = 1;
/// A CPU runs the task.
const RUNNING: u32 = 2;
/// A CPU runs the task, which is about to sleep.
const PARKING: u32 = 3;
/// As [`PARKING`], but the task was woken meanwhile.
const WOKEN: u32 = 4;
/// The task sleeps.
const ASLEEP: u32 = 5;

/// The state of one task.
#[derive(Debug)]
pub(crate) struct Turn(AtomicU32);

/// The next step of the CPU that a task has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Append the task to the queue.
    Queue,
    /// Nothing: the waker will queue the task.
    Sleeps,
    /// Bury the task.
    Ended,
}

impl Turn {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }

    /// The task is about to be queued for the first time.
    pub(crate) fn begin(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// A CPU dequeued the task and runs it.
    pub(crate) fn run(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Called by the task itself, before it checks whether it must sleep.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(PARKING, Ordering::Relaxed);
        // Orders the announcement before the check; pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Called by the task itself: it does not sleep after all.
    pub(crate) fn stay(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Called by the task itself: it never runs again once it has left its CPU.
    pub(crate) fn end(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    /// Called by the CPU that the task has left, with the registers saved.
    pub(crate) fn left(&self) -> Left {
        let old = self.0.load(Ordering::Relaxed);
        match old {
            NONE => return Left::Ended,
            PARKING => {
                let slept = self.0.compare_exchange(
                    PARKING,
                    ASLEEP,
                    // The registers are saved before a waker lets the task run.
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

    /// Wakes the task, after its condition may have come true. Returns whether the caller must queue the
    /// task.
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        // Either the sleeper's check after its announcement sees the condition, or this call sees the
        // announcement.
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

    /// A task's turn, the queue, and the conditions that the task waits for.
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

        /// One turn of the task: it sleeps until the first condition, yields, then sleeps until the
        /// second. `at` is its progress; true if it has ended.
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
        // A forgotten task would keep the CPUs searching for ever. The limit is more steps than any
        // terminating schedule has.
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
