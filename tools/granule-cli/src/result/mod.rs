//! The result of a boot: plain data from the guest's lines, and its reports. This is the lowest
//! module with the type of a boot: [`boot`](crate::boot) and the benchmarks are above it.

pub mod chain;
pub mod console_record;
pub mod crash;
mod figures;
pub(crate) mod guest;
mod hop;
pub(crate) mod json;
mod payload;
pub mod report;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use self::console_record::RecordLines;
use self::crash::Crashed;
pub use self::figures::Figures;
pub(crate) use self::hop::{left, number};
pub(crate) use self::payload::Payload;
use crate::bootrec::BootRecord;
use crate::image::Image;
use crate::request::{Firmware, Request};
use crate::trace::TraceFile;

/// Outcome of a boot. `granule boot` exits with 0 for `ok`, with 2 if the request itself is wrong, and else
/// with 1. The last line on standard error has the same, with and without `--json`: `granule: ok`, or
/// `granule: OUTCOME: REASON`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The kernel printed `ok`, ended its record and powered off, and every record line was understood.
    Ok,
    /// The kernel panicked and printed so.
    Panic,
    /// The guest had not powered off after `--timeout` seconds of its own clock, whatever it had printed until
    /// then. That clock stands still while the host has no core for the guest, so a busy host causes no
    /// `timeout`.
    Timeout,
    /// The kernel refused its input (in its record, or parked, with the reason in its boot record); or QEMU
    /// refused its options, or is missing; or the request itself is wrong: a missing file, a file that is no
    /// image, an address outside RAM, an option that would alter the tree of `--dtb`.
    Refused,
    /// The kernel's check of its own tables failed.
    SelfCheckFailed,
    /// The first process did not exit with 0 (the reason has how it ended); or the guest went away without
    /// `@granule end` or with a contradictory record; or the boot was interrupted.
    GuestExit,
}

impl Outcome {
    /// The outcomes that a kernel may report.
    pub(crate) const OF_KERNELS: [Self; 5] = [
        Self::Ok,
        Self::Panic,
        Self::Refused,
        Self::SelfCheckFailed,
        Self::GuestExit,
    ];

    /// The word in JSON and in the last line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::SelfCheckFailed => "self-check-failed",
            Self::GuestExit => "guest-exit",
        }
    }
}

/// The whole result of a boot that was tried.
#[derive(Debug)]
pub struct Boot {
    pub outcome: Outcome,
    /// One line with the reason, unless the outcome is ok.
    pub reason: Option<String>,
    /// Whether the request itself was wrong.
    pub bad_usage: bool,
    /// The image, if it could be read.
    pub image: Option<Image>,
    /// The version of the QEMU that was run.
    pub qemu_version: Option<String>,
    /// QEMU's text for the CPU, as requested.
    pub cpu: String,
    /// The way in which the kernel was started.
    pub firmware: Firmware,
    /// The peak of QEMU's resident host memory.
    pub peak_resident_bytes: Option<u64>,
    /// The kernel's `@granule` lines: those of the last kernel of ours, if there were several.
    pub record: RecordLines,
    /// The record of each kernel that printed one, in order.
    pub boots: Vec<RecordLines>,
    /// The cost of leaving for another kernel, if one left or was requested to.
    pub kexec: Option<Figures>,
    /// The kernel that crashed into a crash kernel, if one did.
    pub crash: Option<Crashed>,
    /// The last boot record read from the guest.
    pub boot_record: Option<BootRecord>,
    /// The end (at least 4 MiB) of the guest's output, without `@granule` lines.
    pub console: Vec<u8>,
    /// QEMU's output on standard error.
    pub qemu_messages: String,
    /// The trace file, if one was requested and written.
    pub trace: Option<TraceFile>,
}

impl Boot {
    pub(crate) fn new(request: &Request) -> Self {
        Self {
            // The outcome if a step on the way returns early.
            outcome: Outcome::Refused,
            reason: None,
            bad_usage: false,
            image: None,
            qemu_version: None,
            cpu: request.cpu.clone(),
            firmware: request.firmware,
            peak_resident_bytes: None,
            record: RecordLines::default(),
            boots: Vec::new(),
            kexec: request.kexec.as_ref().map(|_| Figures::default()),
            crash: None,
            boot_record: None,
            console: Vec::new(),
            qemu_messages: String::new(),
            trace: None,
        }
    }

    /// Whether the outcome is [`Outcome::Ok`].
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// The exit code of `granule boot`.
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::Ok => 0,
            _ if self.bad_usage => 2,
            _ => 1,
        }
    }

    /// The last line of the report, with the outcome.
    pub fn last_line(&self) -> String {
        match &self.reason {
            None => format!("granule: {}", self.outcome.word()),
            Some(reason) => format!("granule: {}: {reason}", self.outcome.word()),
        }
    }

    /// The JSON object, complete whatever the outcome.
    pub fn json(&self) -> Value {
        json::object(self)
    }

    /// The guest's output as text.
    pub fn console_text(&self) -> String {
        String::from_utf8_lossy(&self.console).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ok_exits_with_0_and_only_bad_usage_with_2() {
        let mut boot = Boot::new(&Request::default());
        for (outcome, code) in [
            (Outcome::Ok, 0),
            (Outcome::Panic, 1),
            (Outcome::Timeout, 1),
            (Outcome::Refused, 1),
            (Outcome::SelfCheckFailed, 1),
            (Outcome::GuestExit, 1),
        ] {
            boot.outcome = outcome;
            assert_eq!(boot.exit_code(), code);
            assert_eq!(crate::json::value(outcome), outcome.word());
        }
        boot.bad_usage = true;
        assert_eq!(boot.exit_code(), 2);
    }
}
