//! What a run of `xtask-peers` says: lines for people while it goes on, one JSON object at its end, and the exit code.
//!
//! Nothing is run or compared here.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use crate::check::Check;
use crate::figures::Row;
use crate::store::Package;

/// The schema of the `--json` output.
const SCHEMA: u32 = 1;
/// The finding if there is nothing to compare with, which is a failure.
const NOT_RUN: &str = "not run: no package source";

/// The whole report; `--json` prints it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    schema: u32,
    packages: &'a [Package],
    rows: &'a [Row],
    tlb: &'a [serde_json::Value],
    faults: &'a [serde_json::Value],
    sensitivity: &'a [serde_json::Value],
    checks: &'a [Check],
    passed: usize,
    failed: usize,
}

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Whether standard output is for one JSON object.
    json: bool,
    pub(crate) packages: Vec<Package>,
    pub(crate) rows: Vec<Row>,
    pub(crate) tlb: Vec<serde_json::Value>,
    pub(crate) faults: Vec<serde_json::Value>,
    pub(crate) sensitivity: Vec<serde_json::Value>,
    checks: Vec<Check>,
    /// When the part that runs began.
    began: Instant,
}

impl Summary {
    /// Nothing yet.
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            packages: Vec::new(),
            rows: Vec::new(),
            tlb: Vec::new(),
            faults: Vec::new(),
            sensitivity: Vec::new(),
            checks: Vec::new(),
            began: Instant::now(),
        }
    }

    /// A line for people.
    pub(crate) fn say(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    /// A part has ended: its time, because a run of all parts has a limit.
    pub(crate) fn part(&mut self, name: &str) {
        self.say(&format!(
            "--- {name} ({:.1} s)",
            self.began.elapsed().as_secs_f32()
        ));
        self.began = Instant::now();
    }

    /// A check's result, told at once.
    pub(crate) fn add(&mut self, check: Check) {
        self.say(&check.line());
        self.checks.push(check);
    }

    /// Nothing was compared, and the result must not read like a comparison.
    pub(crate) fn not_run(&self, why: &anyhow::Error) -> Result<ExitCode> {
        self.say(NOT_RUN);
        if self.json {
            let told = serde_json::json!({ "schema": SCHEMA, "not_run": format!("{why:#}") });
            println!("{}", serde_json::to_string_pretty(&told)?);
        }
        Ok(ExitCode::FAILURE)
    }

    /// The end: the last line is `N passed, N failed`.
    pub(crate) fn end(&self) -> Result<ExitCode> {
        let failed = self.checks.iter().filter(|check| !check.passed()).count();
        let told = Told {
            schema: SCHEMA,
            packages: &self.packages,
            rows: &self.rows,
            tlb: &self.tlb,
            faults: &self.faults,
            sensitivity: &self.sensitivity,
            checks: &self.checks,
            passed: self.checks.len() - failed,
            failed,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&told)?);
        }
        self.say(&format!("{} passed, {failed} failed", told.passed));
        Ok(if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
