//! The libraries' tests under Miri: finds their test programs and runs them in parallel. Tests that Miri
//! leaves out say so themselves.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::packages::{LIBRARIES, WITH_UNSAFE_MODULES, draws, package_named, targets};
use crate::programs::{Sum, run_command};
use crate::tools;
use xtask::pool;
use xtask::workspace::{self, metadata, root};

/// Each test program of the libraries is a job of its own, because Miri uses one core. The longest begins
/// first.
pub(crate) fn run() -> Result<()> {
    let slow = is_slow(std::env::var("GRANULE_MIRI").ok().as_deref())?;
    let metadata = metadata()?;
    let mut jobs = Vec::new();
    for library in LIBRARIES {
        jobs.extend(self::jobs(package_named(&metadata, library)?, slow));
    }
    if !slow {
        for (package, modules) in WITH_UNSAFE_MODULES {
            let words = [&["-p", package, "--lib", "--"], modules].concat();
            jobs.push(words.into_iter().map(str::to_owned).collect());
        }
    }
    jobs.sort_by_key(|job| !job.iter().any(|word| word == LONGEST));
    // One build for all jobs; parallel jobs would wait for each other's build.
    let mut all = Vec::from(["--lib", "--tests", "--no-run"]);
    let others = WITH_UNSAFE_MODULES.iter().map(|(package, _)| package);
    all.extend(
        LIBRARIES
            .iter()
            .chain(others)
            .flat_map(|package| ["-p", package]),
    );
    workspace::run(command(&all)?)?;
    let mut sum = Sum::default();
    let mut broken = Ok(());
    pool::run(
        jobs.len(),
        pool::parallel(),
        || true,
        |job| {
            let job: Vec<_> = jobs[job].iter().map(String::as_str).collect();
            run_command(command(&job)?)
        },
        |done| {
            println!(
                "--- {} ({:.1} s)",
                jobs[done.job].join(" "),
                done.time.as_secs_f32()
            );
            match done.result {
                Ok(ended) => sum.add(ended),
                Err(error) => broken = Err(error),
            }
            true
        },
    );
    broken.and(sum.result())
}

/// The test program that takes as long as all others together.
const LONGEST: &str = "operations";

fn command(arguments: &[&str]) -> Result<Command> {
    let nightly = tools::nightly()?;
    let mut command = Command::new("rustup");
    command
        .args(["run", &nightly, "cargo", "miri", "test"])
        .arg("--all-features")
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null())
        // Cargo tells its children its compiler; the nightly must find its own.
        .env_remove("CARGO")
        .env_remove("RUSTC");
    // A program under Miri sees no variable of the host, only those that the flags set.
    let mut flags = std::env::var("MIRIFLAGS").unwrap_or_default();
    for (name, seed) in draws() {
        flags.push_str(&format!(" -Zmiri-env-set={name}={seed}"));
    }
    command.env("MIRIFLAGS", flags);
    Ok(command)
}

/// The arguments that each job of a package adds to Miri's command.
fn jobs(package: &Value, slow: bool) -> Vec<Vec<String>> {
    let name = package["name"].as_str().unwrap_or_default();
    let job = |words: &[&str]| -> Vec<String> {
        let words = [&["-p", name], words].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let tests = targets(package, "test");
    let mut jobs: Vec<_> = tests.iter().map(|test| job(&["--test", test])).collect();
    jobs.push(job(&["--lib"]));
    if slow {
        for job in &mut jobs {
            job.extend(["--", "--ignored"].map(str::to_owned));
        }
    } else {
        jobs.push(job(&["--doc"]));
    }
    jobs
}

/// `GRANULE_MIRI=slow` selects the tests that are otherwise left out because each takes minutes.
fn is_slow(which: Option<&str>) -> Result<bool> {
    match which {
        None | Some("") => Ok(false),
        Some("slow") => Ok(true),
        Some(other) => bail!("GRANULE_MIRI={other}: expected nothing or slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn there_is_a_job_for_each_test_program_and_its_slow_tests_only_where_asked() {
        let package = json!({"name": "granule", "targets": [
            {"name": "granule", "kind": ["lib"]},
            {"name": "architecture", "kind": ["test"]},
            {"name": "operations", "kind": ["test"]},
            {"name": "kernel", "kind": ["example"]},
        ]});
        let jobs = |slow| {
            let jobs = jobs(&package, slow).into_iter();
            jobs.map(|job| job.join(" ")).collect::<Vec<_>>()
        };
        let usual = [
            "-p granule --test architecture",
            "-p granule --test operations",
            "-p granule --lib",
            "-p granule --doc",
        ];
        assert_eq!(jobs(false), usual);
        assert_eq!(jobs(true).len(), 3);
        assert!(jobs(true).iter().all(|job| job.ends_with(" -- --ignored")));
        assert!(!is_slow(None).unwrap() && is_slow(Some("slow")).unwrap());
        assert!(is_slow(Some("all")).is_err());
        let metadata = metadata().unwrap();
        let tests = targets(package_named(&metadata, LIBRARIES[0]).unwrap(), "test");
        assert!(tests.iter().any(|name| name == LONGEST));
    }
}
