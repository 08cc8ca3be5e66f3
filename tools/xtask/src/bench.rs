//! `cargo xtask bench`: `granule-bench` in several builds, the worst of which counts, or the instructions of the
//! same rows on arm64.
//!
//! Each build has a different amount of unrelated code, because that changes how compiler and
//! linker lay out the same source. tools/granule-bench/README.md has the keys of both JSON objects.

mod instructions;

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use xtask::files;
use xtask::workspace::{capture, cargo, run, target_dir};

/// The keys by which rows of different runs are matched.
const NAMES: [&str; 5] = ["bytes", "leaf_bytes", "calls", "subject", "step"];

#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// Builds with different amounts of unrelated code
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=10))]
    builds: u16,
    /// Count the instructions on arm64 instead, with link-time optimisation and without
    #[arg(long, conflicts_with_all = ["builds", "quick", "rounds", "cpu"])]
    instructions: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Smaller ranges and fewer rounds; decides no goal
    #[arg(long)]
    quick: bool,
    /// Timed rounds of each build
    #[arg(long, value_name = "N")]
    rounds: Option<u16>,
    /// The CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

impl BenchOptions {
    /// The arguments of `granule-bench`.
    fn arguments(&self) -> Vec<String> {
        let rounds = self.rounds.map(|rounds| format!("--rounds={rounds}"));
        let cpu = self.cpu.map(|cpu| format!("--cpu={cpu}"));
        let quick = self.quick.then(|| "--quick".to_owned());
        let all = [Some("--json".to_owned()), rounds, cpu, quick];
        all.into_iter().flatten().collect()
    }
}

pub(crate) fn bench(options: &BenchOptions) -> Result<()> {
    let result = if options.instructions {
        instructions::counts()?
    } else {
        let programs = (0..options.builds).map(build).collect::<Result<Vec<_>>>()?;
        let runs = programs.iter().map(|program| {
            let mut command = Command::new(program);
            command.args(options.arguments());
            let text = capture(command)?;
            serde_json::from_str(&text).context("granule-bench printed no JSON")
        });
        merge(&runs.collect::<Result<Vec<Value>>>()?)?
    };
    if options.json {
        println!("{result:#}");
    } else if options.instructions {
        print!("{}", instructions::text(&result)?);
    } else {
        print!("{}", text(&result)?);
    }
    Ok(())
}

/// Builds `granule-bench` with that much unrelated code, into a file of its own.
fn build(amount: u16) -> Result<std::path::PathBuf> {
    let folder = target_dir().join("bench");
    files::folder(&folder)?;
    let mut command = cargo(&["build", "--release", "-p", "granule-bench"]);
    command.env("GRANULE_BENCH_UNRELATED", amount.to_string());
    run(command)?;
    let built = target_dir().join("release").join("granule-bench");
    let program = folder.join(format!("granule-bench-{amount}"));
    std::fs::copy(&built, &program)
        .with_context(|| format!("cannot copy {} to {}", built.display(), program.display()))?;
    Ok(program)
}

/// The median of a row or of a goal.
fn median(value: &Value) -> Result<f64> {
    value["ratio"]["median"]
        .as_f64()
        .context("granule-bench printed no median")
}

/// The worst of the same object of each run, with its median in each run.
fn worst<'a>(same: impl Iterator<Item = &'a Value>) -> Result<Value> {
    let same: Vec<_> = same.collect();
    let medians = same.iter().map(|value| median(value));
    let medians = medians.collect::<Result<Vec<_>>>()?;
    let worst = same.iter().zip(&medians).max_by(|a, b| a.1.total_cmp(b.1));
    let mut worst = (*worst.context("granule-bench did not run")?.0).clone();
    worst["builds"] = json!(medians);
    Ok(worst)
}

