//! The measuring commands and the JSON that they print.

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
    /// As a person types them, without `--json`.
    pub(super) commands: Vec<String>,
    pub(super) phase: Phase,
    /// The approximate seconds on two quiet cores with everything built.
    pub(super) seconds: u32,
    /// Whether `--check` makes the run.
    #[serde(default)]
    pub(super) checked: bool,
}

/// Makes a run: the JSON of each command. `granule` is the program of that name.
pub(super) fn measure(run: &Run, granule: &Path) -> Result<Vec<Value>> {
    let results = run.commands.iter().map(|text| {
        let mut command = process(text, granule)?;
        let output = command
            .arg("--json")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start `{text}`"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
        ensure!(
            output.status.success(),
            "`{text}` failed ({}): {}",
            output.status,
            last.unwrap_or("it printed nothing")
        );
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`{text} --json` printed no JSON"))
    });
    results.collect()
}

/// The command as a process. `granule` is the program that was built, and `cargo xtask` is this program, so
/// that no command waits for cargo's locks.
pub(crate) fn process(text: &str, granule: &Path) -> Result<Command> {
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
    fn a_failing_command_is_named_with_its_last_line() {
        let text = "name = 'x'\nphase = 'count'\nseconds = 1\ncommands = ['cargo no-such-command']";
        let fails: Run = toml::from_str(text).unwrap();
        let error = measure(&fails, Path::new("granule")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("`cargo no-such-command` failed"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}
