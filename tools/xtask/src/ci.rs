//! `cargo xtask test` and `check`: runs steps as processes of their own on two slots, repeats live failures, and sums up.
//!
//! A failed step hides no other. The steps are in `steps`; `history` has the times of earlier runs
//! and the tests that chance failed.

mod repeat;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::repeat::{REPEATED, repeat};
use crate::cargo_tools;
use crate::history::{self, History, PARTS, Record, StepRecord};
use crate::nextest::folder;
use crate::results::{Failure, Results, cpu_of_children};
use crate::steps::{ALL, CHECK, STEPS, Step, TEST};
use crate::stop::Stop;
use xtask::deadline::Group;
use xtask::graph::{self, Job};
use xtask::workspace::{commit, cpu_name, git, root};

/// A step without a record takes so long.
const UNKNOWN: Duration = Duration::from_secs(60);
/// The time of a step by its own clock after which it hangs: the longest takes ten minutes.
const LIMIT: Duration = Duration::from_secs(40 * 60);

#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Run only this step, and those that it needs; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run the long steps too, as CI does
    #[arg(long)]
    all: bool,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
    /// The part, of ten, of what changes with Debian and not with a commit, instead of that of the
    /// commit
    #[arg(long, value_name = "N", env = "PART", value_parser = clap::value_parser!(u64).range(..PARTS))]
    part: Option<u64>,
    /// The step that this process is, with the names that it repeats
    #[arg(long, hide = true, num_args = 1..)]
    step: Vec<String>,
}

