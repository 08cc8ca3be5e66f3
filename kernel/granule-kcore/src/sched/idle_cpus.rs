//! The set of CPUs that wait for an interrupt because no task is ready, and the choice of one to wake.
//!
//! A CPU marks itself ([`IdleCpus::mark`]) and then checks the queue. A waker puts a task into the queue,
//! then picks a CPU ([`IdleCpus::pick`]) and sends it an interrupt. In either order one sees the other. A
//! CPU is picked at most once until it marks itself again. But the picked CPU may already be on its way to
//! an earlier task. So a CPU that takes a task and sees more in the queue picks another CPU. No task then
//! stays in the queue while a CPU waits.

use crate::cpus::MOST_CPUS;
#[cfg(not(test))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU64, Ordering, fence};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = MOST_CPUS.div_ceil(BITS);

/// A bit for each CPU that may wait.
#[derive(Debug, Default)]
pub struct IdleCpus {
    words: [AtomicU64; WORDS],
    /// The index of the last word that ever had a bit: a machine with few CPUs looks at one word.
    last: AtomicU64,
}

impl IdleCpus {
    /// No CPU waits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            last: AtomicU64::new(0),
        }
    }

    /// CPU `number` is about to check the queue, and waits if the queue is empty.
    pub fn mark(&self, number: usize) {
        let index = number / BITS;
        // Before the bit, so that the fences order this as they order the bit.
        if index as u64 > self.last.load(Ordering::SeqCst) {
            self.last.fetch_max(index as u64, Ordering::SeqCst);
        }
        if let Some(word) = self.words.get(index) {
            word.fetch_or(1 << (number % BITS), Ordering::SeqCst);
        }
        // Orders the mark before the check of the queue; pairs with the fence in `pick`.
        fence(Ordering::SeqCst);
    }

    /// CPU `number` no longer waits, or did not wait at all.
    pub fn unmark(&self, number: usize) {
        if let Some(word) = self.words.get(number / BITS) {
            word.fetch_and(!(1 << (number % BITS)), Ordering::SeqCst);
        }
    }

    /// The CPU to wake for a task that the caller put into the queue or saw there. `None` if no CPU
    /// waits: then each CPU will check the queue.
    #[must_use]
    pub fn pick(&self) -> Option<usize> {
        // Either a CPU that checks the queue after its mark sees the task, or this CPU sees the mark.
        fence(Ordering::SeqCst);
        let last = self.last.load(Ordering::SeqCst) as usize;
        for (index, word) in self.words.iter().enumerate().take(last + 1) {
            loop {
                let idle = word.load(Ordering::SeqCst);
                if idle == 0 {
                    break;
                }
                let bit = idle.trailing_zeros();
                // Only one waker gets this CPU: the next task needs another.
                if word.fetch_and(!(1 << bit), Ordering::SeqCst) >> bit & 1 != 0 {
                    return Some(index * BITS + bit as usize);
                }
            }
        }
        None
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
        /// Whether an interrupt is pending, for each CPU.
        interrupts: [bool; CPUS],
    }

    struct TestCpus {
        idle: IdleCpus,
        shared: Mutex<Shared>,
        /// Signals every change of `shared`.
        changed: Condvar,
    }

    impl TestCpus {
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

        /// The loop of a CPU without a task, until it gets a task to keep.
        fn cpu(&self, number: usize) {
            loop {
                self.idle.mark(number);
                if self.shared.lock().unwrap().queue == 0 {
                    self.wait(|shared| std::mem::take(&mut shared.interrupts[number]));
                }
                self.idle.unmark(number);
                // Another CPU's job comes first; then this CPU marks itself again.
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
                // The task keeps its CPU until each CPU has one.
                self.wait(|shared| shared.running == CPUS);
                return;
            }
        }
    }

    /// As many tasks as CPUs, made ready by two independent wakers: all must run at once. A task left in
    /// the queue while a CPU waits would be a deadlock, which shuttle finds.
    #[test]
    fn no_task_is_left_beside_a_cpu_that_waits() {
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(20_000);
        let scheduler = shuttle::scheduler::RandomScheduler::new(SCHEDULES * times());
        shuttle::Runner::new(scheduler, config).run(|| {
            let cpus = Arc::new(TestCpus {
                idle: IdleCpus::new(),
                shared: Mutex::new(Shared::default()),
                changed: Condvar::new(),
            });
            let mut threads = Vec::new();
            for number in 0..CPUS {
                let cpus = cpus.clone();
                threads.push(shuttle::thread::spawn(move || cpus.cpu(number)));
            }
            for tasks in [1, CPUS - 1] {
                let cpus = cpus.clone();
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..tasks {
                        cpus.enqueue();
                    }
                }));
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn each_waiting_cpu_is_picked_once() {
        shuttle::check_random(
            || {
                let idle = IdleCpus::new();
                for number in [5, 0, 63, 5, MOST_CPUS - 1, 64] {
                    idle.mark(number);
                }
                idle.unmark(0);
                for expected in [Some(5), Some(63), Some(64), Some(MOST_CPUS - 1), None] {
                    assert_eq!(idle.pick(), expected);
                }
            },
            1,
        );
    }
}
