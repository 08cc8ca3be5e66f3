//! `cargo xtask figures`: measures every figure of the documents and writes it into them. With `--check` it
//! makes only the cheap measurements and reports figures that are no longer true.
//!
//! `figures.toml` has the commands and the single figures. `document` finds the markers, `runs` runs the commands,
//! `tables` and `values` compute figures from their output, `compare` has the tolerances. Files are read and
//! written in this file only.

mod compare;
mod document;
mod path;
mod runs;
mod tables;
mod tlb;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use self::document::{Kind, Marker};
use self::runs::{Phase, Run, Said};
use crate::pace::{Pace, about};
use crate::{boot, image, user};
use xtask::files;
use xtask::graph::{self, Job};
use xtask::workspace::{git, root};

/// The documents with figures.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "docs/reliability.md",
    "docs/performance.md",
    "docs/host-benchmarks.md",
    "docs/architecture.md",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measure what is cheap and exact, write nothing, and fail where a document says something else
    #[arg(long)]
    check: bool,
    /// Only the runs whose names fit, cheap or not; `*` stands for anything; may be given several times
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// List the runs, how long each takes and whether --check makes it
    #[arg(long)]
    list: bool,
}

/// The measurements: by name of the run, its output or the reason for its absence.
type Measured = BTreeMap<&'static str, Result<Vec<Said>, String>>;

/// What `figures.toml` contains.
#[derive(Debug, serde::Deserialize)]
struct Contents {
    runs: Vec<Run>,
    values: Vec<values::Value>,
}

fn contents() -> Result<&'static Contents> {
    static CONTENTS: LazyLock<Result<Contents, toml::de::Error>> =
        LazyLock::new(|| toml::from_str(include_str!("figures.toml")));
    let contents = CONTENTS.as_ref();
    contents.map_err(|error| anyhow!("figures.toml: {error}"))
}

/// The step of `cargo xtask test --all`.
pub(crate) fn check_all() -> Result<()> {
    let wrong = make(&Options {
        check: true,
        only: Vec::new(),
        list: false,
    })?;
    ensure!(wrong == 0, "{wrong} figures of the documents are not true");
    Ok(())
}

