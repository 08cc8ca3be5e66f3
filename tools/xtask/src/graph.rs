//! Runs jobs that need others on a fixed number of slots: of those that may begin, the one first after which most
//! is left to do. What a job does and what its result means belong to the caller.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The number of jobs at a time that keep one core busy each: the cores, or the value of
/// `GRANULE_JOBS`.
pub fn parallel() -> usize {
    let given = std::env::var("GRANULE_JOBS").ok();
    let given = given.and_then(|text| text.parse().ok()).filter(|&n| n > 0);
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The jobs that must have ended well before it, by their places.
    pub needs: Vec<usize>,
    /// A resource that no other job uses meanwhile, such as a folder that cargo locks.
    pub lock: Option<&'static str>,
    /// Whether it takes all slots.
    pub alone: bool,
    /// Its time on an idle machine.
    pub expected: Duration,
}

#[derive(Debug)]
pub struct Done<T> {
    pub job: usize,
    pub result: T,
    pub time: Duration,
}

#[derive(Default)]
struct State {
    waiting: BTreeSet<usize>,
    running: BTreeSet<usize>,
    ended_well: BTreeSet<usize>,
    /// A thread panicked: nothing else begins.
    is_broken: bool,
}

/// Ends the run if the thread that holds it panics: the other threads would wait for its job for
/// ever.
struct Guard<'a>(&'a Mutex<State>, &'a Condvar);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.0).is_broken = true;
            self.1.notify_all();
        }
    }
}

