//! The records of whole runs, `docs/results/ci.jsonl`: one JSON object a line, for a run or for a
//! flaky test that was fixed. `cargo xtask record` adds a run's; commits keep them.
//!
//! From the records come the usual time and share of each step, the tests that fail too often by
//! chance, and the parts that have not run for long. All but reading and adding is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::results::{Failure, Results};
use xtask::files;
use xtask::workspace::root;

/// The parts of what changes with Debian and not with a commit: each run has one of them.
pub(crate) const PARTS: u64 = 10;
/// The number of a name's flakes in the last [`FLAKY_IN`] records that fails a run.
const FLAKY: usize = 3;
const FLAKY_IN: usize = 10;
/// In the last records of this number each part should be.
const PARTS_IN: usize = 20;
/// A step's share of the run that is reported, against the median of the records.
const GROWN: f64 = 1.2;
/// Smaller shares are noise.
const LEAST_SHARE: f64 = 0.01;

/// A step of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepRecord {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) results: Results,
}

/// A live test that failed, was repeated, and passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Flaky {
    pub(crate) name: String,
    /// Failures of the four runs, the first included.
    pub(crate) failed: usize,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) commit: String,
    pub(crate) command: String,
    /// Cores, and the name of the CPU.
    pub(crate) machine: String,
    /// Of [`PARTS`].
    pub(crate) part: Option<u64>,
    pub(crate) seconds: f64,
    pub(crate) passed: u64,
    /// The failures that remain after repetitions.
    pub(crate) failed: Vec<Failure>,
    pub(crate) flaky: Vec<Flaky>,
    pub(crate) steps: Vec<StepRecord>,
}

impl Record {
    /// The share of a step in the CPU time of all.
    fn share(&self, name: &str) -> Option<f64> {
        let all: f64 = self.steps.iter().map(|it| it.results.cpu_seconds).sum();
        let step = self.steps.iter().find(|it| it.name == name)?;
        (all > 0.0).then(|| step.results.cpu_seconds / all)
    }
}

/// A line of the file.
#[derive(Clone, Debug)]
enum Line {
    Run(Box<Record>),
    /// A name, a comma and how it was mended: from here on the flakes of this name are counted anew. Names have commas
    /// too.
    Mended(String),
}

/// All records, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Vec<Line>);

pub(crate) fn file() -> PathBuf {
    root().join("docs").join("results").join("ci.jsonl")
}

