//! The rounds: every subject beside the floor, one after the other, over and over.
//!
//! In each round each subject has its turn, in an order that moves by one from round to round, and
//! just before it the floor does the same job in the same memory. A ratio is a subject's time over
//! that floor's; its median over all rounds is what counts. Round 0 is not timed: in it each leaf
//! of each tree is looked up through the subject's own query, after each step. In the other rounds
//! a sample of leaves is looked up.

use crate::clock;
use crate::stats::Spread;
use anyhow::{Context, Result, bail};
use granule_bench::arena::Arena;
use granule_bench::job::Job;
use granule_bench::subjects::Subject;
use granule_bench::turn::{self, Measured};

/// The fewest rounds that decide a goal.
pub(crate) const ROUNDS: u16 = 31;

/// Nanoseconds for each of the steps.
type Times = Measured;

/// One subject at one job.
pub(crate) struct Row {
    pub(crate) subject: &'static str,
    /// The tables of all trees, as taken from the arena.
    pub(crate) tables: u64,
    /// Nanoseconds a leaf, for each step.
    pub(crate) nanoseconds: [Spread; 3],
    /// Time over the floor's in the same round, for each step.
    pub(crate) ratio: [Spread; 3],
}

/// All subjects at one job.
pub(crate) struct Outcome {
    pub(crate) job: Job,
    pub(crate) rounds: usize,
    /// Nanoseconds a leaf.
    pub(crate) floor: [Spread; 3],
    /// The floor's map over `memset` of the same bytes.
    pub(crate) floor_over_memset: Spread,
    pub(crate) rows: Vec<Row>,
}

/// The samples of one subject.
#[derive(Default)]
struct Samples {
    tables: u64,
    own: Vec<Times>,
    floor: Vec<Times>,
}

/// Runs `rounds` timed rounds; `tick` is called after each turn.
pub(crate) fn run(
    job: Job,
    subjects: &mut [Box<dyn Subject>],
    rounds: usize,
    arena: &Arena,
    tick: &dyn Fn(),
) -> Result<Outcome> {
    let mut subjects: Vec<&mut Box<dyn Subject>> =
        subjects.iter_mut().filter(|s| s.takes(&job)).collect();
    let mut samples: Vec<Samples> = Vec::new();
    samples.resize_with(subjects.len(), Samples::default);
    let mut memset = Vec::new();
    for round in 0..=rounds {
        for turn in 0..subjects.len() {
            let which = (turn + round) % subjects.len();
            let (floor, memset_time) = turn::floor(&job, arena, round == 0, clock::now)?;
            let subject = &mut subjects[which];
            let (own, tables) =
                turn::subject(&job, subject.as_mut(), arena, round == 0, clock::now)
                    .with_context(|| format!("{} at {job}", subject.name()))?;
            samples[which].tables = tables;
            if round > 0 {
                samples[which].own.push(own);
                samples[which].floor.push(floor);
                memset.push(floor[0] as f64 / memset_time as f64);
            }
            tick();
        }
    }
    let leaves = job.leaves() as f64;
    let floors = samples.iter().flat_map(|s| &s.floor);
    let rows = subjects.iter().zip(&samples).map(|(subject, samples)| {
        let pairs = || samples.own.iter().zip(&samples.floor);
        Ok(Row {
            subject: subject.name(),
            tables: samples.tables,
            nanoseconds: spreads(samples.own.iter(), |times, step| {
                times[step] as f64 / leaves
            })?,
            ratio: spreads(pairs(), |(own, floor), step| {
                own[step] as f64 / floor[step] as f64
            })?,
        })
    });
    Ok(Outcome {
        job,
        rounds,
        floor: spreads(floors, |times, step| times[step] as f64 / leaves)?,
        floor_over_memset: Spread::of(memset).context("no rounds")?,
        rows: rows.collect::<Result<_>>()?,
    })
}

