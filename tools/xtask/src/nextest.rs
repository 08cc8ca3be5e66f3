//! Tests by cargo-nextest: one build for all steps, each test in a process of its own, one result for each.
//!
//! A test is live if a module of its path is called `live`: its result depends on real time. All others are exact.
//! Between cargo-nextest and a test is [`run_test`], which measures, and ends a test that hangs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use granule_cli::boot::clock::{ProcessClock, TICK};
use serde_json::Value;

use crate::cargo_tools;
use crate::packages::draws;
use crate::results::{Failure, ProgramTimes, Results, cpu_of_children};
use xtask::workspace::{capture, cargo, is_built, program, target_dir};

/// The time of a test by its own clock after which it hangs: the longest take a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(4 * 60);
/// The exit code of cargo-nextest when all tests have ended and some failed.
const TESTS_FAILED: i32 = 100;
/// The variable with the file to which [`run_test`] adds a line.
const TIMES: &str = "GRANULE_TEST_TIMES";

/// The folder of the files that steps pass to each other.
pub(crate) fn folder() -> PathBuf {
    target_dir().join("ci")
}

/// Builds all test programs and all programs of the workspace, or only these targets of it.
pub(crate) fn build(targets: &[&str]) -> Result<()> {
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Always the whole workspace: with fewer packages cargo would choose other features and compile again.
    let mut list = cargo_tools::tool("nextest", &["list", "--workspace"])?;
    list.args(targets)
        .args(["--list-type", "binaries-only", "--message-format", "json"]);
    fs::write(folder.join("binaries.json"), capture(list)?)?;
    let metadata = cargo(&["metadata", "--format-version=1", "--all-features"]);
    fs::write(folder.join("metadata.json"), capture(metadata)?)?;
    Ok(())
}

/// A selection of tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// In the language of nextest's filters.
    pub(crate) filter: String,
    /// The part of how many.
    pub(crate) share: Option<(u32, u32)>,
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl From<String> for Selection {
    fn from(filter: String) -> Self {
        Self {
            filter,
            ..Self::default()
        }
    }
}

/// Runs the tests of the selection, or only those of these names, one at a time.
pub(crate) fn run(selection: &Selection, only: &[String]) -> Result<Results> {
    let mut command = cargo_tools::tool("nextest", &["run", "--no-fail-fast"])?;
    command.args(["--test-threads", "1"]);
    use_built(&mut command);
    let filter = if only.is_empty() {
        selection.filter.clone()
    } else {
        only.iter()
            .map(|name| filter_of(name))
            .collect::<Result<Vec<_>>>()?
            .join(" + ")
    };
    command.args(["-E", &filter]);
    if let (Some((part, of)), true) = (selection.share, only.is_empty()) {
        command.arg("--partition").arg(format!("slice:{part}/{of}"));
    }
    let variables: Vec<_> = draws().collect();
    command.envs(variables).envs(selection.variables.clone());
    measured(command)
}

/// Lets a command of nextest use what [`build`] has built.
fn use_built(command: &mut Command) {
    for (option, file) in [
        ("--binaries-metadata", "binaries.json"),
        ("--cargo-metadata", "metadata.json"),
    ] {
        command.arg(option).arg(folder().join(file));
    }
}

/// Lists the tests that fit a filter: package, program and names.
pub(crate) fn list(filter: &str) -> Result<Vec<(String, String, Vec<String>)>> {
    let mut command = cargo_tools::tool("nextest", &["list", "--message-format", "json"])?;
    if is_built() {
        use_built(&mut command);
    } else {
        command.arg("--workspace");
    }
    command.args(["-E", filter]);
    let listed: Value = serde_json::from_str(&capture(command)?)?;
    let suites = listed["rust-suites"].as_object();
    let suites = suites.context("cargo-nextest listed no programs")?.values();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let suites = suites.map(|suite| {
        let tests = suite["testcases"].as_object().into_iter().flatten();
        // Programs without a fitting test are listed too, and their other tests.
        let fits = tests.filter(|(_, test)| test["filter-match"]["status"] == "matches");
        let names = fits.map(|(name, _)| name.clone()).collect();
        (
            text(&suite["package-name"]),
            text(&suite["binary-name"]),
            names,
        )
    });
    Ok(suites.collect())
}

/// Runs a command of nextest and reads its results.
pub(crate) fn measured(mut command: Command) -> Result<Results> {
    let times = tempfile::NamedTempFile::new()?;
    command
        .args(["--message-format", "libtest-json-plus"])
        .env("NEXTEST_EXPERIMENTAL_LIBTEST_JSON", "1")
        .env(TIMES, times.path())
        .env(runner_variable()?, runner()?);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo-nextest")?;
    let mut results = results(&String::from_utf8_lossy(&output.stdout));
    ensure!(
        output.status.success() || output.status.code() == Some(TESTS_FAILED),
        "cargo-nextest ended with {}",
        output.status
    );
    ensure!(
        results.passed > 0 || !results.failed.is_empty(),
        "no test was run"
    );
    results.programs = programs(&fs::read_to_string(times.path())?);
    Ok(results)
}

/// The results in what nextest prints, a JSON object in each line.
fn results(printed: &str) -> Results {
    let mut results = Results::default();
    let events = printed.lines();
    for event in events.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (Some(name), "test") = (event["name"].as_str(), event["type"].as_str().unwrap_or(""))
        else {
            continue;
        };
        match event["event"].as_str() {
            Some("ok") => results.passed += 1,
            Some("failed" | "timeout") => results.failed.push(Failure {
                name: name.to_owned(),
                live: is_live(name),
                why: why(event["stdout"].as_str().unwrap_or_default()),
            }),
            _ => {}
        }
    }
    results
}

