//! Programs that print libtest's output and that cargo-nextest does not run: documentation's examples, and tests under
//! Miri.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use xtask::workspace::show;

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
    fn of(name: &str, printed: &str, success: bool) -> Self {
        let passed = printed.lines().map(passed_in).sum();
        let failed = printed.lines().filter_map(failed_in);
        let mut failed: Vec<_> = failed.map(str::to_owned).collect();
        if !success && failed.is_empty() {
            failed.push(name.to_owned());
        }
        Self { passed, failed }
    }
}

/// Runs a command that prints libtest's output, such as `cargo test --doc`.
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
    let (name, _) = line.strip_prefix("test ")?.split_once(" ... FAILED")?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_lines_of_libtest_are_added_up() {
        let line = "test result: ok. 54 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(passed_in(line), 54);
        assert_eq!(passed_in("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(passed_in("running 5 tests"), 0);
        let printed = "test a::b ... ok\ntest a::c ... FAILED <0.1s>\ntest result: FAILED. 3 passed; 1 failed";
        let mut sum = Sum::of("one", line, true);
        sum.result().unwrap();
        sum.add(Sum::of("two", printed, false));
        // A program that aborted, or that could not be built.
        sum.add(Sum::of("three", "", false));
        let error = sum.result().unwrap_err().to_string();
        assert_eq!(error, "57 tests passed, 2 failed: a::c, three");
        let none = Sum::of("four", "test result: ok. 0 passed; 0 failed", true);
        assert!(none.result().unwrap_err().to_string().contains("no test"));
    }
}
