//! What came of a boot: plain data, as the guest's lines told it and as it is reported. The lowest room
//! that knows boots: who runs them ([`boot`](crate::boot)) and who compares them stand above.

mod figures;
mod hop;
mod json;
mod kernel_outcome;
mod payload;
pub mod record;
pub mod records;
pub mod report;

use serde_json::Value;

pub use self::figures::Figures;
pub(crate) use self::hop::{left, number};
pub use self::kernel_outcome::KernelOutcome;
pub(crate) use self::payload::Payload;
use self::record::Record;
use crate::bootrec::BootRecord;
use crate::image::Image;
use crate::request::Request;
use crate::trace::TraceFile;

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel booted, checked itself and powered off.
    Ok,
    /// The kernel panicked.
    Panic,
    /// The kernel did not end in time.
    Timeout,
    /// QEMU, the kernel or this program would not go on with what it was given.
    Refused,
    /// A check the kernel made of its own tables failed.
    SelfCheckFailed,
    /// The guest went away without saying how it ended.
    GuestExit,
}

impl Outcome {
    /// The word in JSON and in the last line.
    #[must_use]
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

/// All that is known about a boot that was tried.
#[derive(Debug)]
pub struct Boot {
    /// How it ended.
    pub outcome: Outcome,
    /// One line why, unless it ended well.
    pub reason: Option<String>,
    /// Whether the request itself was at fault.
    pub bad_usage: bool,
    /// The image, if it could be read.
    pub image: Option<Image>,
    /// The version of the QEMU that was run.
    pub qemu_version: Option<String>,
    /// QEMU's text for the CPU, as requested.
    pub cpu: String,
    /// The most host memory QEMU had resident.
    pub peak_resident_bytes: Option<u64>,
    /// What the kernel said in its `@granule` lines: the last one of ours, if there were several.
    pub record: Record,
    /// What each kernel said that said something, in their order.
    pub boots: Vec<Record>,
    /// What leaving for another kernel took, if one left or was to.
    pub kexec: Option<Figures>,
    /// The last boot record read from the guest.
    pub boot_record: Option<BootRecord>,
    /// The end (at least 4 MiB) of what the guest printed, without `@granule`
    /// lines.
    pub console: Vec<u8>,
    /// What QEMU said on standard error.
    pub qemu_messages: String,
    /// The trace that was written, if one was asked for.
    pub trace: Option<TraceFile>,
}

impl Boot {
    pub(crate) fn new(request: &Request) -> Self {
        Self {
            // What it stays if something on the way returns early.
            outcome: Outcome::Refused,
            reason: None,
            bad_usage: false,
            image: None,
            qemu_version: None,
            cpu: request.cpu.clone(),
            peak_resident_bytes: None,
            record: Record::default(),
            boots: Vec::new(),
            kexec: request.kexec.as_ref().map(|_| Figures::default()),
            boot_record: None,
            console: Vec::new(),
            qemu_messages: String::new(),
            trace: None,
        }
    }

    /// Whether the outcome is [`Outcome::Ok`].
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// The exit code of `granule boot`.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::Ok => 0,
            _ if self.bad_usage => 2,
            _ => 1,
        }
    }

    /// The line that says which way it went.
    #[must_use]
    pub fn last_line(&self) -> String {
        match &self.reason {
            None => format!("granule: {}", self.outcome.word()),
            Some(reason) => format!("granule: {}: {reason}", self.outcome.word()),
        }
    }

    /// The JSON object, complete whatever the outcome.
    #[must_use]
    pub fn json(&self) -> Value {
        json::object(self)
    }

    /// What the guest printed, as text.
    #[must_use]
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
        }
        boot.bad_usage = true;
        assert_eq!(boot.exit_code(), 2);
    }
}