/// Runs the chosen steps. The last line is `N passed, N failed`.
pub(crate) fn test(options: &TestOptions) -> Result<ExitCode> {
    if let [name, again @ ..] = &*options.step {
        return step(name, again, options.part);
    }
    let set = if options.all { ALL } else { TEST };
    if options.list {
        let steps = choose(set, &options.only, None)?;
        for step in steps {
            let long = ["", " (--all)"][usize::from(step.sets & TEST == 0)];
            println!("{:16} {}{long}", step.name, step.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    run(set, &options.only, options.part)
}

/// Runs the steps of `cargo xtask check`.
pub(crate) fn check() -> Result<ExitCode> {
    run(CHECK, &[], None)
}

/// The steps of a set and a part, or those of the names with all that they need.
fn choose(set: u8, only: &[String], part: Option<u64>) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = only.iter().find(|name| named(name).is_none()) {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!(
            "no step is called {unknown}; there are {}",
            names.join(", ")
        );
    }
    let mut wanted: BTreeSet<&str> = only.iter().map(String::as_str).collect();
    if only.is_empty() {
        let has = |step: &&Step| part.is_none() || step.part.is_none() || step.part == part;
        let all = STEPS.iter().filter(|step| step.sets & set != 0);
        let all = all.filter(has);
        wanted.extend(all.map(|step| step.name));
    }
    loop {
        let needed: Vec<_> = wanted.iter().filter_map(|name| named(name)).collect();
        let before = wanted.len();
        wanted.extend(needed.iter().flat_map(|step| step.needs));
        if wanted.len() == before {
            break;
        }
    }
    Ok(STEPS
        .iter()
        .filter(|step| wanted.contains(step.name))
        .collect())
}

fn named(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// The process of one step: runs it, and writes its results.
fn step(name: &str, again: &[String], part: Option<u64>) -> Result<ExitCode> {
    let step = named(name).with_context(|| format!("no step is called {name}"))?;
    let mut results = step.run(again, part.unwrap_or_default());
    results.cpu_seconds = cpu_of_children().as_secs_f64();
    let text = serde_json::to_string(&results)?;
    fs::write(results_file(name), text).context("cannot write the results")?;
    Ok(ExitCode::SUCCESS)
}

fn results_file(step: &str) -> PathBuf {
    folder().join(format!("{step}.json"))
}

fn own_copy() -> PathBuf {
    folder().join("xtask")
}

fn log_file(step: &str) -> PathBuf {
    folder().join(format!("{step}.log"))
}

/// Runs a step in a process of its own, with its output in its log, until it or the run ends.
fn run_apart(step: &Step, again: &[String], (set, part): (u8, u64), stop: &Stop) -> Results {
    let run = || -> Result<Results> {
        let results = results_file(step.name);
        let _ = fs::remove_file(&results);
        let log = File::options()
            .create(true)
            .append(true)
            .open(log_file(step.name))?;
        let mut command = Command::new(own_copy());
        command
            .args(["test", "--part", &part.to_string(), "--step", step.name])
            .args(again)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A step is one job of the pool, whatever it runs.
            .env("GRANULE_JOBS", "1");
        if set != CHECK {
            command.env("GRANULE_BUILT", "1");
        }
        let mut group = Group::start(&mut command).context("cannot start the step")?;
        let status = group.wait(LIMIT, || stop.now())?;
        let status = status.with_context(|| match stop.why() {
            Some(why) => why.to_owned(),
            None => format!(
                "it ran for {} minutes by its own clock",
                LIMIT.as_secs() / 60
            ),
        })?;
        let text = fs::read_to_string(&results)
            .with_context(|| format!("the step ended with {status} and wrote no results"))?;
        Ok(serde_json::from_str(&text)?)
    };
    run().unwrap_or_else(|error| Results::of(step.name, step.live, Err(error)))
}

/// Runs steps and sums up.
fn run(set: u8, only: &[String], part: Option<u64>) -> Result<ExitCode> {
    let start = Instant::now();
    let (commit, count) = revision()?;
    let part = part.unwrap_or(count % PARTS);
    let steps = &choose(set, only, Some(part))?;
    if set & ALL != 0 {
        println!("part {part} of {PARTS}; PART={part} repeats it");
    }
    if count == 1 {
        println!("the part depends on the number of commits, which a shallow clone does not have");
    }
    let history = History::read(&history::file())?;
    fs::create_dir_all(folder()).with_context(|| format!("cannot make {}", folder().display()))?;
    for step in steps {
        let _ = fs::remove_file(log_file(step.name));
    }
    // A build may replace the file of this program.
    let own = std::env::current_exe().context("xtask does not know where it is")?;
    // Moved into place, because steps of another run may still be running from the old one.
    let new = own_copy().with_extension("new");
    fs::copy(own, &new).context("cannot copy xtask")?;
    fs::rename(&new, own_copy()).context("cannot move the copy of xtask")?;
    cargo_tools::bin()?;
    let jobs = jobs(steps, &history);
    // Steps have process groups of their own, which a signal to this one does not reach.
    let stop = Stop::at(None)?;
    let mut records = Vec::new();
    let work = |at: usize| {
        println!("      {} begins: {}", steps[at].name, steps[at].what);
        run_apart(steps[at], &[], (set, part), &stop)
    };
    let left = graph::run(
        &jobs,
        graph::parallel(),
        || !stop.now(),
        work,
        |done| {
            let (step, results, seconds) = (steps[done.job], done.result, done.time.as_secs_f64());
            report(step, &results, seconds);
            let well = results.failed.is_empty() || !step.is_build;
            records.push(StepRecord {
                name: step.name.to_owned(),
                seconds,
                results,
            });
            well
        },
    );
    for at in left {
        let name = steps[at].name;
        let needs = steps[at].needs.join(" or ");
        let why = Err(anyhow::anyhow!("not run: {needs} had failed"));
        records.push(StepRecord {
            name: name.to_owned(),
            seconds: 0.0,
            results: Results::of(name, false, why),
        });
    }
    let again = |step: &Step, names: &[String]| run_apart(step, names, (set, part), &stop);
    ensure!(!stop.now(), "interrupted");
    let (flaky, failed) = repeat(&records, again);
    ensure!(!stop.now(), "interrupted");
    let ran = |name| records.iter().any(|it| it.name == name && it.seconds > 0.0);
    let mut record = Record {
        commit,
        command: command(set).to_owned(),
        machine: machine(),
        part: (ran("peers-part") && ran("miri-part")).then_some(part),
        seconds: start.elapsed().as_secs_f64(),
        passed: records.iter().map(|it| it.results.passed).sum::<u64>() + flaky.len() as u64,
        failed,
        flaky,
        steps: records,
    };
    finish(&history, &mut record)
}

fn jobs(steps: &[&Step], history: &History) -> Vec<Job> {
    let place = |name: &str| steps.iter().position(|step| step.name == name);
    let job = |step: &&Step| Job {
        needs: step.needs.iter().filter_map(|name| place(name)).collect(),
        lock: step.lock,
        alone: false,
        expected: history
            .seconds(step.name)
            .map_or(UNKNOWN, Duration::from_secs_f64),
    };
    steps.iter().map(job).collect()
}

/// Prints the end of a step, and of one that failed all that it printed.
fn report(step: &Step, results: &Results, seconds: f64) {
    let (name, passed) = (step.name, results.passed);
    if results.failed.is_empty() {
        println!("ok    {name}: {passed} passed ({seconds:.1} s)");
        return;
    }
    let log = fs::read(log_file(name)).unwrap_or_default();
    println!("=== {name}\n{}=== {name}", String::from_utf8_lossy(&log));
    let failed = results.failed.len();
    println!("FAILED {name}: {passed} passed, {failed} failed ({seconds:.1} s)");
    for one in &results.failed {
        println!("    {}: {}", one.name, one.why);
    }
}

/// Writes the summary, and prints it as a table.
fn finish(history: &History, record: &mut Record) -> Result<ExitCode> {
    for name in history.too_flaky(record) {
        record.failed.push(Failure {
            why: format!(
                "flaky three times in the last ten records: mend it, and add the line \
                 `mended: {name}, HOW` to {}",
                history::file().display()
            ),
            name,
            live: false,
        });
    }
    let file = folder().join("summary.json");
    let text = serde_json::to_string_pretty(&record)? + "\n";
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{}", table(record));
    for line in history.grown(record) {
        println!("grown: {line}");
    }
    let missing = history.missing_parts(record);
    if record.part.is_some() && !missing.is_empty() {
        println!("parts not in the last 20 records: {missing:?}");
    }
    for one in &record.flaky {
        println!("flaky: {} {} of {}", one.name, one.failed, REPEATED + 1);
    }
    for one in &record.failed {
        println!("failed: {}: {}", one.name, one.why);
    }
    println!("summary: {}", file.display());
    println!("{} passed, {} failed", record.passed, record.failed.len());
    ensure!(record.passed > 0, "nothing was run");
    Ok(ExitCode::from(u8::from(!record.failed.is_empty())))
}

fn table(record: &Record) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "\n{:16} {:>7} {:>7} {:>8} {:>8}\n",
        "", "passed", "failed", "s", "CPU s"
    );
    for step in &record.steps {
        let results = &step.results;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:16} {:>7} {:>7} {:>8.1} {:>8.1}",
            step.name,
            results.passed,
            results.failed.len(),
            step.seconds,
            results.cpu_seconds
        );
    }
    let cpu: f64 = record.steps.iter().map(|it| it.results.cpu_seconds).sum();
    let _ = writeln!(
        text,
        "{:32} {:>8.1} {cpu:>8.1}",
        "whole run", record.seconds
    );
    text
}