/// The spread of what `value` gives for each step.
fn spreads<T: Copy>(
    samples: impl Iterator<Item = T> + Clone,
    value: impl Fn(T, usize) -> f64,
) -> Result<[Spread; 3]> {
    let spread = |step| Spread::of(samples.clone().map(|sample| value(sample, step)).collect());
    let all = [spread(0), spread(1), spread(2)];
    let [Some(map), Some(protect), Some(unmap)] = all else {
        bail!("no rounds");
    };
    Ok([map, protect, unmap])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostArena;
    use granule_bench::arena::TABLE;
    use granule_bench::job::{Calls, Leaf};
    use granule_bench::subjects::{self, Found};
    use granule_bench::turn::STEPS;

    const JOBS: [Job; 5] = [
        Job {
            bytes: 6 << 20,
            leaf: Leaf::Page4K,
            trees: 2,
            calls: Calls::Range,
        },
        Job {
            bytes: 6 << 20,
            leaf: Leaf::Page4K,
            trees: 2,
            calls: Calls::Page,
        },
        Job {
            bytes: 6 << 20,
            leaf: Leaf::Page4K,
            trees: 2,
            calls: Calls::PageAndTables,
        },
        Job {
            bytes: 3 << 30,
            leaf: Leaf::Block1G,
            trees: 2,
            calls: Calls::Range,
        },
        Job {
            bytes: 6 << 20,
            leaf: Leaf::Block2M,
            trees: 3,
            calls: Calls::Range,
        },
    ];

    #[test]
    fn every_subject_maps_protects_and_unmaps_what_it_says() {
        let arena = HostArena::new(64).unwrap();
        for job in JOBS {
            let mut subjects = subjects::all().unwrap();
            let outcome = run(job, &mut subjects, 3, &arena, &|| ()).unwrap();
            let takers = subjects.iter().filter(|s| s.takes(&job)).count();
            assert_eq!(outcome.rows.len(), takers);
            assert!(outcome.rows.len() >= 5);
            for row in &outcome.rows {
                assert_eq!(row.tables, job.trees * job.tables(), "{}", row.subject);
                for spread in row.ratio.iter().chain(&row.nanoseconds) {
                    assert!(spread.least > 0.0 && spread.most.is_finite());
                }
            }
        }
    }

    #[test]
    fn an_arena_that_is_too_small_is_an_error() {
        let job = Job {
            bytes: 4 << 30,
            ..JOBS[0]
        };
        let arena = HostArena::new(1).unwrap();
        assert!(arena.taken() == 0 && TABLE == 4096);
        let failed = run(job, &mut subjects::all().unwrap(), 1, &arena, &|| ());
        let message = format!("{:#}", failed.err().unwrap());
        assert!(message.contains("the arena is too small"), "{message}");
    }

    /// A subject that does all but the step named, to see the checks fail.
    struct Lazy {
        inner: Box<dyn Subject>,
        step: &'static str,
    }

    impl Subject for Lazy {
        fn name(&self) -> &'static str {
            "lazy"
        }

        fn map(&mut self, job: &Job) -> Result<()> {
            let half = Job {
                bytes: job.bytes - job.leaf.bytes().max(2 << 20),
                ..*job
            };
            let job = if self.step == "map" { &half } else { job };
            self.inner.map(job)
        }

        fn prepare(&mut self, job: &Job) -> Result<()> {
            self.inner.prepare(job)
        }

        fn protect(&mut self, job: &Job) -> Result<()> {
            if self.step == "protect" {
                return Ok(());
            }
            self.inner.protect(job)
        }

        fn unmap(&mut self, job: &Job) -> Result<()> {
            if self.step == "unmap" {
                return Ok(());
            }
            self.inner.unmap(job)
        }

        fn query(&self, tree: usize, address: u64) -> Option<Found> {
            self.inner.query(tree, address)
        }

        fn forget(&mut self, trees: usize) {
            self.inner.forget(trees);
        }
    }

    #[test]
    fn work_that_is_not_done_is_found() {
        let arena = HostArena::new(64).unwrap();
        for step in STEPS {
            for job in JOBS {
                let inner = subjects::all().unwrap().remove(0);
                let mut lazy: [Box<dyn Subject>; 1] = [Box::new(Lazy { inner, step })];
                let failed = run(job, &mut lazy, 1, &arena, &|| ());
                let message = format!("{:#}", failed.err().unwrap());
                assert!(message.contains(&format!("after {step}")), "{message}");
            }
        }
    }
}
