//! `cargo xtask test`: runs the steps in order, times them, and sums up. A failed step
//! does not stop the others: one run tells all that is wrong.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::steps::{STEPS, Step};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only this step; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the steps and run none
    #[arg(long)]
    list: bool,
}

/// Runs what was chosen. The last line is `N passed, N failed`.
pub(crate) fn test(options: &Options) -> Result<ExitCode> {
    let steps = choose(&options.only)?;
    if options.list {
        for step in steps {
            println!("{:13} {}", step.name, step.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut results = Vec::new();
    for step in steps {
        println!("\n=== {}: {}", step.name, step.what);
        let start = Instant::now();
        let result = (step.run)();
        let time = start.elapsed();
        match &result {
            Ok(()) => println!("=== {} passed in {}", step.name, seconds(time)),
            Err(error) => println!("=== {} FAILED in {}: {error:#}", step.name, seconds(time)),
        }
        results.push((
            step.name,
            result.err().map(|error| format!("{error:#}")),
            time,
        ));
    }
    print!("{}", summary(&results));
    let failed = results.iter().any(|(_, error, _)| error.is_some());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn choose(only: &[String]) -> Result<Vec<&'static Step>> {
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
        .filter(|s| only.is_empty() || only.iter().any(|n| n == s.name))
        .collect())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f32())
}

fn summary(results: &[(&str, Option<String>, Duration)]) -> String {
    use std::fmt::Write;
    let mut text = "\n".to_owned();
    for (name, error, time) in results {
        let mark = if error.is_some() { "FAILED" } else { "ok" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:13} {mark:6} {:>9}", seconds(*time));
    }
    let total: Duration = results.iter().map(|(_, _, time)| *time).sum();
    let _ = writeln!(text, "{:13} {:6} {:>9}", "total", "", seconds(total));
    let failed: Vec<_> = results
        .iter()
        .filter_map(|(n, e, _)| Some((n, e.as_ref()?)))
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
        let text = summary(&[
            ("fmt", None, second),
            ("doc", Some("a warning".to_owned()), 2 * second),
        ]);
        assert!(text.contains("failed: doc: a warning"), "{text}");
        assert!(text.contains("3.0 s"), "{text}");
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed"));
    }

    #[test]
    fn steps_are_chosen_by_name_in_their_order() {
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|n| (*n).to_owned()).collect();
            choose(&only).map(|steps| steps.iter().map(|s| s.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), STEPS.len());
        assert_eq!(names(&["miri", "fmt"]).unwrap(), ["fmt", "miri"]);
        assert!(
            names(&["nope"])
                .unwrap_err()
                .to_string()
                .contains("qemu-matrix")
        );
    }
}
