//! `granule-peers` as steps: the checks of every run, and ten parts that depend on Debian and not
//! on the commit.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::history::PARTS;
use crate::results::{Failure, Results};
use xtask::workspace::{root, run as run_command, target_dir};

/// The words for `granule-peers`, a row for each part; `--few` leaves all kernels out but the oldest.
const ROWS: [&[&str]; PARTS as usize] = [
    &["trees"],
    &["boards"],
    &["firmware"],
    &["disk", "kexec-efi"],
    &["inspect"],
    &["makedumpfile", "tlb"],
    &["watch"],
    &["watch-others", "from-linux", "crash"],
    &["sensitivity"],
    &["shell", "kexec", "bench"],
];

/// The checks of every run.
const ALWAYS: [&str; 4] = ["shell", "kexec", "inspect", "bench"];

fn words(parts: &[&str]) -> Vec<String> {
    let words = parts.iter().flat_map(|&part| ["--only", part]);
    words.map(str::to_owned).collect()
}

/// The arguments for the checks of every run, but for those that the part has with all kernels.
pub(crate) fn always(number: u64) -> Vec<String> {
    let of_part = part(number);
    let mut parts = ALWAYS.to_vec();
    parts.retain(|name| !of_part.iter().any(|word| word == name));
    let mut words = words(&parts);
    words.push("--few".into());
    words
}

/// The arguments for a part.
pub(crate) fn part(part: u64) -> Vec<String> {
    words(
        usize::try_from(part)
            .ok()
            .and_then(|part| ROWS.get(part))
            .copied()
            .unwrap_or_default(),
    )
}

/// Fetches the packages of all parts.
pub(crate) fn fetch() -> Result<()> {
    run_command(command(&words(&["packages"])))
}

/// The program, which the step `build` has built.
fn command(arguments: &[String]) -> Command {
    let program = target_dir().join("debug").join("granule-peers");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null());
    command
}

/// Runs with these arguments: each check is live, for its kernels are others' and run in real time. A check that is run
/// `again` fails too if something before it failed.
pub(crate) fn run(arguments: &[String], again: &[String]) -> Result<Results> {
    let mut command = command(arguments);
    command.arg("--json").stderr(Stdio::inherit());
    let output = command.output().context("cannot start granule-peers")?;
    let report: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "granule-peers ended with {} and printed no JSON",
            output.status
        )
    })?;
    let checks = report["checks"].as_array();
    let checks =
        checks.with_context(|| format!("granule-peers checked nothing: {}", report["not_run"]))?;
    Ok(results(checks, again))
}

fn results(checks: &[Value], again: &[String]) -> Results {
    let failure = |name: &str, why: &str| Failure {
        name: name.to_owned(),
        live: true,
        why: why.to_owned(),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let wrong = checks.iter().filter(|check| check["passed"] != true);
    let mut failed: Vec<_> = wrong
        .map(|check| failure(&text(&check["name"]), &text(&check["found"])))
        .collect();
    let passed = (checks.len() - failed.len()) as u64;
    let is_missing = |name: &&String| checks.iter().all(|check| check["name"] != **name);
    let missing = again.iter().filter(is_missing);
    failed.extend(missing.map(|name| failure(name, "it was not checked")));
    Results {
        passed,
        failed,
        ..Results::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_was_not_reached_again_has_failed() {
        let checks = [("a", true), ("b", false)];
        let checks =
            checks.map(|(name, passed)| serde_json::json!({"name": name, "passed": passed}));
        let results = results(&checks, &["a".to_owned(), "c".to_owned()]);
        let failed: Vec<_> = results.failed.iter().map(|one| &*one.name).collect();
        assert_eq!((results.passed, failed), (1, vec!["b", "c"]));
    }

    #[test]
    fn each_part_has_work() {
        assert!((0..PARTS).all(|number| !part(number).is_empty()));
        assert!(part(PARTS).is_empty());
        // What each run has, it has once.
        assert_eq!(
            always(4).join(" "),
            "--only shell --only kexec --only bench --few"
        );
        assert_eq!(always(9).join(" "), "--only inspect --few");
    }
}