impl History {
    /// Reads the file; without a file there are no records.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        match fs::read_to_string(file) {
            Ok(text) => Self::of(&text).with_context(|| format!("in {}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    fn of(text: &str) -> Result<Self> {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let lines = lines.map(|(at, line)| {
            let number = at + 1;
            let what =
                || format!("line {number} is neither a record of a run nor `mended: NAME, how`");
            match line.strip_prefix("mended: ").filter(|it| it.contains(", ")) {
                Some(rest) => Ok(Line::Mended(rest.to_owned())),
                None => Ok(Line::Run(serde_json::from_str(line).with_context(what)?)),
            }
        });
        Ok(Self(lines.collect::<Result<_>>()?))
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.0.iter().filter_map(|line| match line {
            Line::Run(run) => Some(&**run),
            Line::Mended(_) => None,
        })
    }

    /// The median of a step's wall time in seconds.
    pub(crate) fn seconds(&self, step: &str) -> Option<f64> {
        median(self.runs().filter_map(|run| {
            let step = run.steps.iter().find(|it| it.name == step)?;
            // One that was not run took no time.
            (step.seconds > 0.0).then_some(step.seconds)
        }))
    }

    /// The steps whose share of this run is a fifth more than the median of the records, a line each.
    pub(crate) fn grown(&self, run: &Record) -> Vec<String> {
        // Of runs with the same steps, whichever ended first.
        let names = |of: &Record| -> BTreeSet<String> {
            of.steps.iter().map(|step| step.name.clone()).collect()
        };
        let like = |old: &&Record| old.command == run.command && names(old) == names(run);
        let old: Vec<_> = self.runs().filter(like).collect();
        let steps = run.steps.iter().filter_map(|step| {
            let now = run.share(&step.name)?;
            let usual = median(old.iter().filter_map(|old| old.share(&step.name)))?;
            let grown = now >= LEAST_SHARE && now > usual * GROWN;
            grown.then(|| {
                format!(
                    "{} takes {:.1} % of the run's CPU time, usually {:.1} %",
                    step.name,
                    100.0 * now,
                    100.0 * usual
                )
            })
        });
        steps.collect()
    }

    /// The names that are too flaky for chance to excuse, this run included.
    pub(crate) fn too_flaky(&self, run: &Record) -> Vec<String> {
        let before = self.runs().count();
        let mut number = 0;
        let mut times = BTreeMap::<&str, usize>::new();
        for line in &self.0 {
            match line {
                Line::Mended(line) => times.retain(|name, _| {
                    let how = line.strip_prefix(name);
                    !how.is_some_and(|how| how.starts_with(", "))
                }),
                Line::Run(old) => {
                    number += 1;
                    if number + FLAKY_IN > before + 1 {
                        for one in &old.flaky {
                            *times.entry(&one.name).or_default() += 1;
                        }
                    }
                }
            }
        }
        for one in &run.flaky {
            *times.entry(&one.name).or_default() += 1;
        }
        let too_often = times.into_iter().filter(|(_, times)| *times >= FLAKY);
        too_often.map(|(name, _)| name.to_owned()).collect()
    }

    /// The parts that neither this run nor the last records have.
    pub(crate) fn missing_parts(&self, run: &Record) -> Vec<u64> {
        let last = self.runs().rev().take(PARTS_IN - 1).chain([run]);
        let there: BTreeSet<u64> = last.filter_map(|run| run.part).collect();
        (0..PARTS).filter(|part| !there.contains(part)).collect()
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Adds the summary of a run, which `from` holds, to the records.
pub(crate) fn record(from: &Path) -> Result<()> {
    let record: Record = serde_json::from_str(&files::text(from)?)
        .with_context(|| format!("{} is not a summary of a run", from.display()))?;
    let to = file();
    let history = History::read(&to)?;
    ensure!(
        history.runs().all(|old| *old != record),
        "{} has this run already",
        to.display()
    );
    let mut lines = fs::read_to_string(&to).unwrap_or_default();
    if !lines.is_empty() && !lines.ends_with('\n') {
        lines.push('\n');
    }
    lines.push_str(&serde_json::to_string(&record)?);
    lines.push('\n');
    files::replace(&to, |to| files::write(to, lines))?;
    println!("{}: {} runs", to.display(), history.runs().count() + 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(part: u64, flaky: &[&str], cpu: &[(&str, f64)]) -> Record {
        let step = |(name, cpu_seconds): &(&str, f64)| StepRecord {
            name: (*name).to_owned(),
            seconds: 2.0 * cpu_seconds,
            results: Results {
                cpu_seconds: *cpu_seconds,
                ..Results::default()
            },
        };
        let flaky = flaky.iter().map(|name| Flaky {
            name: (*name).to_owned(),
            failed: 1,
        });
        Record {
            part: Some(part),
            flaky: flaky.collect(),
            steps: cpu.iter().map(step).collect(),
            ..Record::default()
        }
    }

    fn history(runs: &[Record], then: &str) -> History {
        let lines = runs
            .iter()
            .map(|run| serde_json::to_string(run).unwrap() + "\n");
        History::of(&(lines.collect::<String>() + then)).unwrap()
    }

    #[test]
    fn the_third_flake_in_ten_records_fails_until_it_is_mended() {
        let (calm, flaky) = (run(0, &[], &[]), run(0, &["t"], &[]));
        let two = [flaky.clone(), calm.clone(), flaky.clone()];
        assert!(history(&two[..2], "").too_flaky(&flaky).is_empty());
        assert_eq!(history(&two, "").too_flaky(&flaky), ["t"]);
        assert!(history(&two, "").too_flaky(&calm).is_empty());
        // A run that is calm by chance mends nothing.
        let three = vec![flaky.clone(); 3];
        assert_eq!(history(&three, "").too_flaky(&calm), ["t"]);
        // Names of checks have commas.
        let board = run(0, &["board a, 4K"], &[]);
        let (mended, other) = ("mended: board a, 4K, so", "mended: board a, 16K, so");
        let boards = vec![board.clone(); 2];
        assert!(history(&boards, mended).too_flaky(&board).is_empty());
        assert_eq!(history(&boards, other).too_flaky(&board), ["board a, 4K"]);
        let mended = history(&two, "mended: t, by a clock of its own\n");
        assert!(mended.too_flaky(&flaky).is_empty());
        assert_eq!(history(&two, "mended: other, so").too_flaky(&flaky), ["t"]);
        // Nine records before this one count.
        let mut long = vec![flaky.clone(), flaky.clone()];
        long.extend(vec![calm.clone(); 7]);
        assert_eq!(history(&long, "").too_flaky(&flaky), ["t"]);
        long.push(calm);
        assert!(history(&long, "").too_flaky(&flaky).is_empty());
        assert!(History::of("no record").is_err());
    }

    #[test]
    fn a_share_that_grew_and_a_part_that_lacks_are_reported() {
        // Records have steps in the order of their ends, which differs.
        let usual = run(3, &[], &[("b", 90.0), ("a", 10.0)]);
        let history = history(&[usual.clone(), usual], "");
        assert_eq!(history.seconds("b"), Some(180.0));
        assert_eq!(history.seconds("c"), None);
        let now = run(7, &[], &[("a", 20.0), ("b", 90.0)]);
        let grown = history.grown(&now);
        assert_eq!(grown.len(), 1, "{grown:?}");
        assert!(grown[0].starts_with("a takes 18.2 % of the run's CPU time, usually 10.0 %"));
        // One of other steps has no usual share.
        let other = run(7, &[], &[("a", 20.0)]);
        assert!(history.grown(&other).is_empty());
        assert_eq!(history.missing_parts(&now), [0, 1, 2, 4, 5, 6, 8, 9]);
    }
}
