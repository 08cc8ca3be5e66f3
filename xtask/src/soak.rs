//! `cargo xtask soak`: everything in full. Random operations on the model, the whole QEMU
//! matrix, then random cases, with a state file from which an interrupted run goes on.
//!
//! The last line is always `soak: N cases, N failed, seed S, commit C`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::image::{self, Image};
use crate::matrix::{self, Case};
use crate::workspace::{capture, cargo, root, run_tests, target_dir};
use crate::{boot, boots};

/// The longest that one soak may take, in minutes.
const LONGEST: u64 = 6 * 60;

/// Operations of the library on the model of the MMU.
const OPERATIONS: u64 = 1_200_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Start no case after this many minutes; a later run goes on where this one stopped
    #[arg(long, default_value_t = LONGEST, value_parser = clap::value_parser!(u64).range(1..=LONGEST))]
    minutes: u64,
    /// What the random cases are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random cases after the matrix
    #[arg(long, default_value_t = 300)]
    random: usize,
    /// Forget the state of an earlier run
    #[arg(long)]
    restart: bool,
    /// Write the last line into docs/reliability.md
    #[arg(long)]
    record: bool,
}

/// What is kept between runs. A state counts only for the same commit, image and seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    commit: String,
    image: String,
    seed: u64,
    /// Case to what was wrong with it (`None`: nothing).
    done: BTreeMap<String, Option<String>>,
}

impl State {
    fn same_run(&self, other: &State) -> bool {
        (&self.commit, &self.image, self.seed) == (&other.commit, &other.image, other.seed)
    }

    fn failed(&self) -> usize {
        self.done.values().filter(|wrong| wrong.is_some()).count()
    }

    fn line(&self) -> String {
        format!(
            "soak: {} cases, {} failed, seed {}, commit {}",
            self.done.len(),
            self.failed(),
            self.seed,
            self.commit
        )
    }
}

/// Runs what is left. Success only when every case ran and none failed.
pub(crate) fn soak(options: &Options) -> Result<ExitCode> {
    let image = image::image()?;
    let granule = boot::build_cli()?;
    let fresh = State {
        commit: commit()?,
        image: image.sha256.clone(),
        seed: options.seed,
        done: BTreeMap::new(),
    };
    let file = target_dir().join("soak").join("state.json");
    let state = if options.restart {
        fresh
    } else {
        resume(&file, fresh)?
    };
    let state = on_the_model(state, &file)?;
    let mut cases = matrix::full();
    cases.extend(matrix::random(options.seed, options.random));
    let deadline = Instant::now() + Duration::from_secs(60 * options.minutes);
    let (state, left) = run(cases, state, &file, &granule, &image, deadline)?;
    for (case, wrong) in &state.done {
        if let Some(wrong) = wrong {
            println!("failed: {}: {wrong}", as_typed(case));
        }
    }
    if left > 0 {
        println!("stopped with {left} cases to go; the same command goes on from here");
    } else if options.record {
        record(&root().join("docs").join("reliability.md"), &state.line())?;
    }
    println!("{}", state.line());
    Ok(if left == 0 && state.failed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The one case that boots nothing; its name is not that of any [`Case`].
const ON_THE_MODEL: &str = "model harness";

/// Runs the harness of the model with the soak's seed, unless that was done before. One case,
/// which takes minutes.
fn on_the_model(mut state: State, file: &Path) -> Result<State> {
    if state.done.contains_key(ON_THE_MODEL) {
        return Ok(state);
    }
    let mut command = cargo(&["test", "-p", "granule-model", "--test", "harness"]);
    command
        .args(["--", "--nocapture", "sequence::"])
        .env("GRANULE_HARNESS_SEED", state.seed.to_string())
        .env("GRANULE_HARNESS_OPERATIONS", OPERATIONS.to_string());
    println!(
        "soak: {OPERATIONS} operations on the model, seed {}",
        state.seed
    );
    let wrong = match run_tests(command) {
        Ok(0) => Some("no test was run".to_owned()),
        Ok(_) => None,
        Err(error) => Some(format!(
            "{error:#}, with GRANULE_HARNESS_SEED={} GRANULE_HARNESS_OPERATIONS={OPERATIONS}",
            state.seed
        )),
    };
    state.done.insert(ON_THE_MODEL.to_owned(), wrong);
    save(file, &state)?;
    Ok(state)
}

/// What repeats a case.
fn as_typed(case: &str) -> String {
    if case == ON_THE_MODEL {
        return "cargo test -p granule-model --test harness -- sequence::".to_owned();
    }
    format!("granule boot {case}")
}

fn run(
    mut cases: Vec<Case>,
    mut state: State,
    file: &Path,
    granule: &Path,
    image: &Image,
    deadline: Instant,
) -> Result<(State, usize)> {
    cases.retain(|case| !state.done.contains_key(&case.to_string()));
    cases.sort();
    cases.dedup();
    let total = cases.len();
    println!(
        "soak: {total} cases to run, {} done before",
        state.done.len()
    );
    let mut ran = 0;
    let mut saved = Ok(());
    boots::run(&cases, granule, image, Some(deadline), |verdict| {
        ran += 1;
        let case = cases[verdict.case].to_string();
        let result = verdict.wrong.as_deref().unwrap_or("ok");
        println!(
            "[{ran}/{total}] {case}: {result} ({:.1} s)",
            verdict.time.as_secs_f32()
        );
        state.done.insert(case, verdict.wrong);
        saved = save(file, &state);
        saved.is_ok()
    });
    saved?;
    Ok((state, total - ran))
}

/// The state in the file if it is of the same run, else the fresh one.
fn resume(file: &Path, fresh: State) -> Result<State> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(fresh),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let old: State = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no state of a soak; --restart forgets it",
            file.display()
        )
    })?;
    if old.same_run(&fresh) {
        return Ok(old);
    }
    println!(
        "soak: the state is of commit {} with seed {}; beginning anew for {} with seed {}",
        old.commit, old.seed, fresh.commit, fresh.seed
    );
    Ok(fresh)
}