/// The command.
pub(crate) fn figures(options: &Options) -> Result<ExitCode> {
    Ok(match make(options)? {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Measures, then writes or compares; returns the number of wrong figures or runs.
fn make(options: &Options) -> Result<usize> {
    let runs = &contents()?.runs;
    let chosen: Vec<&'static Run> = runs
        .iter()
        .filter(|run| run.checked || !options.check || !options.only.is_empty())
        .filter(|run| {
            options.only.is_empty() || options.only.iter().any(|glob| fits(glob, &run.name))
        })
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no run fits; `cargo xtask figures --list` has their names"
    );
    if options.list {
        list(&chosen);
        return Ok(0);
    }
    // A marker without a measurement is reported before anything is measured.
    read_all()?;
    let commit = commit()?;
    let measured = measure(&chosen)?;
    // Measuring takes a while, and the documents may have been edited meanwhile.
    let documents = read_all()?;
    let mut wrong = Vec::new();
    for (run, result) in &measured {
        if let Err(error) = result {
            wrong.push(format!("run {run}: {error}"));
        }
    }
    for (name, text) in &documents {
        if options.check {
            wrong.extend(check(name, text, &measured)?);
        } else {
            let new = write(text, &measured, &commit).with_context(|| name.to_string())?;
            if new != *text {
                files::write(&root().join(name), new)?;
                println!("wrote {name}");
            }
        }
    }
    if options.check {
        let rest = runs.iter().filter(|run| !run.checked);
        let rest: Vec<_> = rest.map(|run| run.name.as_str()).collect();
        println!("not checked, for the time they take: {}", rest.join(", "));
    }
    for line in &wrong {
        println!("wrong: {line}");
    }
    println!(
        "{} runs made, {} figures or runs wrong",
        measured.len(),
        wrong.len()
    );
    if options.check && !wrong.is_empty() {
        println!("`cargo xtask figures` measures and writes all of them");
    }
    Ok(wrong.len())
}

fn list(chosen: &[&Run]) {
    for run in chosen {
        let checked = if run.checked { "checked" } else { "" };
        let commands = run.commands.join("; ");
        println!(
            "{:18} {:>4} s  {checked:7}  {commands}",
            run.name, run.seconds
        );
    }
    let all = chosen.iter().map(|run| cost(run)).sum();
    println!("about {} on two quiet cores", about(all));
}

/// The documents; every marker in them has a run or a computation.
fn read_all() -> Result<Vec<(&'static str, String)>> {
    let mut documents = Vec::new();
    for name in DOCUMENTS {
        let text = files::text(&root().join(name))?;
        for marker in document::markers(&text).with_context(|| name.to_owned())? {
            figure(&marker).with_context(|| format!("{name}:{}", marker.line))?;
        }
        documents.push((name, text));
    }
    Ok(documents)
}

type Render = Box<dyn Fn(&[Said]) -> Result<String>>;

/// The run that a marker's figure comes from, and its computation; none for the line that names the commit.
fn figure(marker: &Marker) -> Result<Option<(&'static str, Render)>> {
    let found = match marker.kind {
        Kind::Measured => return Ok(None),
        Kind::Block => {
            let block = tables::BLOCKS.iter().find(|b| b.name == marker.name);
            block.map(|block| (block.run, Box::new(block.render) as Render))
        }
        Kind::Value => {
            let value = contents()?.values.iter().find(|v| v.name == marker.name);
            let render = |value: &'static values::Value| Box::new(|said: &[_]| value.render(said));
            value.map(|value| (value.run.as_str(), render(value) as Render))
        }
    };
    found.map(Some).with_context(|| {
        let name = marker.name;
        format!("no figure is called {name}; tools/xtask/src/figures has their names")
    })
}

/// The new text between the markers; none if its run was not made or failed.
fn render(marker: &Marker, measured: &Measured) -> Result<Option<String>> {
    let Some((run, render)) = figure(marker)? else {
        return Ok(None);
    };
    let Some(Ok(said)) = measured.get(run) else {
        return Ok(None);
    };
    let text = render(said).with_context(|| format!("line {}: {}", marker.line, marker.name));
    text.map(Some)
}

/// Every figure that differs from the measurement: document, line, found, measured.
fn check(name: &str, text: &str, measured: &Measured) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for marker in document::markers(text)? {
        let Some(new) = render(&marker, measured)? else {
            continue;
        };
        let tell = |line: usize, found: &str, measured: &str| {
            format!("{name}:{line}: found `{found}`, measured `{measured}`")
        };
        if marker.kind == Kind::Value {
            let mut exact = contents()?.values.iter().filter(|value| value.exact);
            let near = exact.all(|value| value.name != marker.name);
            if !compare::values(marker.body, &new, near) {
                wrong.push(tell(marker.line, marker.body, &new));
            }
        } else {
            let differences = compare::blocks(marker.body, &new);
            wrong.extend(
                differences
                    .iter()
                    .map(|d| tell(marker.line + d.below, &d.found, &d.measured)),
            );
        }
    }
    Ok(wrong)
}

/// The document with the measured figures, and the commit at its head.
fn write(text: &str, measured: &Measured, commit: &str) -> Result<String> {
    let mut made = Vec::new();
    for marker in document::markers(text)? {
        if let Some((run, _)) = figure(&marker)?
            && !made.contains(&run)
        {
            made.push(run);
        }
    }
    document::rewrite(text, |marker| {
        if marker.kind == Kind::Measured {
            let new = |run: &str| matches!(measured.get(run), Some(Ok(_)));
            return Ok(head(marker.body, &made, new, commit));
        }
        render(marker, measured)
    })
}

const AT: &str = "Figures: commit ";
const ELSEWHERE: &str = "; of an earlier one: ";

/// The line with the measured commit. Runs that were not made now keep the commit that the line had for
/// them; none if none was made.
fn head(old: &str, runs: &[&str], new: impl Fn(&str) -> bool, commit: &str) -> Option<String> {
    if !runs.iter().any(|run| new(run)) {
        return None;
    }
    let old = old.trim().trim_start_matches(AT);
    let old = old.split(" (").next().unwrap_or_default();
    let (main, others) = old.split_once(ELSEWHERE).unwrap_or((old, ""));
    let at = |run: &str| {
        let other = others.split(", ").find_map(|other| {
            let (name, commit) = other.split_once("` ")?;
            (name.trim_start_matches('`') == run).then_some(commit)
        });
        let at = other.unwrap_or(main);
        if at.is_empty() { "never" } else { at }
    };
    let earlier: Vec<String> = runs
        .iter()
        .filter(|run| !new(run) && at(run) != commit)
        .map(|run| format!("`{run}` {}", at(run)))
        .collect();
    let mut line = format!("{AT}{commit}");
    if !earlier.is_empty() {
        line += &format!("{ELSEWHERE}{}", earlier.join(", "));
    }
    Some(line + " (written by `cargo xtask figures`, checked by `cargo xtask figures --check`)\n")
}

/// The measured commit, marked if the work tree has changes other than to documents.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| git(&root(), arguments);
    let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let status = git(&["status", "--porcelain", "--untracked-files=no"])?;
    if status.lines().any(|line| !line.ends_with(".md")) {
        commit += " with changes";
    }
    Ok(commit)
}

