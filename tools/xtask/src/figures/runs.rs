//! The measuring commands and their output. Computing figures from the output is in `tables` and `values`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use xtask::workspace::{cargo, root};

/// The phase in which a run is made, by its needs and its disturbance of other runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// Builds the programs of later runs: alone.
    Build,
    /// Only counts, which a busy machine does not change: two at a time.
    Count,
    /// Downloads, or measures time: alone.
    Alone,
}

/// One measurement.
#[derive(Debug, Deserialize)]
pub(super) struct Run {
    pub(super) name: String,
    /// As a person types them.
    pub(super) commands: Vec<String>,
    /// Whether the commands have no JSON.
    #[serde(default)]
    text: bool,
    pub(super) phase: Phase,
    /// The approximate seconds on two quiet cores with everything built.
    pub(super) seconds: u32,
    /// Whether `--check` makes the run.
    #[serde(default)]
    pub(super) checked: bool,
}

/// The output of one command.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) command: String,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Standard output, if JSON was asked for; else null.
    pub(super) json: Value,
}

/// The output of a run with one command.
pub(super) fn one(said: &[Said]) -> Result<&Said> {
    said.first().context("the run has no command")
}

/// The command, as a document shows it.
pub(super) fn command(said: &Said) -> String {
    format!("    {}\n", said.command)
}

/// Makes a run. `granule` is the program of that name.
pub(super) fn measure(run: &Run, granule: &Path) -> Result<Vec<Said>> {
    let said = run.commands.iter().map(|text| {
        let mut command = process(text, granule)?;
        if !run.text {
            command.arg("--json");
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start `{text}`"))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
        ensure!(
            output.status.success(),
            "`{text}` failed ({}): {}",
            output.status,
            last.unwrap_or("it printed nothing")
        );
        let json = if run.text {
            Value::Null
        } else {
            serde_json::from_str(&stdout)
                .with_context(|| format!("`{text} --json` printed no JSON"))?
        };
        Ok(Said {
            command: text.clone(),
            stdout,
            stderr,
            json,
        })
    });
    said.collect()
}

/// The command as a process. `granule` is the program that was built, and `cargo xtask` is this program, so
/// that no command waits for cargo's locks.
fn process(text: &str, granule: &Path) -> Result<Command> {
    let mut words = text.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut words: Vec<&str> = words.collect();
    let mut command = match (program, words.first()) {
        ("granule", _) => Command::new(granule),
        ("cargo", Some(&"xtask")) => {
            words.remove(0);
            Command::new(std::env::current_exe().context("this program's own path")?)
        }
        _ => cargo(&[]),
    };
    command.args(words).current_dir(root());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_told_with_its_last_line() {
        let fails = Run {
            name: "x".into(),
            commands: vec!["cargo no-such-command".into()],
            text: true,
            phase: Phase::Count,
            seconds: 1,
            checked: false,
        };
        let error = measure(&fails, Path::new("granule"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("`cargo no-such-command` failed"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}
