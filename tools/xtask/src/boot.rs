//! Boots through the `granule` program and reads the JSON object that it prints.
//!
//! The contract is that of `granule boot --json` (`granule schema boot`): one object on standard output, also
//! on failure. `granule` ends a guest that hangs. Expectations about a boot belong to the callers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace::{build_executable, is_built, root, show, target_dir};

/// A boot with a known report.
pub trait Expected {
    /// The arguments of `granule boot`.
    fn arguments(&self) -> Vec<String>;

    /// The parts of a boot record that this case does not allow, one line each. `sha256` is the image's.
    fn mismatches(&self, record: &Value, sha256: &str) -> Vec<String>;
}

/// Builds `granule` and returns its path. Boots run in parallel; with `cargo run` each would wait for the
/// others' locks.
pub fn build_cli() -> Result<PathBuf> {
    if is_built() {
        return Ok(target_dir().join("debug").join("granule"));
    }
    // With the features that the whole workspace has: with others cargo would compile again.
    build_executable(&["--workspace", "--bin", "granule"])
}

/// One finished boot.
#[derive(Debug)]
pub struct Boot {
    /// The exit code; `None` after a signal.
    pub exit: Option<i32>,
    /// The JSON object, or the reason for its absence.
    pub record: Result<Value, String>,
    /// The last line of the program's standard error.
    pub last_line: String,
}

/// Runs `granule boot --json` with further arguments.
pub fn boot(granule: &Path, image: &Path, arguments: &[String]) -> Result<Boot> {
    let mut command = Command::new(granule);
    command
        .args(["boot", "--json", "--image"])
        .arg(image)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null());
    let finished = command
        .output()
        .with_context(|| format!("cannot start `{}`", show(&command)))?;
    let record = match serde_json::from_slice::<Value>(&finished.stdout) {
        Ok(value) if value.is_object() => Ok(value),
        Ok(_) => Err("standard output is not a JSON object".to_owned()),
        Err(error) => Err(format!("standard output is not one JSON object: {error}")),
    };
    let stderr = String::from_utf8_lossy(&finished.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Boot {
        exit: finished.status.code(),
        record,
        last_line: last.unwrap_or("").trim().to_owned(),
    })
}

impl Boot {
    /// The failure, if the boot was not `ok`: outcome, reason and last line.
    pub fn failure(&self) -> Option<String> {
        let record = match &self.record {
            Ok(record) => record,
            Err(error) => {
                let exit = self
                    .exit
                    .map_or("no exit code".to_owned(), |c| format!("exit {c}"));
                return Some(join(&[error, &exit, &self.last_line]));
            }
        };
        let outcome = record
            .get("outcome")
            .and_then(Value::as_str)
            .unwrap_or("no outcome");
        if outcome == "ok" && self.exit == Some(0) {
            return None;
        }
        let reason = record.get("reason").and_then(Value::as_str).unwrap_or("");
        let exit = match self.exit {
            Some(code) => format!("exit {code}"),
            None => "ended by a signal".to_owned(),
        };
        let last = if self.last_line.contains(reason) {
            ""
        } else {
            reason
        };
        Some(join(&[outcome, last, &self.last_line, &exit]))
    }
}

fn join(parts: &[&str]) -> String {
    parts
        .iter()
        .filter(|p| !p.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join(", ")
}

/// A value by its path (`linear_map.tables`, `boots.1.cpus`).
pub fn at<'a>(record: &'a Value, path: &str) -> Result<&'a Value> {
    let step = |value: &'a Value, key: &str| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    };
    path.split('.')
        .try_fold(record, step)
        .filter(|value| !value.is_null())
        .with_context(|| format!("the boot record has no {path}"))
}

/// An integer by its path.
pub fn number(record: &Value, path: &str) -> Result<u64> {
    at(record, path)?
        .as_u64()
        .with_context(|| format!("{path} in the boot record is not an integer"))
}

/// A text by its path.
pub fn text<'a>(record: &'a Value, path: &str) -> Result<&'a str> {
    at(record, path)?
        .as_str()
        .with_context(|| format!("{path} in the boot record is not a text"))
}

/// The difference in one line, if the value is not the expected one.
pub fn differs(record: &Value, path: &str, expected: &Value) -> Option<String> {
    match at(record, path) {
        Ok(found) if found == expected => None,
        Ok(found) => Some(format!("{path} is {found}, expected {expected}")),
        Err(error) => Some(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn boot(exit: Option<i32>, record: Result<Value, String>) -> Boot {
        Boot {
            exit,
            record,
            last_line: "last line".to_owned(),
        }
    }

    #[test]
    fn only_ok_with_exit_zero_is_no_failure() {
        let ok = || Ok(json!({"outcome": "ok"}));
        assert_eq!(boot(Some(0), ok()).failure(), None);
        assert!(boot(Some(1), ok()).failure().unwrap().contains("exit 1"));
        assert!(boot(None, ok()).failure().unwrap().contains("signal"));
        let panic = Ok(json!({"outcome": "panic", "reason": "why"}));
        assert_eq!(
            boot(Some(1), panic).failure().unwrap(),
            "panic, why, last line, exit 1"
        );
        assert!(
            boot(Some(0), Ok(json!({})))
                .failure()
                .unwrap()
                .contains("no outcome")
        );
        assert!(
            boot(Some(0), Err("no JSON".into()))
                .failure()
                .unwrap()
                .contains("no JSON")
        );
    }

    #[test]
    fn values_are_found_by_path_or_named_as_missing() {
        let record = json!({
            "linear_map": {"tables": 3, "tlbi": null}, "levels": "x", "boots": [{}, {"cpus": 2}],
        });
        assert_eq!(number(&record, "linear_map.tables").unwrap(), 3);
        assert_eq!(number(&record, "boots.1.cpus").unwrap(), 2);
        let missing = ["boots.2.cpus", "boots.x", "boots.0.cpus"];
        let missing =
            missing
                .into_iter()
                .chain(["linear_map.tlbi", "linear_map.dsb", "a.b", "levels"]);
        for path in missing {
            assert!(
                number(&record, path)
                    .unwrap_err()
                    .to_string()
                    .contains(path)
            );
        }
    }

    #[test]
    fn a_difference_is_reported_with_the_expected_value() {
        let record = json!({"a": {"b": 3}});
        assert_eq!(differs(&record, "a.b", &json!(3)), None);
        let wrong = differs(&record, "a.b", &json!("3")).unwrap();
        assert_eq!(wrong, "a.b is 3, expected \"3\"");
        assert!(differs(&record, "a.c", &json!(3)).unwrap().contains("a.c"));
    }
}
