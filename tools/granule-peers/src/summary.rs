//! Reports a run of `granule-peers`: lines for people during the run, one JSON object at its end,
//! and the exit code.

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The schema of the `--json` output.
const SCHEMA: u32 = 1;
/// The result if there is nothing to compare with, which is a failure.
const NOT_RUN: &str = "not run: no package source";
/// The lists of the JSON object, which it always has.
const LISTS: [&str; 5] = ["packages", "rows", "tlb", "faults", "sensitivity"];

/// The results so far.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Whether standard output is for one JSON object.
    json: bool,
    found: Mutex<Found>,
}

#[derive(Debug)]
struct Found {
    lists: Map<String, Value>,
    checks: Vec<Value>,
    failed: usize,
}

impl Summary {
    pub(crate) fn new(json: bool) -> Self {
        let found = Found {
            lists: LISTS
                .map(|name| (name.to_owned(), json!([])))
                .into_iter()
                .collect(),
            checks: Vec::new(),
            failed: 0,
        };
        Self {
            json,
            found: Mutex::new(found),
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn print_line(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    pub(crate) fn keep(&self, name: &str, list: impl Serialize) -> Result<()> {
        let list = serde_json::to_value(list)?;
        self.found().lists.insert(name.to_owned(), list);
        Ok(())
    }

    /// Adds a check, and prints its result or its error at once.
    pub(crate) fn add(&self, name: &str, result: Result<String>) {
        let passed = result.is_ok();
        let found = result.unwrap_or_else(|error| format!("{error:#}"));
        let mark = if passed { "ok    " } else { "FAILED" };
        self.print_line(&format!("{mark} {name}: {found}"));
        let mut all = self.found();
        all.failed += usize::from(!passed);
        all.checks
            .push(json!({ "name": name, "passed": passed, "found": found }));
    }

    /// Ends a run without any comparison. Its result must not look like that of a comparison.
    pub(crate) fn not_run(&self, why: &anyhow::Error) -> Result<ExitCode> {
        self.print_line(NOT_RUN);
        self.print_json(&json!({ "schema": SCHEMA, "not_run": format!("{why:#}") }))?;
        Ok(ExitCode::FAILURE)
    }

    /// Ends a run. The last line is `N passed, N failed`.
    pub(crate) fn end(&self) -> Result<ExitCode> {
        let found = self.found();
        let (failed, passed) = (found.failed, found.checks.len() - found.failed);
        let mut report = found.lists.clone();
        let checks = json!(found.checks);
        for (key, value) in [
            ("schema", json!(SCHEMA)),
            ("checks", checks),
            ("passed", json!(passed)),
            ("failed", json!(failed)),
        ] {
            report.insert(key.to_owned(), value);
        }
        self.print_json(&Value::Object(report))?;
        self.print_line(&format!("{passed} passed, {failed} failed"));
        Ok(ExitCode::from(u8::from(failed > 0)))
    }

    fn print_json(&self, report: &Value) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        }
        Ok(())
    }
}
