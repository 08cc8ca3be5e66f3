//! Runs the cases of the QEMU matrix, several at a time, and says what each came to.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::boot;
use crate::image::Image;
use crate::matrix::Case;

/// Boots at a time. A guest with one CPU is one busy thread; the project's machines have
/// two cores.
const PARALLEL: usize = 2;

/// What a case came to: nothing wrong, or one line saying what.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) case: usize,
    pub(crate) wrong: Option<String>,
    pub(crate) time: Duration,
}

/// Runs the cases in order, `each` hearing every verdict as it comes. Starts no further
/// case once `each` returns false or the deadline has passed.
pub(crate) fn run(
    cases: &[Case],
    granule: &Path,
    image: &Image,
    deadline: Option<Instant>,
    each: impl FnMut(Verdict) -> bool,
) {
    run_with(
        cases.len(),
        deadline,
        |case| verdict(&cases[case], granule, image),
        each,
    );
}

fn verdict(case: &Case, granule: &Path, image: &Image) -> Option<String> {
    let boot = match boot::boot(granule, &image.path, &case.arguments()) {
        Ok(boot) => boot,
        Err(error) => return Some(format!("{error:#}")),
    };
    if let Some(failure) = boot.failure() {
        return Some(failure);
    }
    let wrong = boot
        .record
        .map(|record| case.mismatches(&record, &image.sha256));
    wrong.map_or_else(Some, |lines| (!lines.is_empty()).then(|| lines.join("; ")))
}

fn run_with(
    count: usize,
    deadline: Option<Instant>,
    judge: impl Fn(usize) -> Option<String> + Sync,
    mut each: impl FnMut(Verdict) -> bool,
) {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            let (send, next, judge) = (send.clone(), &next, &judge);
            scope.spawn(move || {
                while deadline.is_none_or(|end| Instant::now() < end) {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= count {
                        break;
                    }
                    let start = Instant::now();
                    let wrong = judge(case);
                    if send
                        .send(Verdict {
                            case,
                            wrong,
                            time: start.elapsed(),
                        })
                        .is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut go_on = true;
        for verdict in receive {
            // Boots under way are still heard after `each` asked to stop.
            if !each(verdict) && go_on {
                go_on = false;
                next.store(count, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_judged_once() {
        let mut seen = vec![0; 100];
        run_with(
            100,
            None,
            |case| (case == 7).then(|| "wrong".to_owned()),
            |verdict| {
                seen[verdict.case] += 1;
                assert_eq!(verdict.wrong.is_some(), verdict.case == 7);
                true
            },
        );
        assert!(seen.iter().all(|n| *n == 1));
    }

    #[test]
    fn deadline_and_stop_are_kept() {
        let mut heard = 0;
        let past = Instant::now().checked_sub(Duration::from_secs(1));
        run_with(100, past, |_| None, |_| true);
        run_with(
            1000,
            None,
            |_| {
                std::thread::sleep(Duration::from_millis(2));
                None
            },
            |_| {
                heard += 1;
                false
            },
        );
        assert!(heard < 500, "{heard}");
    }
}
