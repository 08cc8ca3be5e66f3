//! The goals: what a step of the library may take at most, over something else that was measured
//! beside it. Both programs judge by this list, each the goals that it can measure.

use crate::job::{Calls, Job, Leaf, STEPS, Tables};
use crate::subjects::CHECKING;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The name of the library's rows without a variant.
const OURS: &str = "granule";

/// The other side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Than {
    /// The time of the floor.
    Floor,
    /// The time of the library's own private tables: no TLBI and no barrier is in a time.
    Private,
    /// Another crate, by time and by instructions.
    Crate(&'static str),
    /// The fastest crate that checks what its calls name, by time and by instructions.
    Checking,
    /// The instructions of the same step of one page.
    OnePage,
    /// Nothing: instructions a call.
    Count,
}

#[derive(Clone, Copy, Debug)]
pub struct Goal {
    subject: &'static str,
    leaf: Leaf,
    calls: Calls,
    /// The bytes of the range, where more than one job is like this.
    bytes: Option<u64>,
    /// The index in [`STEPS`].
    pub step: usize,
    than: Than,
    /// The most that it may be.
    pub most: f64,
}

/// A subject at a job, with the measured value.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a, T> {
    pub job: &'a Job,
    pub subject: &'a str,
    pub value: T,
}

/// The values that a goal compares.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a, T> {
    pub job: &'a Job,
    pub ours: T,
    /// Nothing where the goal is a count, or over the floor.
    pub other: Option<T>,
}

impl Goal {
    /// Whether the goal is one of times.
    pub const fn is_timed(&self) -> bool {
        !matches!(self.than, Than::OnePage | Than::Count)
    }

    /// Whether the goal is one of instructions.
    pub const fn is_counted(&self) -> bool {
        !matches!(self.than, Than::Floor | Than::Private)
    }

    fn is_of(&self, job: &Job) -> bool {
        let is_range = self.bytes.is_none_or(|bytes| bytes == job.bytes);
        is_range && (self.leaf, self.calls) == (job.leaf, job.calls)
    }

    /// Returns what the goal compares, if all of it was measured. `key` is the number by which the
    /// fastest crate is known.
    pub fn compared<'a, T: Copy>(
        &self,
        all: &[Measurement<'a, T>],
        key: impl Fn(T) -> f64,
    ) -> Option<Compared<'a, T>> {
        let ours = find(all, self.subject, |job| self.is_of(job))?;
        let beside = |subject| find(all, subject, |job| job == ours.job);
        let other = match self.than {
            Than::Floor | Than::Count => None,
            Than::Private => Some(beside(OURS)?),
            Than::Crate(name) => Some(beside(name)?),
            Than::Checking => {
                let checking = CHECKING.into_iter().filter_map(beside);
                Some(checking.min_by(|a, b| key(a.value).total_cmp(&key(b.value)))?)
            }
            Than::OnePage => {
                let (leaf, calls) = one_page();
                let is_page = |job: &Job| (job.leaf, job.calls) == (leaf, calls);
                Some(find(all, self.subject, is_page)?)
            }
        };
        Some(Compared {
            job: ours.job,
            ours: ours.value,
            other: other.map(|one| one.value),
        })
    }

    /// Returns the goal in words.
    pub fn what(&self, job: &Job) -> String {
        let (step, variant) = (STEPS[self.step], self.subject.trim_start_matches(OURS));
        let than = match self.than {
            Than::Floor => "",
            Than::Private => ", over private tables",
            Than::Crate(name) => return format!("{step} {job}{variant}, over {name}"),
            Than::Checking => ", over the fastest crate that checks",
            Than::OnePage => ", over the instructions of one page",
            Than::Count => ", instructions a call",
        };
        format!("{step} {job}{variant}{than}")
    }
}

fn find<'m, 'a, T>(
    all: &'m [Measurement<'a, T>],
    subject: &str,
    fits: impl Fn(&Job) -> bool,
) -> Option<&'m Measurement<'a, T>> {
    all.iter()
        .find(|one| one.subject == subject && fits(one.job))
}

const fn one_page() -> (Leaf, Calls) {
    (Leaf::PAGE_4K, Calls::of(1, Tables::There))
}

const fn pages(pages: u64) -> (Leaf, Calls) {
    (Leaf::PAGE_4K, Calls::of(pages, Tables::There))
}

const fn block(leaf: Leaf) -> (Leaf, Calls) {
    (leaf, Calls::of(1, Tables::There))
}