/// For each row and goal the run with the worst ratio, and the ratios of the others.
fn merge(runs: &[Value]) -> Result<Value> {
    let mut merged = runs.first().context("granule-bench did not run")?.clone();
    for (key, names) in [("rows", &NAMES[..]), ("goals", &["what"][..])] {
        let lists = runs.iter().map(|run| run[key].as_array());
        let lists = lists.collect::<Option<Vec<_>>>();
        let lists = lists.with_context(|| format!("granule-bench has no {key}"))?;
        let name = |row: &Value| {
            names
                .iter()
                .map(|name| row[name].clone())
                .collect::<Vec<_>>()
        };
        let all = |list: &[Value]| list.iter().map(name).collect::<Vec<_>>();
        ensure!(
            lists.iter().all(|list| all(list) == all(lists[0])),
            "the builds of granule-bench have different {key}"
        );
        let each = (0..lists[0].len()).map(|at| worst(lists.iter().map(|list| &list[at])));
        merged[key] = each.collect::<Result<Vec<_>>>()?.into();
    }
    let fault = runs
        .iter()
        .map(|run| &run["fault"])
        .find(|fault| !fault.is_null());
    merged["fault"] = fault.cloned().unwrap_or(Value::Null);
    Ok(merged)
}

/// How a goal was judged.
fn reached(goal: &Value) -> &'static str {
    match goal["reached"].as_bool() {
        Some(true) => "reached",
        Some(false) => "missed",
        None => "not decided",
    }
}

/// A line for each subject and step.
fn text(result: &Value) -> Result<String> {
    let mut text = String::new();
    for row in result["rows"].as_array().context("no rows")? {
        let name = |key: &str| row[key].as_str().unwrap_or_default();
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let _ = write!(
            text,
            "{:>6} MiB, leaves of {:>7} KiB, {:<24} {:<29} {:<7}",
            number("bytes") >> 20,
            number("leaf_bytes") >> 10,
            name("calls"),
            name("subject"),
            name("step"),
        );
        if let Some(builds) = row["builds"].as_array() {
            let all = builds.iter().filter_map(Value::as_f64);
            let least = all.clone().fold(f64::INFINITY, f64::min);
            let most = all.fold(0.0, f64::max);
            let _ = write!(text, " {most:>8.2} x floor (best build {least:>8.2})");
        }
        text.push('\n');
    }
    for goal in result["goals"].as_array().into_iter().flatten() {
        let reached = reached(goal);
        let what = goal["what"].as_str().unwrap_or_default();
        let (most, found) = (&goal["at_most"], median(goal)?);
        let _ = writeln!(
            text,
            "{what}: at most {most}, in the worst build {found:.2}: {reached}"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(map: f64, reached: bool, fault: Option<&str>) -> Value {
        json!({
            "rows": [{"bytes": 4096, "leaf_bytes": 4096, "calls": "range", "subject": "granule",
                "step": "map", "ratio": {"median": map}}],
            "floors": [],
            "goals": [{"what": "map", "at_most": 1.3, "ratio": {"median": map}, "reached": reached}],
            "fault": fault,
        })
    }

    #[test]
    fn the_worst_build_counts() {
        let runs = [
            result(1.1, true, None),
            result(1.4, false, Some("x")),
            result(1.2, true, None),
        ];
        let merged = merge(&runs).unwrap();
        let row = &merged["rows"][0];
        assert_eq!(row["ratio"]["median"], 1.4);
        assert_eq!(row["builds"], json!([1.1, 1.4, 1.2]));
        assert_eq!(merged["goals"][0]["reached"], false);
        assert_eq!(merged["fault"], "x");
        let text = text(&merged).unwrap();
        assert!(text.contains("in the worst build 1.40: missed"), "{text}");
    }

    #[test]
    fn rows_that_differ_between_builds_are_an_error() {
        let mut other = result(1.0, true, None);
        other["rows"][0]["step"] = json!("unmap");
        let error = merge(&[result(1.0, true, None), other]).unwrap_err();
        assert!(error.to_string().contains("different rows"), "{error}");
        let mut fewer = result(1.0, true, None);
        fewer["rows"] = json!([]);
        let error = merge(&[result(1.0, true, None), fewer]).unwrap_err();
        assert!(error.to_string().contains("different rows"), "{error}");
    }
}
