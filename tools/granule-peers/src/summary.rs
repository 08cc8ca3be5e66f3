//! Reports a run of `granule-peers`: lines for people while it goes on, one JSON object at its end, and the exit code.
//!
//! Nothing is run or compared here.

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The schema of the `--json` output.
const SCHEMA: u32 = 1;
/// The finding if there is nothing to compare with, which is a failure.
const NOT_RUN: &str = "not run: no package source";
/// The lists for programs, which the JSON object has even where no part made them.
const LISTS: [&str; 5] = ["packages", "rows", "tlb", "faults", "sensitivity"];

/// What was found so far.
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
    /// Begins with nothing.
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

    /// Writes a line for people.
    pub(crate) fn say(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    /// Keeps a list for programs.
    pub(crate) fn keep(&self, name: &str, list: impl Serialize) -> Result<()> {
        let list = serde_json::to_value(list)?;
        self.found().lists.insert(name.to_owned(), list);
        Ok(())
    }

    /// Adds a check, and writes its finding, or why it failed, at once.
    pub(crate) fn add(&self, name: &str, result: Result<String>) {
        let passed = result.is_ok();
        let found = result.unwrap_or_else(|error| format!("{error:#}"));
        let mark = if passed { "ok    " } else { "FAILED" };
        self.say(&format!("{mark} {name}: {found}"));
        let mut all = self.found();
        all.failed += usize::from(!passed);
        all.checks
            .push(json!({ "name": name, "passed": passed, "found": found }));
    }

    /// Ends where nothing was compared: the result must not read like a comparison.
    pub(crate) fn not_run(&self, why: &anyhow::Error) -> Result<ExitCode> {
        self.say(NOT_RUN);
        self.print(&json!({ "schema": SCHEMA, "not_run": format!("{why:#}") }))?;
        Ok(ExitCode::FAILURE)
    }

    /// Ends: the last line is `N passed, N failed`.
    pub(crate) fn end(&self) -> Result<ExitCode> {
        let found = self.found();
        let (failed, passed) = (found.failed, found.checks.len() - found.failed);
        let mut told = found.lists.clone();
        let checks = json!(found.checks);
        for (key, value) in [
            ("schema", json!(SCHEMA)),
            ("checks", checks),
            ("passed", json!(passed)),
            ("failed", json!(failed)),
        ] {
            told.insert(key.to_owned(), value);
        }
        self.print(&Value::Object(told))?;
        self.say(&format!("{passed} passed, {failed} failed"));
        Ok(ExitCode::from(u8::from(failed > 0)))
    }

    fn print(&self, told: &Value) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(told)?);
        }
        Ok(())
    }
}
