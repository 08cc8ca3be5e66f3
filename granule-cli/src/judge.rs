//! What a finished run of QEMU means: its outcome, and the one line that says
//! why. Pure; the run itself is made in `guest`.

use std::process::ExitStatus;
use std::time::Duration;

use crate::boot::Outcome;
use crate::guest::{End, Run};
use crate::qemu;
use crate::record::Verdict;

/// The outcome of a run, and the line that says why.
pub(crate) fn judge(run: &Run, timeout: Duration) -> (Outcome, Option<String>) {
    let bad = |outcome, reason: String| (outcome, Some(reason));
    match &run.end {
        End::Parked(record) => bad(Outcome::Refused, record.message()),
        End::Interrupted => bad(
            Outcome::GuestExit,
            "interrupted, the guest was ended".into(),
        ),
        End::TimedOut => bad(Outcome::Timeout, timeout_reason(run, timeout)),
        End::Exited(status) => exited(run, *status),
    }
}

fn timeout_reason(run: &Run, timeout: Duration) -> String {
    let seconds = timeout.as_secs_f64();
    if run.record.has_ended() {
        return format!("the kernel came to its end but had not powered off after {seconds} s");
    }
    let mut line = format!("no end after {seconds} s");
    if let Some(reason) = run.record.reason() {
        line += &format!("; the kernel had said: {reason}");
    } else if let Some(record) = &run.boot_record {
        line += &format!("; {}", record.progress());
    }
    line
}

fn exited(run: &Run, status: ExitStatus) -> (Outcome, Option<String>) {
    let bad = |outcome, reason: String| (outcome, Some(reason));
    let qemus_line = qemu::first_error(&run.stderr);
    if !status.success() {
        let line = qemus_line.unwrap_or_else(|| "and did not say why".into());
        // A guest that never said a word was most likely never started.
        if status.code().is_some() && run.console.is_empty() && run.record.values().is_empty() {
            return bad(Outcome::Refused, format!("QEMU: {line}"));
        }
        return bad(
            Outcome::GuestExit,
            format!("QEMU ended with {status}: {line}"),
        );
    }
    if !run.record.has_ended() {
        let line = match run.record.reason() {
            Some(reason) => {
                format!("the guest ended without `@granule end`; it had said: {reason}")
            }
            None => "the guest ended without `@granule end`".into(),
        };
        return bad(Outcome::GuestExit, line);
    }
    let told = || {
        run.record
            .reason()
            .map_or_else(|| "the kernel gave no reason".into(), str::to_owned)
    };
    match run.record.verdict() {
        None => bad(
            Outcome::GuestExit,
            "the kernel's record has no outcome".into(),
        ),
        Some(Verdict::Panic) => bad(Outcome::Panic, told()),
        Some(Verdict::Refused) => bad(Outcome::Refused, told()),
        Some(Verdict::SelfCheckFailed) => bad(Outcome::SelfCheckFailed, told()),
        Some(Verdict::GuestExit) => bad(Outcome::GuestExit, told()),
        Some(Verdict::Ok) => match run.record.faults().first() {
            None => (Outcome::Ok, None),
            Some(fault) => bad(
                Outcome::GuestExit,
                format!("the kernel said ok, but its record cannot be understood: {fault}"),
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use std::os::unix::process::ExitStatusExt;

    fn run_of(lines: &[&str], end: End, stderr: &str, console: &str) -> Run {
        let mut record = Record::default();
        for line in lines {
            record.line(line);
        }
        Run {
            end,
            record,
            console: console.into(),
            stderr: stderr.into(),
            boot_record: None,
            trace: None,
            peak_resident_bytes: None,
        }
    }

    fn outcome(run: &Run) -> (Outcome, String) {
        let (outcome, reason) = judge(run, Duration::from_secs(60));
        (outcome, reason.unwrap_or_default())
    }

    fn status(code: i32) -> End {
        End::Exited(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn the_kernels_own_word_counts_only_with_an_end_and_a_power_off() {
        let end = |lines: &[&str]| outcome(&run_of(lines, status(0), "", "x"));
        assert_eq!(end(&["outcome=ok", "end"]), (Outcome::Ok, String::new()));
        assert_eq!(
            end(&["outcome=panic", "reason=r", "end"]),
            (Outcome::Panic, "r".into())
        );
        assert_eq!(
            end(&["outcome=refused", "reason=r", "end"]),
            (Outcome::Refused, "r".into())
        );
        assert_eq!(
            end(&["outcome=self-check-failed", "reason=r", "end"]),
            (Outcome::SelfCheckFailed, "r".into())
        );
        assert_eq!(
            end(&["outcome=guest-exit", "reason=r", "end"]),
            (Outcome::GuestExit, "r".into())
        );
        assert_eq!(end(&["outcome=ok"]).0, Outcome::GuestExit);
        assert_eq!(end(&["end"]).0, Outcome::GuestExit);
        assert_eq!(end(&[]).0, Outcome::GuestExit);
        let fault = end(&["outcome=ok", "levels=x", "end"]);
        assert!(
            fault.0 == Outcome::GuestExit && fault.1.contains("levels=x"),
            "{fault:?}"
        );
        let late = outcome(&run_of(&["outcome=ok", "end"], End::TimedOut, "", ""));
        assert!(
            late.0 == Outcome::Timeout && late.1.contains("powered off"),
            "{late:?}"
        );
    }

    #[test]
    fn a_panic_that_never_ends_is_a_timeout_that_says_so() {
        let lines = ["outcome=panic", "reason=no memory"];
        let (what, why) = outcome(&run_of(&lines, End::TimedOut, "", ""));
        assert_eq!(what, Outcome::Timeout);
        assert_eq!(why, "no end after 60 s; the kernel had said: no memory");
        let silent = outcome(&run_of(&[], End::TimedOut, "", ""));
        assert_eq!(silent.1, "no end after 60 s");
    }

    #[test]
    fn qemus_refusal_is_told_from_qemus_death() {
        let stderr = "qemu-system-aarch64: unable to find CPU model 'z80'\n";
        let (what, why) = outcome(&run_of(&[], status(1), stderr, ""));
        assert_eq!(
            (what, why.as_str()),
            (Outcome::Refused, "QEMU: unable to find CPU model 'z80'")
        );
        let (what, why) = outcome(&run_of(&[], status(1), stderr, "hello"));
        assert!(
            what == Outcome::GuestExit && why.contains("exit status: 1"),
            "{why}"
        );
        let killed = End::Exited(ExitStatus::from_raw(9));
        assert_eq!(outcome(&run_of(&[], killed, "", "")).0, Outcome::GuestExit);
        assert_eq!(
            outcome(&run_of(&[], End::Interrupted, "", "")).0,
            Outcome::GuestExit
        );
    }
}
