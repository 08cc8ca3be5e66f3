//! Parts shared by the reports of all benchmarks: the head of their JSON, and the form of numbers.

use indicatif::HumanCount;
use schemars::JsonSchema;
use serde::Serialize;

use super::series::Row;
use crate::json::Version;
use crate::result::json::ImageObject;
use crate::result::{Boot, Outcome};

/// The first keys of a benchmark of one image.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Head {
    schema: Version,
    /// Image; null if no boot was finished.
    image: Option<ImageObject>,
    qemu: Qemu,
}

/// The emulator.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Qemu {
    /// QEMU's own version; null if no boot was finished, or QEMU is missing.
    version: Option<String>,
    /// Text of `--cpu`.
    cpu: String,
}

impl Head {
    pub(super) fn of<C, F>(rows: &[Row<C, F>], cpu: &str) -> Self {
        Self {
            schema: Version,
            image: rows.first().map(|row| ImageObject::of(&row.boot)),
            qemu: Qemu::of(rows, cpu),
        }
    }
}

impl Qemu {
    pub(super) fn of<C, F>(rows: &[Row<C, F>], cpu: &str) -> Self {
        Self {
            version: rows.first().and_then(|row| row.boot.qemu_version.clone()),
            cpu: cpu.to_owned(),
        }
    }
}

/// The end of a boot.
#[derive(Serialize, JsonSchema)]
pub(super) struct Ended {
    /// Outcome as of `granule boot`; also `refused` if a kernel or program did or measured something else than was
    /// requested, or not everything.
    outcome: Outcome,
    /// Reason why the outcome is not `ok`; else null.
    reason: Option<String>,
}

impl Ended {
    pub(super) fn of(boot: &Boot) -> Self {
        Self {
            outcome: boot.outcome,
            reason: boot.reason.clone(),
        }
    }
}

/// A number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}
