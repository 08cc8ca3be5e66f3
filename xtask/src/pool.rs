//! Runs several jobs at a time, started in order, and reports each as it ends. Jobs and the meaning of
//! their results belong to the caller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The number of parallel boots and of other jobs that keep one core busy: the number of cores.
pub fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The result of a job.
#[derive(Debug)]
pub struct Done<T> {
    pub job: usize,
    pub result: T,
    pub time: Duration,
}

/// Runs the jobs `0..count`, `parallel` at a time; `each` receives every result as it comes. No further job
/// starts once `each` or `go_on` returns false.
pub fn run<T: Send>(
    count: usize,
    parallel: usize,
    go_on: impl Fn() -> bool + Sync,
    work: impl Fn(usize) -> T + Sync,
    mut each: impl FnMut(Done<T>) -> bool,
) {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..parallel {
            let (send, next, work, go_on) = (send.clone(), &next, &work, &go_on);
            scope.spawn(move || {
                while go_on() {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= count {
                        break;
                    }
                    let start = Instant::now();
                    let result = work(job);
                    let time = start.elapsed();
                    if send.send(Done { job, result, time }).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut wanted = true;
        for done in receive {
            // Results of running jobs are still reported after `each` asked to stop.
            if !each(done) && wanted {
                wanted = false;
                next.store(count, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once() {
        let mut seen = vec![0; 100];
        run(
            100,
            parallel(),
            || true,
            |job| job == 7,
            |done| {
                seen[done.job] += 1;
                assert_eq!(done.result, done.job == 7);
                true
            },
        );
        assert!(seen.iter().all(|n| *n == 1));
    }

    #[test]
    fn both_ways_to_stop_are_kept() {
        let mut heard = 0;
        run(
            100,
            parallel(),
            || false,
            |_| (),
            |_| {
                heard += 1;
                true
            },
        );
        assert_eq!(heard, 0);
        run(
            1000,
            parallel(),
            || true,
            |_| std::thread::sleep(Duration::from_millis(2)),
            |_| {
                heard += 1;
                false
            },
        );
        assert!((1..500).contains(&heard), "{heard}");
    }
}
