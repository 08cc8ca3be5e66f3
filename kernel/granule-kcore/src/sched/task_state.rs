//! The scheduling state of a task, in one word: the task runs, waits in the queue, or sleeps.
//!
//! Before it sleeps a task announces it ([`TaskState::prepare_to_sleep`]), checks its condition, and leaves
//! its CPU only if the condition is false. A waker makes the condition true and then calls
//! [`TaskState::wake`]. In either order the sleeper sees the condition or the waker sees the sleeper. If a
//! task is woken before it has left its CPU, that CPU requeues it, never the waker. So no CPU runs the task
//! before its registers are saved, and the task is queued once.

#[cfg(not(test))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU32, Ordering, fence};

/// The task has not begun, or has ended.
const NONE: u32 = 0;
/// The task waits in the queue.
const READY: u32 = 1;
/// A CPU runs the task.
const RUNNING: u32 = 2;
/// A CPU runs the task, which is about to sleep.
const PREPARING: u32 = 3;
/// As [`PREPARING`], but the task was woken meanwhile.
const WOKEN: u32 = 4;
/// The task sleeps.
const ASLEEP: u32 = 5;

/// The state of one task.
#[derive(Debug, Default)]
pub struct TaskState(AtomicU32);

/// The next step of the CPU that has switched a task out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchedOut {
    /// Append the task to the queue.
    Requeue,
    /// Nothing: the waker will queue the task.
    Sleeps,
    /// Bury the task.
    Ended,
}

impl TaskState {
    /// The state of a task that has not begun.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }

    /// The task is about to be queued for the first time.
    pub fn begin(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// A CPU dequeued the task and runs it.
    pub fn set_running(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Called by the task itself, before it checks whether it must sleep.
    pub fn prepare_to_sleep(&self) {
        self.0.store(PREPARING, Ordering::Relaxed);
        // Orders the announcement before the check; pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Called by the task itself: it does not sleep after all.
    pub fn cancel_sleep(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Called by the task itself: it never runs again once it has left its CPU.
    pub fn end(&self) {
        self.0.store(NONE, Ordering::Relaxed);
    }

    /// Called by the CPU that has switched the task out and saved its registers.
    #[must_use]
    pub fn switched_out(&self) -> SwitchedOut {
        let old = self.0.load(Ordering::Relaxed);
        match old {
            NONE => return SwitchedOut::Ended,
            PREPARING => {
                let slept = self.0.compare_exchange(
                    PREPARING,
                    ASLEEP,
                    // The registers are saved before a waker makes the task run.
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if slept.is_ok() {
                    return SwitchedOut::Sleeps;
                }
            }
            _ => {}
        }
        self.0.store(READY, Ordering::Release);
        SwitchedOut::Requeue
    }

    /// Wakes the task, whose condition may be true. Returns whether the caller must queue it.
    #[must_use]
    pub fn wake(&self) -> bool {
        // Either the sleeper's check sees the condition, or this call sees the announcement.
        fence(Ordering::SeqCst);
        loop {
            let old = self.0.load(Ordering::Relaxed);
            let new = match old {
                ASLEEP => READY,
                PREPARING => WOKEN,
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

    /// A task's state, the queue, and the conditions that the task waits for.
    struct TestTask {
        state: TaskState,
        queue: Mutex<usize>,
        running: AtomicUsize,
        came: [AtomicBool; 2],
        over: AtomicBool,
    }

    impl TestTask {
        fn enqueue(&self) {
            let mut queue = self.queue.lock().unwrap();
            *queue += 1;
            assert_eq!(*queue, 1, "in the queue twice");
        }

        fn make_true(&self, which: usize) {
            self.came[which].store(true, Ordering::SeqCst);
            if self.state.wake() {
                self.enqueue();
            }
        }

        /// Runs the task until it leaves its CPU: it sleeps until the first condition, yields, then sleeps
        /// until the second. `at` is its progress; true if it has ended.
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
                        self.state.end();
                        return;
                    }
                    step => {
                        let which = step / 2;
                        self.state.prepare_to_sleep();
                        if !self.came[which].load(Ordering::SeqCst) {
                            return;
                        }
                        self.state.cancel_sleep();
                        *at += 1;
                    }
                }
            }
        }
    }

    fn cpu(test: &TestTask, at: &Mutex<usize>) {
        while !test.over.load(Ordering::SeqCst) {
            let queued = std::mem::take(&mut *test.queue.lock().unwrap());
            if queued == 0 {
                shuttle::thread::yield_now();
                continue;
            }
            let running = test.running.fetch_add(1, Ordering::SeqCst);
            assert_eq!(running, 0, "two CPUs run the task");
            test.state.set_running();
            test.task(at);
            test.running.fetch_sub(1, Ordering::SeqCst);
            if test.state.switched_out() == SwitchedOut::Requeue {
                test.enqueue();
            }
        }
    }

    #[test]
    fn no_wake_is_lost_and_no_task_runs_twice() {
        // A forgotten task would keep the CPUs searching. No schedule that ends has so many steps.
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(20_000);
        let scheduler = shuttle::scheduler::RandomScheduler::new(SCHEDULES * times());
        shuttle::Runner::new(scheduler, config).run(|| {
            let test = Arc::new(TestTask {
                state: TaskState::new(),
                queue: Mutex::new(0),
                running: AtomicUsize::new(0),
                came: [AtomicBool::new(false), AtomicBool::new(false)],
                over: AtomicBool::new(false),
            });
            let at = Arc::new(Mutex::new(0));
            test.state.begin();
            test.enqueue();
            let mut threads = Vec::new();
            for _ in 0..2 {
                let (test, at) = (test.clone(), at.clone());
                threads.push(shuttle::thread::spawn(move || cpu(&test, &at)));
            }
            for which in 0..2 {
                let test = test.clone();
                threads.push(shuttle::thread::spawn(move || test.make_true(which)));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(*at.lock().unwrap(), 3);
        });
    }
}
