//! Several jobs at a time, in order, each heard of as it ends. What a job is, and what its
//! result means, is its caller's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Boots at a time, and whatever else keeps one core busy: as many as there are cores.
pub fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What a job came to.
#[derive(Debug)]
pub struct Done<T> {
    pub job: usize,
    pub result: T,
    pub time: Duration,
}

/// Runs the jobs `0..count`, `parallel` at a time, `each` hearing every result as it comes.
/// Starts no further one once `each` returns false or `go_on` does.
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
            // Jobs under way are still heard after `each` asked to stop.
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
