//! A thing that must hold, and whether it did.

use anyhow::Result;
use serde::Serialize;

/// What was checked and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    name: String,
    passed: bool,
    /// What was found, or why it failed: one line.
    found: String,
}

impl Check {
    pub(crate) fn new(name: String, result: Result<String>) -> Self {
        let passed = result.is_ok();
        let found = result.unwrap_or_else(|error| format!("{error:#}"));
        Self {
            name,
            passed,
            found,
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.passed
    }

    /// As a person reads it.
    pub(crate) fn line(&self) -> String {
        let mark = if self.passed { "ok    " } else { "FAILED" };
        format!("{mark} {}: {}", self.name, self.found)
    }
}
