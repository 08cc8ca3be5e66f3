//! Test programs. One cargo call builds those of the workspace, so that all steps share the compiled code.
//! Then each is run, whatever the results of others. The output of each program is printed in one piece,
//! and the sum names the failed tests.
//!
//! Each step chooses its programs itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::quiet;
use xtask::pool;
use xtask::workspace::{capture, cargo, show};

/// A program that libtest made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    pub(crate) target: String,
    /// The kind in cargo's words: `lib`, `bin`, `test`.
    pub(crate) kind: String,
    executable: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    folder: PathBuf,
}

/// Builds the test programs of the whole workspace, or those of its `targets`, given as cargo options. The
/// whole workspace is built always, because with fewer packages cargo would choose other features and
/// compile again.
pub(crate) fn build(targets: &[&str]) -> Result<Vec<Program>> {
    let mut command = cargo(&["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    command.args(targets);
    let messages = capture(command)?;
    let programs: Vec<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message| Program::of(&message))
        .collect();
    ensure!(!programs.is_empty(), "cargo built no test programs");
    Ok(programs)
}

impl Program {
    /// The program that a message of cargo describes.
    fn of(message: &Value) -> Option<Self> {
        if message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        Some(Self {
            // Each package is in a folder of its own name.
            package: folder.file_name()?.to_str()?.to_owned(),
            target: target["name"].as_str()?.to_owned(),
            kind: target["kind"][0].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
            folder: folder.to_owned(),
        })
    }

    fn name(&self) -> String {
        format!("{} {} {}", self.package, self.kind, self.target)
    }

    fn command(&self, arguments: &[&str], variables: &[(&str, String)]) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }
}

/// The summed result of test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    passed: u64,
    /// Programs and tests that failed.
    failed: Vec<String>,
}

impl Sum {
    /// One line, or an error that names all failures. A run without a passed test is an error too, because
    /// a run of no test must not read as a pass.
    pub(crate) fn result(&self) -> Result<()> {
        ensure!(
            self.failed.is_empty(),
            "{} tests passed, {} failed: {}",
            self.passed,
            self.failed.len(),
            self.failed.join(", ")
        );
        ensure!(self.passed > 0, "no test was run");
        println!("{} tests passed", self.passed);
        Ok(())
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
    }

    /// Reads libtest's output of the program with that name. A program that failed before it could name a
    /// test counts as the failure itself.
    pub(crate) fn of(name: &str, printed: &str, success: bool) -> Self {
        let passed = printed.lines().map(passed_in).sum();
        let failed = printed.lines().filter_map(failed_in);
        let mut failed: Vec<_> = failed.map(|test| format!("{name}: {test}")).collect();
        if !success && failed.is_empty() {
            failed.push(name.to_owned());
        }
        Self { passed, failed }
    }
}

/// Runs the programs, `parallel` at a time, and sums them up. A package without a run test counts as
/// failed.
pub(crate) fn run(
    programs: &[Program],
    parallel: usize,
    arguments: &[&str],
    variables: &[(&str, String)],
) -> Result<()> {
    let mut sum = Sum::default();
    let mut idle: BTreeSet<&str> = programs.iter().map(|program| &*program.package).collect();
    pool::run(
        programs.len(),
        parallel,
        || true,
        |job| {
            let command = programs[job].command(arguments, variables);
            quiet::run(command, quiet::LIMIT)
        },
        |done| {
            let program = &programs[done.job];
            let name = program.name();
            println!("--- {name} ({:.1} s)", done.time.as_secs_f32());
            let ended = match done.result {
                Ok(printed) => {
                    print!("{}", printed.text);
                    let mut sum = Sum::of(&name, &printed.text, printed.succeeded());
                    if printed.status.is_none() {
                        let minutes = quiet::LIMIT.as_secs() / 60;
                        let last = printed.text.lines().next_back().unwrap_or_default();
                        sum.failed.push(format!(
                            "{name} was ended after {minutes} minutes without a word behind `{last}`"
                        ));
                    }
                    sum
                }
                Err(error) => Sum::of(&format!("{name}: {error}"), "", false),
            };
            if ended != Sum::default() {
                idle.remove(&*program.package);
            }
            sum.add(ended);
            true
        },
    );
    let idle = idle.into_iter();
    sum.failed
        .extend(idle.map(|package| format!("{package} has no tests")));
    sum.result()
}