fn command(set: u8) -> &'static str {
    match set {
        CHECK => "make check",
        TEST => "make test",
        _ => ".ci/run",
    }
}

/// The commit, and the number of commits up to it.
fn revision() -> Result<(String, u64)> {
    let count = git(&root(), &["rev-list", "--count", "HEAD"])?;
    let count = count.trim().parse().context("git counted no commits")?;
    Ok((commit(|_| true)?, count))
}

/// The cores and the CPU's name.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores, {}", cpu_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_with_what_they_need() {
        let names = |set, only: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            let steps = choose(set, &only, Some(1));
            steps.map(|steps| steps.iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert!(names(ALL, &[]).unwrap().len() > names(TEST, &[]).unwrap().len());
        assert!(!names(TEST, &[]).unwrap().contains(&"least-rust"));
        // Those of another part are run only by name.
        assert!(!names(ALL, &[]).unwrap().contains(&"guests-fixed"));
        assert!(
            names(TEST, &["guests-fixed"])
                .unwrap()
                .contains(&"fixed-images")
        );
        assert!(names(CHECK, &[]).unwrap().contains(&"boots"));
        assert_eq!(
            names(TEST, &["fmt", "doc-tests"]).unwrap(),
            ["fmt", "build", "doc-tests"]
        );
        let error = names(TEST, &["nope"]).unwrap_err().to_string();
        assert!(error.contains("qemu-matrix"), "{error}");
    }

    #[test]
    fn the_summary_has_each_step() {
        let record = Record {
            steps: vec![StepRecord {
                name: "fmt".into(),
                seconds: 2.0,
                results: Results::of("fmt", false, Ok(())),
            }],
            ..Record::default()
        };
        let text = table(&record);
        let row = "fmt                    1       0      2.0      0.0";
        assert!(text.contains(row), "{text}");
    }
}
