//! Runs steps in order, times them, and sums up, for `cargo xtask test` and commands with steps of their
//! own. A failed step does not stop the others, so one run reports all failures.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::steps::{STEPS, Step};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this step; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run the long steps too, as CI does
    #[arg(long)]
    all: bool,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
}

/// Runs the chosen steps. The last line is `N passed, N failed`.
pub(crate) fn test(options: &Options) -> Result<ExitCode> {
    let steps = choose(options)?;
    if options.list {
        for step in steps {
            let long = if step.long { " (--all)" } else { "" };
            println!("{:13} {}{long}", step.name, step.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    Ok(run(steps))
}

/// Runs the steps in order and sums up.
pub(crate) fn run<'a>(steps: impl IntoIterator<Item = &'a Step>) -> ExitCode {
    let mut results = Vec::new();
    for step in steps {
        println!("\n=== {}: {}", step.name, step.what);
        let (start, cpu) = (Instant::now(), children_cpu_time());
        let result = (step.run)();
        let (time, cpu) = (start.elapsed(), children_cpu_time().saturating_sub(cpu));
        match &result {
            Ok(()) => println!("=== {} passed in {}", step.name, seconds(time)),
            Err(error) => println!("=== {} FAILED in {}: {error:#}", step.name, seconds(time)),
        }
        results.push(Ended {
            name: step.name,
            error: result.err().map(|error| format!("{error:#}")),
            time,
            cpu,
        });
    }
    print!("{}", summary(&results));
    if results.iter().any(|ended| ended.error.is_some()) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// The result of a step.
#[derive(Debug)]
struct Ended {
    name: &'static str,
    error: Option<String>,
    time: Duration,
    /// CPU time of all its children, which does not grow on a busy machine.
    cpu: Duration,
}

/// CPU time of all children that have ended (`cutime` and `cstime` of proc(5), in hundredths of a second).
/// Zero on a host without `/proc`.
fn children_cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let words = behind_name.split_ascii_whitespace().skip(13).take(2);
    let hundredths: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * hundredths)
}

fn choose(options: &Options) -> Result<Vec<&'static Step>> {
    let only = &options.only;
    if let Some(unknown) = only
        .iter()
        .find(|name| STEPS.iter().all(|step| step.name != **name))
    {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!(
            "no step is called {unknown}; there are {}",
            names.join(", ")
        );
    }
    Ok(STEPS
        .iter()
        .filter(|step| match only.is_empty() {
            true => options.all || !step.long,
            false => only.iter().any(|name| name == step.name),
        })
        .collect())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f32())
}

fn summary(results: &[Ended]) -> String {
    use std::fmt::Write;
    let mut text = format!("\n{:20} {:>9} {:>9}\n", "", "time", "CPU time");
    for ended in results {
        let mark = if ended.error.is_some() {
            "FAILED"
        } else {
            "ok"
        };
        let (time, cpu) = (seconds(ended.time), seconds(ended.cpu));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:13} {mark:6} {time:>9} {cpu:>9}", ended.name);
    }
    let total = |of: fn(&Ended) -> Duration| seconds(results.iter().map(of).sum());
    let (time, cpu) = (total(|ended| ended.time), total(|ended| ended.cpu));
    let _ = writeln!(text, "{:20} {time:>9} {cpu:>9}", "total");
    let failed: Vec<_> = results
        .iter()
        .filter_map(|ended| Some((ended.name, ended.error.as_ref()?)))
        .collect();
    for (name, error) in &failed {
        let _ = writeln!(text, "failed: {name}: {error}");
    }
    let _ = writeln!(
        text,
        "{} passed, {} failed",
        results.len() - failed.len(),
        failed.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_ends_in_the_count() {
        let second = Duration::from_secs(1);
        let ended = |name, error: Option<&str>, time| Ended {
            name,
            error: error.map(str::to_owned),
            time,
            cpu: 2 * time,
        };
        let text = summary(&[
            ended("fmt", None, second),
            ended("doc", Some("a warning"), 2 * second),
        ]);
        assert!(text.contains("failed: doc: a warning"), "{text}");
        assert!(text.contains("3.0 s     6.0 s"), "{text}");
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed"));
    }

    #[test]
    fn steps_are_chosen_by_name_in_their_order() {
        let names = |only: &[&str], all| {
            let options = Options {
                only: only.iter().map(|name| (*name).to_owned()).collect(),
                all,
                list: false,
            };
            choose(&options).map(|steps| steps.iter().map(|s| s.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], true).unwrap().len(), STEPS.len());
        assert!(!names(&[], false).unwrap().contains(&"miri"));
        assert_eq!(names(&["miri", "fmt"], false).unwrap(), ["fmt", "miri"]);
        let error = names(&["nope"], false).unwrap_err().to_string();
        assert!(error.contains("qemu-matrix"), "{error}");
    }

    #[test]
    fn cpu_time_of_children_is_counted() {
        let before = children_cpu_time();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-c", script]).status().unwrap().success());
        assert!(!cfg!(target_os = "linux") || children_cpu_time() > before);
    }
}
