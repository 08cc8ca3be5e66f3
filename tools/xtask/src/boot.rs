//! Boots the kernel as the `granule` program does, and reads the JSON object of the boot.
//!
//! Expectations about a boot belong to the callers.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use granule_cli::args::{Cli, Command};
use serde_json::Value;

use crate::workspace::{build_executable, is_built, target_dir};

/// A boot with a known report.
pub trait Expected {
    /// The arguments of `granule boot`.
    fn arguments(&self) -> Vec<String>;

    /// The values that the record must have, by path.
    fn values(&self) -> Vec<(String, Value)>;

    /// Further faults of a record, one line each. Fails if the record lacks a value that is judged.
    fn faults(&self, record: &Value) -> Result<Vec<String>>;

    /// All parts of a record that this case does not allow, one line each. `sha256` is the image's.
    fn mismatches(&self, record: &Value, sha256: &str) -> Vec<String> {
        let mut values = self.values();
        values.push(("image.sha256".to_owned(), sha256.into()));
        let differs = |(path, value): &(String, Value)| differs(record, path, value);
        let mut wrong: Vec<String> = values.iter().filter_map(differs).collect();
        match self.faults(record) {
            Ok(faults) => wrong.extend(faults),
            Err(error) => wrong.push(format!("{error:#}")),
        }
        wrong
    }
}

/// Builds `granule` and returns its path.
pub fn build_cli() -> Result<PathBuf> {
    if is_built() {
        return Ok(target_dir().join("debug").join("granule"));
    }
    // With the features that the whole workspace has: with others cargo would compile again.
    build_executable(&["--workspace", "--bin", "granule"])
}

/// Boots an image as `granule boot` does with these arguments, and returns the record (`granule schema boot`).
/// Fails if the boot did not end well: the line that `granule boot` ends with.
pub fn boot(image: &Path, arguments: &[String]) -> Result<Value> {
    let words = ["granule", "boot"].map(str::to_owned);
    let typed = Cli::try_parse_from(words.iter().chain(arguments))?;
    let Command::Boot(typed) = typed.command else {
        bail!("{} is another command", arguments.join(" "));
    };
    let booted = granule_cli::boot::run(&typed.request().image(image.to_owned()));
    ensure!(booted.is_ok(), "{}", booted.last_line());
    Ok(booted.json())
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

/// Expected values, with paths that may be made of parts.
pub fn owned<P: ToString>(values: impl IntoIterator<Item = (P, Value)>) -> Vec<(String, Value)> {
    let each = values.into_iter();
    each.map(|(path, value)| (path.to_string(), value))
        .collect()
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

/// Checks that a report has these values, by path. Errors: the first that differs.
pub fn require<'a>(
    report: &Value,
    values: impl IntoIterator<Item = (&'a str, Value)>,
) -> Result<()> {
    let mut values = values.into_iter();
    let wrong = values.find_map(|(path, value)| differs(report, path, &value));
    wrong.map_or(Ok(()), |line| Err(anyhow::Error::msg(line)))
}

/// For tests of what a report must be: the leaves of a JSON value, by pointer, that may as well be missing because
/// `is_right` does not notice.
pub fn unjudged(report: &Value, is_right: impl Fn(&Value) -> bool) -> Vec<String> {
    fn leaves(value: &Value, at: String, all: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                let each = map.iter();
                each.for_each(|(key, value)| leaves(value, format!("{at}/{key}"), all));
            }
            Value::Array(list) if !list.is_empty() => {
                let each = list.iter().enumerate();
                each.for_each(|(key, value)| leaves(value, format!("{at}/{key}"), all));
            }
            _ => all.push(at),
        }
    }
    let mut all = Vec::new();
    leaves(report, String::new(), &mut all);
    all.retain(|pointer| is_right(&changed(report, pointer, Value::Null)));
    // Whether objects keep the order of their keys depends on features of `serde_json`.
    all.sort();
    all
}

/// For tests: a JSON value with another value at a pointer, or the same if nothing is there.
pub fn changed(report: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = report.clone();
    if let Some(place) = changed.pointer_mut(pointer) {
        *place = value;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_boot_without_an_image_is_an_error_of_one_line() {
        let boot = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            boot(Path::new("/no/such/image"), &words)
                .unwrap_err()
                .to_string()
        };
        assert!(boot(&["--page-size=8k"]).contains("--page-size"));
        let line = boot(&["--page-size=4k"]);
        assert!(
            line.contains("/no/such/image") && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn values_are_found_by_path_or_named_as_missing() {
        let record = json!({
            "linear_map": {"tables": 3, "tlbi": null}, "levels": "x", "boots": [{}, {"cpus": 2}],
        });
        assert_eq!(number(&record, "linear_map.tables").unwrap(), 3);
        assert_eq!(number(&record, "boots.1.cpus").unwrap(), 2);
        for path in
            "boots.2.cpus boots.x boots.0.cpus linear_map.tlbi linear_map.dsb a.b levels".split(' ')
        {
            let error = number(&record, path).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
        assert_eq!(differs(&record, "levels", &json!("x")), None);
        let wrong = differs(&record, "linear_map.tables", &json!("3")).unwrap();
        assert_eq!(wrong, "linear_map.tables is 3, expected \"3\"");
        assert!(differs(&record, "a.c", &json!(3)).unwrap().contains("a.c"));
    }

    #[test]
    fn leaves_that_nobody_looks_at_are_listed() {
        let report = json!({"a": {"b": 1, "c": [2, 3]}, "d": [], "e": {}});
        let found = unjudged(&report, |it| it["a"]["c"][1] == 3 && it["d"].is_array());
        assert_eq!(found, ["/a/b", "/a/c/0", "/e"]);
    }
}
