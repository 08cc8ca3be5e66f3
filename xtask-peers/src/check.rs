//! One requirement, and whether it holds.

use anyhow::Result;
use serde::Serialize;

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    name: String,
    passed: bool,
    /// The finding, or the reason for the failure: one line.
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

    /// The text for people.
    pub(crate) fn line(&self) -> String {
        let mark = if self.passed { "ok    " } else { "FAILED" };
        format!("{mark} {}: {}", self.name, self.found)
    }
}
