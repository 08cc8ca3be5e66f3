//! The repetition of live failures: one that chance decides is flaky, any other fails the run.

use super::named;
use crate::history::{Flaky, StepRecord};
use crate::results::{Failure, Results};
use crate::steps::Step;

/// Repetitions of a live failure, and the failures among them that fail the run.
pub(super) const REPEATED: usize = 3;
const ENOUGH: usize = 2;

/// Repeats the live failures alone, three times each. A failure that repeats twice, or of an exact
/// test, fails the run.
pub(super) fn repeat(
    records: &[StepRecord],
    again: impl Fn(&Step, &[String]) -> Results,
) -> (Vec<Flaky>, Vec<Failure>) {
    let (mut flaky, mut failed) = (Vec::new(), Vec::new());
    for record in records {
        let all = record.results.failed.iter();
        let (live, exact): (Vec<_>, Vec<_>) = all.partition(|it| it.live);
        failed.extend(exact.into_iter().cloned());
        let Some(step) = named(&record.name).filter(|_| !live.is_empty()) else {
            continue;
        };
        let names: Vec<_> = live.iter().map(|one| one.name.clone()).collect();
        let repeated: Vec<_> = (1..=REPEATED)
            .map(|time| {
                println!("      again, {time} of {REPEATED}: {}", names.join(", "));
                again(step, &names)
            })
            .collect();
        for one in live {
            let again = repeated
                .iter()
                .filter(|results| has_failed(results, step.name, &one.name));
            let again = again.count();
            if again >= ENOUGH {
                failed.push(one.clone());
            } else {
                flaky.push(Flaky {
                    name: one.name.clone(),
                    failed: 1 + again,
                });
            }
        }
    }
    (flaky, failed)
}

/// Whether a repetition failed in that test or check, or before it came to it: a step that failed as a whole. Another
/// failure of the same step does not count.
fn has_failed(results: &Results, step: &str, name: &str) -> bool {
    let mut failed = results.failed.iter();
    failed.any(|one| one.name == name || one.name == step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_failures_are_repeated_and_exact_ones_are_not() {
        let failure = |name: &str, live| Failure {
            name: name.into(),
            live,
            why: "x".into(),
        };
        let failed = [("once", true), ("twice more", true), ("exact", false)];
        let failed = failed.map(|(name, live)| failure(name, live));
        let record = |name: &str, failed: &[Failure]| StepRecord {
            name: name.into(),
            results: Results {
                failed: failed.to_vec(),
                ..Results::default()
            },
            ..StepRecord::default()
        };
        let times = std::cell::Cell::new(0);
        let (flaky, failed) = repeat(&[record("host-tests-1", &failed)], |step, names| {
            assert_eq!((step.name, names.len()), ("host-tests-1", 2));
            times.set(times.get() + 1);
            let mut results = Results::default();
            if times.get() < 3 {
                results.failed.push(failure("twice more", true));
            }
            results
        });
        assert_eq!(times.get(), REPEATED);
        assert_eq!(flaky.len(), 1);
        assert_eq!((flaky[0].name.as_str(), flaky[0].failed), ("once", 1));
        let names: Vec<_> = failed.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["exact", "twice more"]);
        // A step that fails as a whole decides nothing in a test's favour.
        let whole =
            |step: &Step, _: &[String]| Results::of(step.name, true, Err(anyhow::anyhow!("x")));
        let peers = [record("peers", &[failure("a", true)])];
        let (flaky, failed) = repeat(&peers, whole);
        assert!(flaky.is_empty() && failed.len() == 1);
        // Another check of the same step decides nothing against it.
        let (flaky, failed) = repeat(&peers, |_, _| Results {
            failed: vec![failure("b", true)],
            ..Results::default()
        });
        assert!(flaky[0].name == "a" && flaky[0].failed == 1 && failed.is_empty());
    }
}
