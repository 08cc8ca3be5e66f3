//! Which CPUs wait for an interrupt because no task is ready, and which of them is woken for one.
//!
//! A CPU says that it is about to wait ([`Idle::about_to_wait`]) and looks at the queue then; who puts
//! a task into the queue picks a CPU afterwards ([`Idle::pick`]) and sends it an interrupt. Whatever
//! the order, one sees the other. A CPU is picked once until it says so again, but it may have seen a
//! task by itself and be on its way to that one when it is picked for the next: so who takes a task out
//! of the queue and sees that there are more picks a CPU, too. Then no task is left beside a CPU that
//! waits. Pure; every order of steps is tried by shuttle.

#[cfg(not(test))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU64, Ordering, fence};

/// A bit for each CPU that may wait.
#[derive(Debug)]
pub(crate) struct Idle(AtomicU64);

impl Idle {
    /// None waits.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// CPU `number` is going to look at the queue, and to wait if nothing is in it.
    pub(crate) fn about_to_wait(&self, number: usize) {
        self.0.fetch_or(1 << number, Ordering::SeqCst);
        // Before the look: see `pick`.
        fence(Ordering::SeqCst);
    }

    /// It does not wait any more, or did not.
    pub(crate) fn goes_on(&self, number: usize) {
        self.0.fetch_and(!(1 << number), Ordering::SeqCst);
    }

    /// A task was put into the queue before this call, or seen there: the CPU to wake for it. `None`
    /// if none waits: each of them will look at the queue.
    pub(crate) fn pick(&self) -> Option<usize> {
        // What is in the queue is seen by who looks after it said that it waits, or we see that.
        fence(Ordering::SeqCst);
        loop {
            let idle = self.0.load(Ordering::SeqCst);
            let number = (idle != 0).then(|| idle.trailing_zeros())?;
            // Only one wakes it: the next task is another CPU's.
            if self.0.fetch_and(!(1 << number), Ordering::SeqCst) >> number & 1 != 0 {
                return Some(number as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::cases::times;
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::sync::{Arc, Condvar, Mutex};

    const SCHEDULES: usize = 3_000;
    const CPUS: usize = 3;

    #[derive(Default)]
    struct Shared {
        /// Tasks that are ready.
        queue: usize,
        /// Tasks that have a CPU.
        running: usize,
        /// An interrupt is pending for this CPU.
        interrupts: [bool; CPUS],
    }

    struct World {
        idle: Idle,
        shared: Mutex<Shared>,
        /// For whoever waits for something in `shared`.
        changed: Condvar,
    }

    impl World {
        fn wait(&self, until: impl Fn(&mut Shared) -> bool) {
            let mut shared = self.shared.lock().unwrap();
            while !until(&mut shared) {
                shared = self.changed.wait(shared).unwrap();
            }
        }

        fn wake_one(&self) {
            if let Some(number) = self.idle.pick() {
                self.shared.lock().unwrap().interrupts[number] = true;
                self.changed.notify_all();
            }
        }

        fn enqueue(&self) {
            self.shared.lock().unwrap().queue += 1;
            self.wake_one();
        }

        /// The loop of a CPU without a task, until it has one that it keeps.
        fn cpu(&self, number: usize) {
            loop {
                self.idle.about_to_wait(number);
                if self.shared.lock().unwrap().queue == 0 {
                    self.wait(|shared| std::mem::take(&mut shared.interrupts[number]));
                }
                self.idle.goes_on(number);
                // A job of another CPU's comes first, and then it is about to wait again.
                if thread_rng().gen_bool(0.3) {
                    continue;
                }
                let more = {
                    let mut shared = self.shared.lock().unwrap();
                    if shared.queue == 0 {
                        continue;
                    }
                    shared.queue -= 1;
                    shared.running += 1;
                    shared.queue > 0
                };
                self.changed.notify_all();
                if more {
                    self.wake_one();
                }
                // Its task does not leave it before each CPU has one.
                self.wait(|shared| shared.running == CPUS);
                return;
            }
        }
    }

    /// As many tasks as CPUs, made ready by two who know nothing of each other: all run at once. A task
    /// that was left beside a CPU that waits would be a deadlock, which shuttle finds.
    #[test]
    fn no_task_is_left_beside_a_cpu_that_waits() {
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(20_000);
        let scheduler = shuttle::scheduler::RandomScheduler::new(SCHEDULES * times());
        shuttle::Runner::new(scheduler, config).run(|| {
            let world = Arc::new(World {
                idle: Idle::new(),
                shared: Mutex::new(Shared::default()),
                changed: Condvar::new(),
            });
            let mut threads = Vec::new();
            for number in 0..CPUS {
                let world = world.clone();
                threads.push(shuttle::thread::spawn(move || world.cpu(number)));
            }
            for tasks in [1, CPUS - 1] {
                let world = world.clone();
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..tasks {
                        world.enqueue();
                    }
                }));
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn each_that_waits_is_picked_once() {
        shuttle::check_random(
            || {
                let idle = Idle::new();
                for number in [5, 0, 63, 5] {
                    idle.about_to_wait(number);
                }
                idle.goes_on(0);
                assert_eq!(
                    [idle.pick(), idle.pick(), idle.pick()],
                    [Some(5), Some(63), None]
                );
            },
            1,
        );
    }
}
