//! The rounds: every subject beside the floor, one after the other, over and over.
//!
//! In each round each subject has its turn, in an order that moves by one from round to round, and
//! just before it the floor does the same job in the same memory. A ratio is a subject's time over
//! that floor's; its median over all rounds is what counts. Round 0 is not timed: in it each leaf
//! of each tree is looked up through the subject's own query, after each step. In the other rounds
//! a sample of leaves is looked up.

use crate::clock;
use crate::stats::Spread;
use anyhow::{Context, Result};
use granule_bench::arena::Arena;
use granule_bench::job::{Job, STEPS};
use granule_bench::subjects::Subject;
use granule_bench::turn::{self, Measured};

/// The fewest rounds that decide a goal.
pub(crate) const ROUNDS: u16 = 31;

/// Nanoseconds for each of the steps.
type Times = Measured;

/// Time over the floor's, for each of the steps.
pub(crate) type Ratios = [f64; STEPS.len()];

/// One subject at one job.
pub(crate) struct Row {
    pub(crate) subject: &'static str,
    /// The tables of all trees, as taken from the arena.
    pub(crate) tables: u64,
    /// Nanoseconds a leaf, for each step.
    pub(crate) nanoseconds: Vec<Spread>,
    /// Time over the floor's in the same round, for each step.
    pub(crate) ratio: Vec<Spread>,
    /// The same for each round, in their order.
    pub(crate) ratios: Vec<Ratios>,
}

/// All subjects at one job.
pub(crate) struct Outcome {
    pub(crate) job: Job,
    pub(crate) rounds: usize,
    /// Nanoseconds a leaf.
    pub(crate) floor: Vec<Spread>,
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
    let spreads = |all: &[[f64; STEPS.len()]]| spreads(all, job.steps().len());
    let a_leaf = |times: &Times| times.map(|time| time as f64 / leaves);
    let floors = samples.iter().flat_map(|s| &s.floor).map(a_leaf);
    let floors: Vec<_> = floors.collect();
    let rows = subjects.iter().zip(&samples).map(|(subject, samples)| {
        let nanoseconds: Vec<_> = samples.own.iter().map(a_leaf).collect();
        let pairs = samples.own.iter().zip(&samples.floor);
        let ratios = pairs.map(|(own, floor)| {
            let ratio = |step| own[step] as f64 / floor[step] as f64;
            std::array::from_fn(ratio)
        });
        let ratios: Vec<Ratios> = ratios.collect();
        Ok(Row {
            subject: subject.name(),
            tables: samples.tables,
            nanoseconds: spreads(&nanoseconds)?,
            ratio: spreads(&ratios)?,
            ratios,
        })
    });
    Ok(Outcome {
        job,
        rounds,
        floor: spreads(&floors)?,
        floor_over_memset: Spread::of(memset).context("no rounds")?,
        rows: rows.collect::<Result<_>>()?,
    })
}

/// The spread of each of the first steps.
fn spreads(samples: &[[f64; STEPS.len()]], steps: usize) -> Result<Vec<Spread>> {
    let spread = |step| Spread::of(samples.iter().map(|sample| sample[step]).collect());
    let all: Option<_> = (0..steps).map(spread).collect();
    all.context("no rounds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HostArena;
    use granule_bench::arena::TABLE;
    use granule_bench::job::{self, Calls, Leaf, Tables};
    use granule_bench::subjects::{self, Found};

    /// One job for ranges in each size of leaf, and all those by call.
    fn jobs() -> Vec<Job> {
        let range = |bytes, leaf| Job {
            bytes,
            leaf,
            trees: 2,
            calls: Calls::RANGE,
        };
        let ranges = [
            range(6 << 20, Leaf::PAGE_4K),
            range(8 << 20, Leaf::BLOCK_2M),
            range(4 << 30, Leaf::BLOCK_1G),
        ];
        let all = job::jobs(true).chain(job::jobs_of_larger_pages());
        let by_call = all.filter(|job| !job.calls.is_range()).map(|job| {
            let few = match job.calls.tables {
                Tables::Crossed | Tables::Own => 3 * job.leaf.span(),
                Tables::There | Tables::Made => 1536 * job.leaf.bytes(),
            };
            Job {
                bytes: job.bytes.min(few).min(64 << 30),
                trees: 2,
                ..job
            }
        });
        by_call.chain(ranges).collect()
    }

    fn all_subjects() -> Vec<Box<dyn Subject>> {
        let mut all = subjects::all().unwrap();
        all.extend(subjects::library_alone().unwrap());
        all
    }

    #[test]
    fn every_subject_maps_protects_and_unmaps_what_it_says() {
        let arena = HostArena::new(4 << 20).unwrap();
        for job in jobs() {
            let mut subjects = all_subjects();
            let outcome = run(job, &mut subjects, 1, &arena, &|| ()).unwrap();
            let takers = subjects.iter().filter(|s| s.takes(&job)).count();
            assert_eq!(outcome.rows.len(), takers);
            let is_shared = job.leaf.page_bytes() == TABLE;
            assert!(outcome.rows.len() >= if is_shared { 7 } else { 2 }, "{job}");
            for row in &outcome.rows {
                assert_eq!(row.ratio.len(), job.steps().len());
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
            leaf: Leaf::PAGE_4K,
            trees: 1,
            calls: Calls::RANGE,
        };
        let arena = HostArena::new(1).unwrap();
        assert_eq!(arena.taken(), 0);
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

        fn takes(&self, job: &Job) -> bool {
            self.inner.takes(job)
        }

        fn map(&mut self, job: &Job) -> Result<()> {
            let half = Job {
                bytes: job.bytes - job.leaf.span().min(job.bytes / 2),
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

        fn query_each(&self, job: &Job) -> u64 {
            let sum = self.inner.query_each(job);
            if self.step == "query" { sum - 1 } else { sum }
        }

        fn forget(&mut self, trees: usize) {
            self.inner.forget(trees);
        }
    }

    #[test]
    fn work_that_is_not_done_is_found() {
        let arena = HostArena::new(4 << 20).unwrap();
        for job in jobs() {
            for step in job.steps() {
                let mut inner = all_subjects();
                inner.retain(|subject| subject.takes(&job));
                let inner = inner.remove(0);
                let mut lazy: [Box<dyn Subject>; 1] = [Box::new(Lazy { inner, step })];
                let failed = run(job, &mut lazy, 1, &arena, &|| ());
                let message = format!("{:#}", failed.err().unwrap());
                let expected = match *step {
                    "query" => "its queries return".to_owned(),
                    step => format!("after {step}"),
                };
                assert!(message.contains(&expected), "{job}: {message}");
            }
        }
    }
}