/// Runs the jobs on `slots` slots; `each` receives every result as it comes, and returns whether the job ended well.
/// Returns the jobs that were not run, because one that they need did not end well or `go_on` returned false.
pub fn run<T: Send>(
    jobs: &[Job],
    slots: usize,
    go_on: impl Fn() -> bool + Sync,
    work: impl Fn(usize) -> T + Sync,
    mut each: impl FnMut(Done<T>) -> bool,
) -> Vec<usize> {
    let order = order(jobs);
    let state = Mutex::new(State {
        waiting: (0..jobs.len()).collect(),
        ..State::default()
    });
    let changed = Condvar::new();
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        let _guard = Guard(&state, &changed);
        for _ in 0..slots {
            let (send, state, changed, order) = (send.clone(), &state, &changed, &order);
            let (go_on, work) = (&go_on, &work);
            scope.spawn(move || {
                let _guard = Guard(state, changed);
                let mut last = None;
                while let Some(job) = next(jobs, order, state, changed, go_on, last) {
                    last = Some(job);
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
        for done in receive {
            let job = done.job;
            let well = each(done);
            let mut state = lock(&state);
            state.running.remove(&job);
            if well {
                state.ended_well.insert(job);
            }
            changed.notify_all();
        }
    });
    let state = lock(&state);
    state.waiting.iter().copied().collect()
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The jobs by the time from their beginning to the end of the last one that needs them, the longest first.
fn order(jobs: &[Job]) -> Vec<usize> {
    let mut left: Vec<Duration> = jobs.iter().map(|job| job.expected).collect();
    // As often as the longest chain has jobs; a circle, in which no job ever begins, ends it too.
    for _ in 0..jobs.len() {
        let before = left.clone();
        for (at, job) in jobs.iter().enumerate() {
            for &needed in &job.needs {
                left[needed] = left[needed].max(jobs[needed].expected + before[at]);
            }
        }
        if left == before {
            break;
        }
    }
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(left[at]));
    order
}

/// Waits for a job that may begin, once the result of the `last` one was taken; none once no further one ever may.
fn next(
    jobs: &[Job],
    order: &[usize],
    state: &Mutex<State>,
    changed: &Condvar,
    go_on: &impl Fn() -> bool,
    last: Option<usize>,
) -> Option<usize> {
    let mut state = lock(state);
    loop {
        if !go_on() || state.is_broken {
            return None;
        }
        let ready = |at: &&usize| {
            let needs = &jobs[**at].needs;
            state.waiting.contains(*at) && needs.iter().all(|one| state.ended_well.contains(one))
        };
        let is_free = |at: usize| {
            let mut beside = state.running.iter().map(|&one| &jobs[one]);
            let job = &jobs[at];
            beside
                .all(|one| !job.alone && !one.alone && (job.lock.is_none() || job.lock != one.lock))
        };
        let mut ready = order.iter().filter(ready).peekable();
        if ready.peek().is_none() && state.running.is_empty() {
            changed.notify_all();
            return None;
        }
        let taken = last.is_none_or(|last| !state.running.contains(&last));
        // One that needs the machine for itself is not overtaken for ever.
        let mut ready = ready.take_while(|&&at| is_free(at) || !jobs[at].alone);
        if let Some(&job) = ready.find(|&&at| taken && is_free(at)) {
            drop(ready);
            state.waiting.remove(&job);
            state.running.insert(job);
            return Some(job);
        }
        drop(ready);
        // The time is for `go_on`, which nothing announces.
        let waited = changed.wait_timeout(state, Duration::from_millis(200));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Runs `count` jobs that need no other, in order of their numbers, on all slots.
pub fn all<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync, mut each: impl FnMut(Done<T>)) {
    let jobs = vec![Job::default(); count];
    run(
        &jobs,
        parallel(),
        || true,
        work,
        |done| {
            each(done);
            true
        },
    );
}

/// The results of `count` jobs that need no other, in order of their numbers.
pub fn map<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut ended = Vec::new();
    all(count, work, |done| ended.push(done));
    ended.sort_by_key(|done| done.job);
    ended.into_iter().map(|done| done.result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn job(needs: &[usize], seconds: u64) -> Job {
        Job {
            needs: needs.to_vec(),
            expected: Duration::from_secs(seconds),
            ..Job::default()
        }
    }

    /// The order in which one slot runs them, and what was not run.
    fn ran(jobs: &[Job], fails: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut ran = Vec::new();
        let left = run(
            jobs,
            1,
            || true,
            |at| at,
            |done| {
                ran.push(done.result);
                !fails.contains(&done.job)
            },
        );
        (ran, left)
    }

    #[test]
    fn the_longest_way_to_the_end_begins_first_and_needs_are_kept() {
        let jobs = [job(&[], 5), job(&[], 1), job(&[1], 9), job(&[0, 2], 1)];
        assert_eq!(ran(&jobs, &[]), (vec![1, 2, 0, 3], vec![]));
        // What needs a job that failed is not run, and nothing else is left out.
        assert_eq!(ran(&jobs, &[1]), (vec![1, 0], vec![2, 3]));
        let circle = [job(&[1], 1), job(&[0], 1), job(&[], 1)];
        assert_eq!(ran(&circle, &[]), (vec![2], vec![0, 1]));
        assert!(map(0, |at| at).is_empty());
        assert!(map(9, |at| at).into_iter().eq(0..9));
    }

    #[test]
    fn locks_and_the_machine_are_had_by_one() {
        let mut jobs = vec![job(&[], 1); 40];
        for (at, job) in jobs.iter_mut().enumerate() {
            job.alone = at % 7 == 0;
            job.lock = (at % 3 == 0).then_some("folder");
        }
        let (running, locked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let most = AtomicUsize::new(0);
        let left = run(
            &jobs,
            4,
            || true,
            |at| {
                let beside = running.fetch_add(1, SeqCst);
                let has = usize::from(jobs[at].lock.is_some());
                assert!(locked.fetch_add(has, SeqCst) + has <= 1 || has == 0);
                std::thread::sleep(Duration::from_millis(2));
                assert!(!jobs[at].alone || (beside == 0 && running.load(SeqCst) == 1));
                most.fetch_max(running.load(SeqCst), SeqCst);
                locked.fetch_sub(has, SeqCst);
                running.fetch_sub(1, SeqCst);
            },
            |_| true,
        );
        assert!(left.is_empty() && most.load(SeqCst) > 1);
    }

    #[test]
    fn a_panic_ends_the_run() {
        for in_work in [false, true] {
            let panics = |wanted: bool| assert!(wanted != in_work, "on purpose");
            let jobs = vec![Job::default(); 9];
            let ran = std::panic::catch_unwind(|| {
                run(
                    &jobs,
                    2,
                    || true,
                    |_| panics(true),
                    |_| {
                        panics(false);
                        true
                    },
                )
            });
            assert!(ran.is_err());
        }
    }

    #[test]
    fn no_further_job_begins_once_it_must_not_go_on() {
        let begun = AtomicUsize::new(0);
        let jobs = vec![Job::default(); 100];
        let left = run(
            &jobs,
            2,
            || begun.load(SeqCst) < 5,
            |_| begun.fetch_add(1, SeqCst),
            |_| true,
        );
        assert_eq!(left.len(), 100 - begun.load(SeqCst));
        assert!((5..8).contains(&begun.load(SeqCst)));
    }
}