const fn goal(
    subject: &'static str,
    (leaf, calls): (Leaf, Calls),
    step: usize,
    than: Than,
    most: f64,
) -> Goal {
    let bytes = None;
    Goal {
        subject,
        leaf,
        calls,
        bytes,
        step,
        than,
        most,
    }
}

const fn range(subject: &'static str, gib: u64, step: usize, most: f64) -> Goal {
    let job = (Leaf::PAGE_4K, Calls::RANGE);
    Goal {
        bytes: Some(gib << 30),
        ..goal(subject, job, step, Than::Floor, most)
    }
}

const MAP: usize = 0;
const PROTECT: usize = 1;
const UNMAP: usize = 2;
const QUERY: usize = 3;

/// All goals.
pub fn goals() -> Vec<Goal> {
    let (live, multiarch) = ("granule, live", Than::Crate("page_table_multiarch"));
    let own = (Leaf::PAGE_4K, Calls::of(1, Tables::Own));
    let mut goals = Vec::from([
        range(OURS, 64, MAP, 1.25),
        range(OURS, 1, MAP, 1.3),
        range(OURS, 64, PROTECT, 1.5),
        range(OURS, 1, PROTECT, 1.3),
        range(OURS, 64, UNMAP, 0.02),
        range(live, 64, PROTECT, 1.4),
        range(live, 1, PROTECT, 2.0),
        range("granule, holes refused", 64, PROTECT, 1.5),
        range("granule, live, holes refused", 64, PROTECT, 1.8),
        goal(OURS, own, MAP, multiarch, 1.3),
        goal(OURS, own, UNMAP, Than::Crate("aarch64-paging"), 2.0),
    ]);
    for step in [MAP, PROTECT, UNMAP, QUERY] {
        goals.push(goal(OURS, one_page(), step, multiarch, 1.2));
    }
    let blocks = [block(Leaf::BLOCK_2M), block(Leaf::BLOCK_1G)];
    for job in [pages(2), pages(4), pages(16)].into_iter().chain(blocks) {
        for step in [MAP, PROTECT, UNMAP] {
            goals.push(goal(OURS, job, step, Than::Checking, 1.5));
            goals.push(goal(live, job, step, Than::Private, 1.3));
        }
    }
    for (job, step, most) in [
        (one_page(), MAP, 160.0),
        (one_page(), UNMAP, 160.0),
        (one_page(), QUERY, 100.0),
        (pages(4), MAP, 300.0),
        (pages(4), UNMAP, 300.0),
    ] {
        goals.push(goal(OURS, job, step, Than::Count, most));
    }
    for job in [pages(2), block(Leaf::BLOCK_2M)] {
        for step in [MAP, PROTECT, UNMAP] {
            goals.push(goal(OURS, job, step, Than::OnePage, 1.5));
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::jobs;
    use std::collections::BTreeSet;

    #[test]
    fn every_goal_is_of_one_job() {
        let jobs: Vec<Job> = jobs(false).collect();
        let mut names = BTreeSet::new();
        for goal in goals() {
            let of: Vec<_> = jobs.iter().filter(|job| goal.is_of(job)).collect();
            assert_eq!(of.len(), 1, "{goal:?}");
            assert!(goal.step < of[0].steps().len(), "{goal:?}");
            assert!(goal.is_timed() || goal.is_counted());
            assert!(names.insert(goal.what(of[0])), "{}", goal.what(of[0]));
        }
    }

    #[test]
    fn the_fastest_crate_that_checks_is_compared() {
        let jobs: Vec<Job> = jobs(false).collect();
        let (leaf, calls) = pages(4);
        let job = jobs
            .iter()
            .find(|job| (job.leaf, job.calls) == (leaf, calls));
        let job = job.unwrap();
        let measured = [
            (OURS, 9.0),
            ("aarch64-paging", 8.0),
            ("page_table_multiarch", 1.0),
            ("x86_64", 3.0),
        ];
        let all = measured.map(|(subject, value)| Measurement {
            job,
            subject,
            value,
        });
        let goal = goal(OURS, pages(4), MAP, Than::Checking, 1.5);
        let compared = goal.compared(&all, |value| value).unwrap();
        assert_eq!((compared.ours, compared.other), (9.0, Some(3.0)));
        let what = "map 64 MiB in 4K leaves, 4 pages a call, tables there, over the fastest crate that checks";
        assert_eq!(goal.what(job), what);
        let live = goal_of_live();
        assert!(live.compared(&all, |value| value).is_none());
    }

    fn goal_of_live() -> Goal {
        goal("granule, live", pages(4), MAP, Than::Private, 1.3)
    }
}
