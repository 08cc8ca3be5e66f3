//! `cargo xtask figures`: makes the measurements, stores their results in `docs/results` and writes the tables of
//! `docs/performance.md` and README.md from them. With `--check` it makes only the cheap measurements and compares their results
//! with the stored ones, and the tables with what the stored ones give.
//!
//! `figures.toml` has the commands and the table's rows. `runs` runs the commands, `stored` has the files, `compare` the
//! tolerances, `path` finds figures in results, `table` makes the table.

mod compare;
pub(crate) mod path;
pub(crate) mod runs;
mod stored;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::runs::{Phase, Run};
use self::stored::Made;
use crate::pace::{Pace, about};
use crate::{boot, image, user};
use xtask::files;
use xtask::graph::{self, Job};
use xtask::workspace::root;

/// The document with the table of all figures, and the one with the table of text.
const DOCUMENTS: [&str; 2] = ["docs/performance.md", "README.md"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct FiguresOptions {
    /// Measure what is cheap and exact, write nothing, and fail where the stored results differ
    #[arg(long)]
    check: bool,
    /// Only the runs whose names fit, cheap or not; `*` at the end stands for anything; may be given several times
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
    /// List the runs, how long each takes, whether --check makes it and the commit of its results
    #[arg(long)]
    list: bool,
}

/// The contents of `figures.toml`.
#[derive(Debug, serde::Deserialize)]
struct Contents {
    runs: Vec<Run>,
    #[serde(rename = "row")]
    rows: Vec<table::Row>,
}

fn contents() -> Result<Contents> {
    toml::from_str(include_str!("figures.toml")).context("figures.toml")
}

/// The step of `cargo xtask test --all`.
pub(crate) fn check_all() -> Result<()> {
    let wrong = make(&FiguresOptions {
        check: true,
        ..FiguresOptions::default()
    })?;
    ensure!(wrong == 0, "{wrong} results are not what is stored");
    Ok(())
}

pub(crate) fn figures(options: &FiguresOptions) -> Result<ExitCode> {
    Ok(ExitCode::from(u8::from(make(options)? > 0)))
}

/// Measures, then stores or compares; returns the number of differences and failures.
fn make(options: &FiguresOptions) -> Result<usize> {
    let contents = contents()?;
    let is_chosen = |run: &&Run| match options.only.as_slice() {
        [] => run.checked || !options.check,
        globs => globs.iter().any(|glob| fits(glob, &run.name)),
    };
    let chosen: Vec<&Run> = contents.runs.iter().filter(is_chosen).collect();
    ensure!(
        !chosen.is_empty(),
        "no run fits; `cargo xtask figures --list` has their names"
    );
    if options.list {
        return list(&chosen).map(|()| 0);
    }
    // Before measuring, which takes a while and may see edits.
    let made = Made::here()?;
    let mut wrong = Vec::new();
    measure(&chosen, |run, results| {
        let lines = results.and_then(|results| match options.check {
            true => check(&run.name, &results),
            false => stored::write(run, &made, &results).map(|()| Vec::new()),
        });
        let failed = |error| vec![format!("run {}: {error:#}", run.name)];
        wrong.extend(lines.unwrap_or_else(failed));
    })?;
    let all = table::table(&contents.rows, &first_results(&contents.rows)?)?;
    let text = stored::read("text")?.context("docs/results/text.json")?;
    for (document, new) in DOCUMENTS.iter().zip([all, table::of_text(&text)?]) {
        wrong.extend(write_table(document, &new, options.check)?);
    }
    for line in &wrong {
        println!("wrong: {line}");
    }
    println!("{} runs made, {} lines wrong", chosen.len(), wrong.len());
    if options.check {
        let rest = contents.runs.iter().filter(|run| !is_chosen(run));
        let rest: Vec<_> = rest.map(|run| run.name.as_str()).collect();
        println!("not checked, for the time they take: {}", rest.join(", "));
        if !wrong.is_empty() {
            println!("`cargo xtask figures --only NAME` measures a run and stores its results");
        }
    }
    Ok(wrong.len())
}

fn list(chosen: &[&Run]) -> Result<()> {
    for run in chosen {
        let file = stored::read(&run.name)?;
        let commit = file.as_ref().and_then(|file| file["commit"].as_str());
        println!(
            "{:18} {:>4} s  {:7}  {:12}  {}",
            run.name,
            run.seconds,
            if run.checked { "checked" } else { "" },
            commit.unwrap_or("not measured"),
            run.commands.join("; ")
        );
    }
    let all = chosen.iter().map(|run| cost(run)).sum();
    println!("about {} on two quiet cores", about(all));
    Ok(())
}

/// Every difference of a run's fresh results from the stored ones: file, key, both values.
fn check(run: &str, fresh: &[Value]) -> Result<Vec<String>> {
    let name = stored::name(run);
    let Some(file) = stored::read(run)? else {
        return Ok(vec![format!("{name} is missing")]);
    };
    let differences = compare::differences(&file["results"], &Value::from(fresh));
    let lines = differences.iter().map(|line| format!("{name}: {line}"));
    Ok(lines.collect())
}

/// Writes the table of a document, or compares it line by line with what the stored results give.
fn write_table(name: &str, new: &str, check: bool) -> Result<Vec<String>> {
    let path = root().join(name);
    let document = files::text(&path)?;
    let old = table::within(&document).with_context(|| name.to_owned())?;
    if check {
        let only = |a: &str, b: &str, what: &str| -> Vec<String> {
            let lines = a.lines().filter(|line| b.lines().all(|it| it != *line));
            lines
                .map(|line| format!("{name} {what} `{line}`"))
                .collect()
        };
        return Ok([only(new, old, "lacks"), only(old, new, "has")].concat());
    }
    if new != old {
        files::write(&path, table::replace(&document, new)?)?;
        println!("wrote {name}");
    }
    Ok(Vec::new())
}

/// The results of the first command of each run that a row names, as far as they are stored.
fn first_results(rows: &[table::Row]) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for run in rows.iter().filter_map(|row| row.run.as_ref()) {
        if let Some(mut file) = stored::read(run)? {
            found.insert(run.clone(), file["results"][0].take());
        }
    }
    Ok(found)
}

