//! `cargo xtask soak`: all cases of which CI runs samples, with a state file from which an
//! interrupted run continues.
//!
//! This file has the command line and the course of a run; [`cases`] has the cases. The last line of a
//! complete soak is `soak: N cases, N failed, seed S, commit C`, and of no other.

mod cases;
mod program;
mod record;
mod revision;
mod state;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::boot::Expected;
use crate::image::{self, Image};
use crate::matrix::payload;
use crate::pace::{Pace, about};
use crate::stop::Stop;
use crate::{boots, probe, tools, user};
pub(crate) use cases::PEERS;
use cases::{SoakCase, Work};
use program::Outcome;
use state::State;
use xtask::files;
use xtask::graph::{self, Job};
use xtask::workspace::{root, target_dir};

/// The longest time of one run, in minutes: six hours, without the last boots, which may finish.
const LONGEST: u64 = 6 * 60 - 5;
/// The least number of random boots after the matrix.
const RANDOM: u64 = 300;

#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// Stop after this many minutes; the same command goes on from there
    #[arg(long, default_value_t = LONGEST, value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    minutes: u64,
    /// Draw random cases from this seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random boots after the matrix
    #[arg(long, default_value_t = RANDOM, value_parser = clap::value_parser!(u64).range(RANDOM..=100_000))]
    random: u64,
    /// Run only cases with this in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run at most this many cases
    #[arg(long, value_name = "N")]
    cases: Option<usize>,
    /// List the cases, those that are done with how they ended, and run none
    #[arg(long)]
    list: bool,
    /// Forget the state of an earlier run
    #[arg(long)]
    restart: bool,
    /// Write the last line into docs/reliability.md, once all cases are done
    #[arg(long)]
    record: bool,
}

/// Runs the remaining cases. Success only when every case has run and none failed.
pub(crate) fn soak(options: &SoakOptions) -> Result<ExitCode> {
    let commit = revision::commit()?;
    ensure!(
        !options.record || revision::is_clean(&commit),
        "--record: the work tree differs from its commit, so the result would be of {commit}, \
         which nobody can look at: commit first"
    );
    let stop = Stop::at(Some(
        Instant::now() + Duration::from_secs(60 * options.minutes),
    ))?;
    let image = build()?;
    let folder = target_dir().join("soak");
    let fresh = State {
        commit,
        image: image.sha256.clone(),
        seed: options.seed,
        done: BTreeMap::new(),
    };
    let file = folder.join("state.json");
    let state = if options.restart {
        fresh
    } else {
        state::resume(&file, fresh)?
    };
    let cases = cases::all(options.seed, options.random.try_into()?)?;
    if options.list {
        list(&cases, &state);
        return Ok(ExitCode::SUCCESS);
    }
    let logs = folder.join("log");
    files::folder(&logs)?;
    let wanted = |case: &SoakCase| {
        let named = options
            .only
            .as_ref()
            .is_none_or(|text| case.name.contains(text));
        named && !state.done.contains_key(&case.name)
    };
    let mut todo: Vec<_> = cases.iter().filter(|case| wanted(case)).collect();
    todo.truncate(options.cases.unwrap_or(usize::MAX));
    let mut run = Run {
        state,
        file,
        stop,
        tree: &revision::commit,
    };
    run.all(&todo, &|case, stop| match &case.work {
        Work::Program(program) => {
            let log = log(&logs, &case.name);
            println!(
                "soak: {} begins, {} or so; {}",
                case.name,
                about(case.expected),
                log.display()
            );
            program.run(&log, stop)
        }
        Work::Boot(boot) => outcome_of_boot(boot, &image, stop),
        Work::Kexec(boot) => match boot.payload().map(payload::make) {
            Some(Err(error)) => Outcome::Failed(format!("{error:#}")),
            None | Some(Ok(())) => outcome_of_boot(boot, &image, stop),
        },
    })?;
    finish(&run, &cases, options.record)
}

/// Builds all that the cases boot. The image for all page sizes comes after that with hooks, so that its ELF file is
/// the one that stays.
fn build() -> Result<Image> {
    // Once, and not by each case that fuzzes.
    tools::need_cxx()?;
    image::Build::Hooks.image()?;
    let image = image::image(None)?;
    user::build()?;
    probe::build()?;
    Ok(image)
}