/// Runs a command that prints libtest's output, such as `cargo test`.
pub(crate) fn run_command(mut command: Command) -> Result<Sum> {
    let text = show(&command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    print!("{printed}");
    Ok(Sum::of(
        &format!("`{text}`"),
        &printed,
        output.status.success(),
    ))
}

/// The number of passed tests in a line of libtest's summary.
pub(crate) fn passed_in(line: &str) -> u64 {
    let count = || {
        let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
        rest.split_once(" passed")?.0.parse().ok()
    };
    count().unwrap_or(0)
}

/// The failed test that a line of libtest names.
fn failed_in(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The programs that `wanted` selects; an empty selection is an error.
pub(crate) fn choose(
    programs: Vec<Program>,
    what: &str,
    wanted: impl Fn(&Program) -> bool,
) -> Result<Vec<Program>> {
    let chosen: Vec<_> = programs.into_iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("the workspace has no {what}: nothing would be tested");
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_summary_lines_of_libtest_are_added_up() {
        let line = "test result: ok. 54 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(passed_in(line), 54);
        assert_eq!(passed_in("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(passed_in("running 5 tests"), 0);
        let printed =
            "test a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 3 passed; 1 failed";
        let mut sum = Sum::of("one", line, true);
        sum.result().unwrap();
        sum.add(Sum::of("two", printed, false));
        // A program that aborted, or that could not be built.
        sum.add(Sum::of("three", "", false));
        let error = sum.result().unwrap_err().to_string();
        assert_eq!(error, "57 tests passed, 2 failed: two: a::c, three");
        let none = Sum::of("four", "test result: ok. 0 passed; 0 failed", true);
        assert!(none.result().unwrap_err().to_string().contains("no test"));
    }

    fn program(script: &str) -> Program {
        let folder = PathBuf::from("/");
        Program {
            package: "p".into(),
            target: script.into(),
            kind: "test".into(),
            executable: "/bin/sh".into(),
            folder,
        }
    }

    #[test]
    fn a_program_that_fails_hides_no_other() {
        let programs = [program("first"), program("second"), program("third")];
        let script =
            "echo test $N ... FAILED; echo 'test result: FAILED. 2 passed; 1 failed'; exit 101";
        let variables = [("N", "t".to_owned())];
        let error = run(&programs, 2, &["-c", script], &variables).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("6 tests passed, 3 failed: "), "{error}");
        for program in &programs {
            assert!(error.contains(&format!("{}: t", program.name())), "{error}");
        }
        let script = "echo 'test result: ok. 2 passed; 0 failed'";
        run(&programs, 2, &["-c", script], &[]).unwrap();
        assert!(run(&programs, 2, &["-c", "exit 0"], &[]).is_err());
        assert!(choose(programs.to_vec(), "tests", |_| false).is_err());
    }

    #[test]
    fn programs_are_told_from_cargos_messages() {
        let message = |test: bool| {
            json!({
                "manifest_path": "/w/granule-cli/Cargo.toml",
                "target": {"name": "qemu", "kind": ["test"]},
                "profile": {"test": test},
                "executable": "/t/qemu-1",
            })
        };
        let program = Program::of(&message(true)).unwrap();
        assert_eq!(program.name(), "granule-cli test qemu");
        assert_eq!(program.folder, Path::new("/w/granule-cli"));
        assert_eq!(Program::of(&message(false)), None);
        assert_eq!(Program::of(&json!({"reason": "build-finished"})), None);
    }
}