/// The line of a failed test's output that gives the reason: that of its panic, else the last one.
fn why(output: &str) -> String {
    let mut lines = output.lines().map(str::trim);
    let panicked = lines.by_ref().find(|line| line.contains("panicked at "));
    let line = match panicked {
        Some(_) => lines.next(),
        None => output.lines().rfind(|line| !line.trim().is_empty()),
    };
    line.unwrap_or_default().chars().take(200).collect()
}

/// Whether a module of the test's path is called `live`: the name is `PACKAGE::PROGRAM$MODULE::…::TEST`.
fn is_live(name: &str) -> bool {
    let path = name.split_once('$').map_or(name, |(_, path)| path);
    let modules = path.rsplit_once("::").map_or("", |(modules, _)| modules);
    modules.split("::").any(|module| module == "live")
}

/// The filter that only this test fits.
fn filter_of(name: &str) -> Result<String> {
    let parts = name.split_once('$').and_then(|(program, test)| {
        let (package, program) = program.split_once("::")?;
        Some(format!(
            "(package(={package}) & binary(={program}) & test(={test}))"
        ))
    });
    parts.with_context(|| {
        format!("{name} is not the name of a test: expected PACKAGE::PROGRAM$TEST")
    })
}

/// Adds up the lines of [`run_test`] by program.
fn programs(lines: &str) -> Vec<ProgramTimes> {
    let mut all = BTreeMap::<String, ProgramTimes>::new();
    for one in lines
        .lines()
        .filter_map(|line| serde_json::from_str::<ProgramTimes>(line).ok())
    {
        let sum = all.entry(one.name.clone()).or_default();
        sum.name = one.name;
        sum.tests += one.tests;
        sum.seconds += one.seconds;
        sum.cpu_seconds += one.cpu_seconds;
    }
    all.into_values().collect()
}

/// The variable by which cargo's tools take a program that runs test programs.
fn runner_variable() -> Result<String> {
    let host = capture(program("rustc", &["-vV"]))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("`rustc -vV` names no host")?.to_uppercase();
    Ok(format!("CARGO_TARGET_{}_RUNNER", host.replace('-', "_")))
}

fn runner() -> Result<String> {
    let own = std::env::current_exe().context("xtask does not know where it is")?;
    Ok(format!("{} run-test", own.display()))
}

/// Runs one test for nextest: the test program with its arguments.
pub(crate) fn run_test(words: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no test program is named")?;
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start {}", Path::new(program).display()))?;
    let (start, mut clock) = (Instant::now(), ProcessClock::start_family(child.id()));
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let status = child.wait();
        // Nobody waits any more once the test hung.
        let _ = send.send(status);
    });
    let status = loop {
        match ended.recv_timeout(2 * TICK) {
            Ok(status) => break status?,
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the test cannot be waited for"),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if clock.look() > LIMIT {
            eprintln!(
                "the test hangs: it ran for {} s by its own clock",
                LIMIT.as_secs()
            );
            // Nextest gives each test a process group: with all of it end guests that the test started.
            #[cfg(unix)]
            rustix::process::kill_current_process_group(rustix::process::Signal::KILL)?;
        }
    };
    if let (Some(to), false) = (
        std::env::var_os(TIMES),
        arguments.iter().any(|it| it == "--list"),
    ) {
        let line = serde_json::to_string(&ProgramTimes {
            name: std::env::var("NEXTEST_BINARY_ID").unwrap_or_default(),
            tests: 1,
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: cpu_of_children().as_secs_f64(),
        })?;
        let mut file = OpenOptions::new().append(true).open(to)?;
        file.write_all(format!("{line}\n").as_bytes())?;
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_live_tests_recognized_by_their_module() {
        let printed = r#"{"type":"suite","event":"started","test_count":3}
{"type":"test","event":"started","name":"a::b$m::one"}
{"type":"test","event":"ok","name":"a::b$m::one","exec_time":0.1}
{"type":"test","event":"ignored","name":"a::b$m::none"}
{"type":"test","event":"failed","name":"a::b$m::live::two","stdout":"x\nthread 'y' panicked at z:1:\nleft is right\nnote"}
no JSON
{"type":"suite","event":"failed","passed":1}"#;
        let results = results(printed);
        assert_eq!((results.passed, results.failed.len()), (1, 1));
        let failure = &results.failed[0];
        assert_eq!(failure.name, "a::b$m::live::two");
        assert!(failure.live && failure.why == "left is right");
        assert_eq!(why("one\ntwo\n\n"), "two");
        for exact in ["live", "a$live", "a$alive::b", "live::b$c::d", "a$b::live"] {
            assert!(!is_live(exact), "{exact}");
        }
        let filter = filter_of("a::b$m::one").unwrap();
        assert_eq!(filter, "(package(=a) & binary(=b) & test(=m::one))");
        assert!(filter_of("one").is_err());
    }

    #[test]
    fn times_are_added_up_by_program() {
        let line = |name, cpu| {
            format!(r#"{{"name":"{name}","tests":1,"seconds":2.0,"cpu_seconds":{cpu}}}"#)
        };
        let lines = [
            line("a", "1.5"),
            line("b", "1.0"),
            "cut o".into(),
            line("a", "0.5"),
        ];
        let sums = programs(&lines.join("\n"));
        assert_eq!(sums.len(), 2);
        assert_eq!(
            (sums[0].tests, sums[0].seconds, sums[0].cpu_seconds),
            (2, 4.0, 2.0)
        );
    }
}