/// The stored result of each command.
pub(crate) fn stored_by_command() -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for run in contents()?.runs {
        if let Some(Value::Array(results)) =
            stored::read(&run.name)?.map(|mut it| it["results"].take())
        {
            found.extend(run.commands.into_iter().zip(results));
        }
    }
    Ok(found)
}

/// The share of a run in the total time: half for runs that go two at a time.
fn cost(run: &Run) -> Duration {
    let time = Duration::from_secs(run.seconds.into());
    match run.phase {
        Phase::Count => time / 2,
        Phase::Build | Phase::Alone => time,
    }
}

/// Makes the runs, phase by phase, gives each one's results away and prints the remaining time.
fn measure(chosen: &[&Run], mut made: impl FnMut(&Run, Result<Vec<Value>>)) -> Result<()> {
    println!("building what is measured");
    let mut names = chosen.iter().map(|run| run.name.as_str());
    let granule = prepare(names.any(|name| ["user", "size"].contains(&name)))?;
    let start = Instant::now();
    let mut pace = Pace::of(chosen.iter().map(|run| cost(run)).sum());
    println!(
        "{} runs, about {} on two quiet cores",
        chosen.len(),
        about(pace.left(Duration::ZERO))
    );
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
            let ended = ["FAILED", "made"][usize::from(finished.result.is_ok())];
            println!(
                "{:18} {ended} in {}; about {} left",
                run.name,
                about(finished.time),
                about(pace.left(start.elapsed()))
            );
            made(run, finished.result);
            // The others are measured all the same.
            true
        },
    );
    Ok(())
}

/// Builds what is booted, also the images for one page size if asked, so that no build runs beside another.
pub(crate) fn prepare(fixed: bool) -> Result<PathBuf> {
    if fixed {
        for size in image::Fixed::ALL {
            image::image(Some(size))?;
        }
    }
    // Last, so that its ELF file is the one that stays.
    image::image(None)?;
    user::build()?;
    boot::build_cli()
}

/// Whether a name fits a pattern; `*` at its end stands for anything.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let start = pattern.strip_suffix('*');
    start.map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_its_figures_in_the_stored_results() {
        let Contents { runs, rows } = contents().unwrap();
        let results = first_results(&rows).unwrap();
        for row in &rows {
            let Some(run) = &row.run else { continue };
            let is_there = runs.iter().any(|it| it.name == *run);
            assert!(is_there, "{}: no run {run}", row.what);
            let cells = row.cells(results.get(run));
            assert!(cells.is_ok(), "{}: {:#}", row.what, cells.unwrap_err());
        }
    }

    #[test]
    fn runs_have_names_of_their_own_and_stand_in_the_order_of_their_phases() {
        let runs = contents().unwrap().runs;
        assert!(runs.is_sorted_by_key(|run| run.phase));
        let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names.len(), runs.len());
    }

    #[test]
    fn every_file_of_results_is_of_a_run() {
        let runs = contents().unwrap().runs;
        for entry in std::fs::read_dir(root().join("docs/results")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // The record of CI's runs is a list that grows.
            if name == "ci.jsonl" {
                continue;
            }
            let run = runs.iter().find(|run| name == format!("{}.json", run.name));
            let run = run.unwrap_or_else(|| panic!("{name}: no run has this name"));
            let commands = stored::read(&run.name).unwrap().unwrap()["commands"].take();
            assert_eq!(commands, Value::from(run.commands.clone()), "{name}");
        }
    }

    #[test]
    fn names_fit_patterns() {
        assert!(fits("blocks", "blocks") && !fits("blocks", "blocks-52"));
        assert!(fits("blocks*", "blocks-52") && fits("*", "a") && !fits("l*", "blocks"));
    }
}