/// Written aside and moved: an interrupted run leaves the old state or the new one.
fn save(file: &Path, state: &State) -> Result<()> {
    let folder = file.parent().context("the state file needs a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut temporary, state)?;
    temporary
        .persist(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(())
}

/// The commit, with `+changes` where the work tree differs from it.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(root());
        capture(command)
    };
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    if !git(&["status", "--porcelain"])?.trim().is_empty() {
        commit.push_str("+changes");
    }
    Ok(commit)
}

const MARK: &str = "<!-- soak: the line below is written by `cargo xtask soak --record` -->";

/// Replaces the line after the mark.
fn record(file: &PathBuf, line: &str) -> Result<()> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = with_line(&text, line).with_context(|| format!("in {}", file.display()))?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn with_line(text: &str, line: &str) -> Result<String> {
    let (before, after) = text
        .split_once(MARK)
        .context("the mark for the soak line is gone")?;
    let mut rest = after.splitn(3, '\n');
    let (same, _old) = (rest.next().unwrap_or(""), rest.next());
    ensure!(
        same.is_empty(),
        "something follows the mark for the soak line on its own line"
    );
    let after = rest
        .next()
        .map_or(String::new(), |rest| format!("\n{rest}"));
    Ok(format!("{before}{MARK}\n{line}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(commit: &str) -> State {
        State {
            commit: commit.to_owned(),
            image: "i".into(),
            seed: 3,
            done: BTreeMap::new(),
        }
    }

    #[test]
    fn the_line_counts_failures() {
        let mut state = state("abc");
        state.done.insert("one".into(), None);
        state.done.insert("two".into(), Some("timeout".into()));
        assert_eq!(state.line(), "soak: 2 cases, 1 failed, seed 3, commit abc");
    }

    #[test]
    fn the_model_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut done = state("a");
        done.done.insert(ON_THE_MODEL.to_owned(), None);
        let file = folder.path().join("state.json");
        assert_eq!(on_the_model(done.clone(), &file).unwrap(), done);
        assert!(!file.exists());
        assert!(!as_typed(ON_THE_MODEL).contains(ON_THE_MODEL));
    }

    #[test]
    fn a_run_goes_on_only_with_the_same_commit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("soak").join("state.json");
        assert_eq!(resume(&file, state("a")).unwrap(), state("a"));
        let mut done = state("a");
        done.done.insert("case".into(), Some("wrong".into()));
        save(&file, &done).unwrap();
        assert_eq!(resume(&file, state("a")).unwrap(), done);
        assert_eq!(resume(&file, state("b")).unwrap(), state("b"));
        std::fs::write(&file, "{").unwrap();
        assert!(
            resume(&file, state("a"))
                .unwrap_err()
                .to_string()
                .contains("--restart")
        );
    }

    #[test]
    fn the_document_has_a_place_for_the_line() {
        let text = std::fs::read_to_string(root().join("docs").join("reliability.md")).unwrap();
        let new = with_line(&text, "soak: 1 cases").unwrap();
        assert!(new.contains(&format!("{MARK}\nsoak: 1 cases\n")), "{new}");
        assert_eq!(new.lines().count(), text.lines().count());
        assert_eq!(with_line(&new, "soak: 1 cases").unwrap(), new);
        assert!(with_line("nothing", "x").is_err());
    }
}