/// What a run adds to the total time: half for runs that go two at a time.
fn cost(run: &Run) -> Duration {
    let time = Duration::from_secs(run.seconds.into());
    match run.phase {
        Phase::Count => time / 2,
        Phase::Build | Phase::Alone => time,
    }
}

/// Makes the runs, phase by phase, and prints the remaining time after each.
fn measure(chosen: &[&'static Run]) -> Result<Measured> {
    println!("building what is measured");
    let granule = prepare(chosen)?;
    let start = Instant::now();
    let mut pace = Pace::of(chosen.iter().map(|run| cost(run)).sum());
    println!(
        "{} runs, about {} on two quiet cores",
        chosen.len(),
        about(pace.left(Duration::ZERO))
    );
    let mut measured = Measured::new();
    let before = |phase| (0..chosen.len()).filter(move |&at| chosen[at].phase < phase);
    let jobs = chosen.iter().map(|run| Job {
        needs: before(run.phase).collect(),
        alone: run.phase != Phase::Count,
        expected: Duration::from_secs(run.seconds.into()),
        lock: None,
    });
    graph::run(
        &jobs.collect::<Vec<_>>(),
        graph::parallel(),
        || true,
        |job| runs::measure(chosen[job], &granule),
        |finished| {
            let run = chosen[finished.job];
            pace.ended(cost(run));
            let result = finished.result.map_err(|error| format!("{error:#}"));
            println!(
                "{:18} {} in {}; about {} left",
                run.name,
                if result.is_ok() { "measured" } else { "FAILED" },
                about(finished.time),
                about(pace.left(start.elapsed()))
            );
            measured.insert(&run.name, result);
            // The others are measured all the same.
            true
        },
    );
    Ok(measured)
}

/// Builds everything that the runs boot, so that no build runs beside another.
fn prepare(chosen: &[&Run]) -> Result<std::path::PathBuf> {
    let needs = |names: &[&str]| chosen.iter().any(|run| names.contains(&run.name.as_str()));
    if needs(&["user", "size"]) {
        for size in image::Fixed::ALL {
            image::image(Some(size))?;
        }
    }
    // Last, so that its ELF file is the one that stays.
    image::image(None)?;
    user::build()?;
    let granule = boot::build_cli()?;
    ensure!(
        Path::new(&granule).exists(),
        "{} is not there",
        granule.display()
    );
    Ok(granule)
}

/// Whether a name fits a pattern in which `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len())
                .filter(|at| name.is_char_boundary(*at))
                .any(|at| fits(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests;