/// Prints the end, and returns whether it is a success.
fn finish(run: &Run<'_>, cases: &[SoakCase], record: bool) -> Result<ExitCode> {
    let state = &run.state;
    for case in cases {
        if let Some(Some(wrong)) = state.done.get(&case.name) {
            println!("failed: {}: {wrong}; again by: {}", case.name, case.typed);
        }
    }
    if let Some(why) = run.stop.why() {
        println!("soak: {why}");
    }
    let progress = state.progress(cases.iter().map(|case| case.name.as_str()));
    let line = state.line(progress);
    if record && progress.is_whole() {
        record::record(&root().join(record::FILE), &line)?;
    }
    println!("{line}");
    Ok(if progress.is_whole() && progress.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn list(cases: &[SoakCase], state: &State) {
    for case in cases {
        let ended = match state.done.get(&case.name) {
            None => "",
            Some(None) => ": ok",
            Some(Some(_)) => ": FAILED",
        };
        println!("{}{ended}", case.name);
    }
}

/// The path of a case's output.
fn log(folder: &Path, case: &str) -> PathBuf {
    let name: String = case
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    folder.join(format!("{name}.txt"))
}

fn outcome_of_boot(case: &impl Expected, image: &Image, stop: &Stop) -> Outcome {
    match boots::wrong(case, image) {
        None => Outcome::Passed,
        // The signal that stops the soak may have ended the boot.
        Some(_) if stop.now() => Outcome::Unfinished,
        Some(wrong) => Outcome::Failed(wrong),
    }
}

/// A run of a soak: adds results to the state and saves each at once.
struct Run<'a> {
    state: State,
    file: PathBuf,
    stop: Stop,
    /// The identity of the files now.
    tree: &'a dyn Fn() -> Result<String>,
}

impl Run<'_> {
    /// The longest first, so that the last one is short; a case that needs the machine for itself has it.
    fn all(
        &mut self,
        todo: &[&SoakCase],
        work: &(dyn Fn(&SoakCase, &Stop) -> Outcome + Sync),
    ) -> Result<()> {
        let mut pace = Pace::of(todo.iter().map(|case| case.share()).sum());
        println!(
            "soak: {} cases to run, {} done before; {} or so",
            todo.len(),
            self.state.done.len(),
            about(pace.left(Duration::ZERO))
        );
        let jobs: Vec<_> = todo
            .iter()
            .map(|case| Job {
                alone: case.alone,
                expected: case.expected,
                ..Job::default()
            })
            .collect();
        let start = Instant::now();
        let (mut ended, mut kept) = (0, Ok(()));
        let lost = AtomicBool::new(false);
        let Self {
            state,
            file,
            stop,
            tree,
        } = &mut *self;
        let stop = &*stop;
        graph::run(
            &jobs,
            graph::parallel(),
            || !stop.now() && !lost.load(Ordering::Relaxed),
            |index| work(todo[index], stop),
            |done| {
                let case = todo[done.job];
                let wrong = match done.result {
                    Outcome::Passed => None,
                    Outcome::Failed(wrong) => Some(wrong),
                    Outcome::Unfinished => {
                        println!("soak: {} was not finished", case.name);
                        return true;
                    }
                };
                let shown = wrong.as_deref().unwrap_or("ok");
                ended += 1;
                pace.ended(case.share());
                println!(
                    "[{ended}/{}] {}: {shown} ({:.1} s); {} to go",
                    todo.len(),
                    case.name,
                    done.time.as_secs_f32(),
                    about(pace.left(start.elapsed()))
                );
                if kept.is_ok() {
                    kept = keep(state, file, tree, &case.name, wrong);
                    lost.store(kept.is_err(), Ordering::Relaxed);
                }
                true
            },
        );
        kept
    }
}

/// Adds a result to the state and the file, if the files are still those of the state.
fn keep(
    state: &mut State,
    file: &Path,
    tree: &dyn Fn() -> Result<String>,
    case: &str,
    wrong: Option<String>,
) -> Result<()> {
    let now = tree()?;
    ensure!(
        now == state.commit,
        "the work tree was {} when the soak began and is {now} now: what ran meanwhile is of \
         neither and does not count; soak in a work tree that stays as it is",
        state.commit
    );
    state.done.insert(case.to_owned(), wrong);
    state::save(file, state)
}

#[cfg(test)]
mod tests;
