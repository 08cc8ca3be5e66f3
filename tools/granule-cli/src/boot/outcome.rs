//! The meaning of a finished run of QEMU: its outcome, and one line with the reason. Pure; `guest`
//! makes the run.

use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;

use super::guest::{End, Run};
use super::qemu;
use crate::result::console_record::RecordLines;
use crate::result::{Outcome, left};

/// The kind of the kernel that the first kernel was to leave for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// One of our kernels: it prints a record, as the first kernel does.
    Ours,
    /// Another kernel: it may print anything, or nothing.
    Other,
}

/// The line of a Linux panic, which follows a time stamp. Linux may then power off or reset the
/// machine as if all were well.
const LINUX_PANIC: &str = "Kernel panic - not syncing";

/// The outcome of a run and the line with its reason. `next` is given if the kernel was to leave
/// for another one.
pub(crate) fn of(run: &Run, next: Option<Next>, timeout: Duration) -> (Outcome, Option<String>) {
    let bad = |outcome, reason: String| (outcome, Some(reason));
    match &run.end {
        End::Parked(record) => bad(
            Outcome::Refused,
            format!("{}{}", who(silent(run)), record.message()),
        ),
        End::Interrupted => bad(
            Outcome::GuestExit,
            "interrupted, the guest was ended".into(),
        ),
        End::CameBack(line) => bad(
            Outcome::GuestExit,
            format!("U-Boot came back to its prompt after `{line}`"),
        ),
        End::TimedOut => bad(Outcome::Timeout, timeout_reason(run, timeout)),
        End::Exited(status) => exited(run, next, *status),
    }
}

/// The beginning of a line about the kernel with that number.
fn who(number: usize) -> String {
    match number {
        0 => String::new(),
        1 => "the next kernel: ".into(),
        _ => format!("kernel {}: ", number + 1),
    }
}

/// The number of the kernel that was running when the output stopped.
fn silent(run: &Run) -> usize {
    let last = run.records.last();
    let at = run.records.iter().count() - 1;
    at + usize::from(last.has_ended() && left(last))
}

fn timeout_reason(run: &Run, timeout: Duration) -> String {
    let seconds = timeout.as_secs_f64();
    let last = run.records.last();
    let has_left = left(last);
    if last.has_ended() && !has_left {
        return format!("the kernel came to its end but had not powered off after {seconds} s");
    }
    let mut line = format!("no end after {seconds} s");
    if !last.has_ended()
        && let Some(reason) = last.reason()
    {
        line += &format!("; the kernel had reported: {reason}");
    } else if let Some(panic) = linux_panic(&run.console).filter(|_| has_left) {
        line += &format!("; the next kernel had reported: {panic}");
    } else if let Some(record) = &run.boot_record {
        line += &format!("; {}{}", who(silent(run)), record.progress());
        if record.has_reason() {
            line += &format!("; {}", record.message());
        }
    } else if has_left {
        line += ": the kernel left for the next one, which has printed no record";
    }
    line
}

pub(super) fn linux_panic(console: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(console);
    let line = text.lines().find(|line| line.contains(LINUX_PANIC))?;
    Some(line.trim_end().to_owned())
}

fn exited(run: &Run, next: Option<Next>, status: ExitStatus) -> (Outcome, Option<String>) {
    let bad = |outcome, reason: String| (outcome, Some(reason));
    let qemus_line = qemu::first_error(&run.stderr);
    if !status.success() {
        let line = qemus_line.unwrap_or_else(|| "it printed no error".into());
        // A guest that never printed a byte was most likely never started.
        if status.code().is_some() && run.console.is_empty() && run.records.count() == 0 {
            return bad(Outcome::Refused, format!("QEMU: {line}"));
        }
        return bad(
            Outcome::GuestExit,
            format!("QEMU ended with {status}: {line}"),
        );
    }
    if run.records.count() == 0
        && let Some(record) = run.boot_record.as_ref().filter(|it| it.has_reason())
    {
        let (why, how_far) = (record.message(), record.progress());
        return bad(
            Outcome::GuestExit,
            format!("the guest ended without a word on the console: {why}; {how_far}"),
        );
    }
    let mut kernels = run.records.iter().enumerate().peekable();
    while let Some((number, record)) = kernels.next() {
        if let Some((outcome, reason)) = not_well(record, next.is_some()) {
            return bad(outcome, format!("{}{reason}", who(number)));
        }
        if kernels.peek().is_some() && !left(record) {
            let line = "it came to its end, and then more was heard, although it had not left for \
                        another kernel";
            return bad(Outcome::GuestExit, format!("{}{line}", who(number)));
        }
    }
    if left(run.records.last()) {
        // One of our kernels prints a record, however it ends.
        if next == Some(Next::Ours) && run.records.count() == 1 {
            return bad(
                Outcome::GuestExit,
                "the kernel left for the next one, of which nothing was heard before the machine \
                 ended"
                    .into(),
            );
        }
        if let Some(line) = linux_panic(&run.console) {
            return bad(Outcome::Panic, format!("the next kernel: {line}"));
        }
    } else if next.is_some() && run.records.count() == 1 {
        return bad(
            Outcome::GuestExit,
            "the kernel did not leave for the next one; does it support kexec?".into(),
        );
    }
    (Outcome::Ok, None)
}

/// The reason why a kernel's end is not ok, if there is one. If it was `requested` to load another
/// kernel, refused that, and the program gave up, the refusal is the reason.
pub(super) fn not_well(record: &RecordLines, requested: bool) -> Option<(Outcome, String)> {
    let reason = || {
        record
            .reason()
            .map_or_else(|| "the kernel gave no reason".into(), str::to_owned)
    };
    let outcome = match record.outcome() {
        _ if !record.has_ended() => {
            let line = match record.reason() {
                Some(reason) => {
                    format!("the guest ended without `@granule end`; it had reported: {reason}")
                }
                None => "the guest ended without `@granule end`".into(),
            };
            return Some((Outcome::GuestExit, line));
        }
        None => {
            let line = "the kernel's record has no outcome".into();
            return Some((Outcome::GuestExit, line));
        }
        Some(Outcome::Ok) => {
            let fault = record.faults().first()?;
            let line =
                format!("the kernel reported ok, but its record cannot be understood: {fault}");
            return Some((Outcome::GuestExit, line));
        }
        Some(Outcome::GuestExit) => {
            let refused = record.get("kexec.refused").and_then(Value::as_str);
            if let Some(line) = refused.filter(|_| requested) {
                return Some((Outcome::Refused, line.to_owned()));
            }
            Outcome::GuestExit
        }
        Some(failed) => failed,
    };
    Some((outcome, reason()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bootrec::BootRecord;
    use crate::result::chain::Records;
    use granule_testing::text::{assert_contains, assert_ends_with};
    use std::os::unix::process::ExitStatusExt;

    pub(crate) fn run_of(lines: &[&str], end: End, stderr: &str, console: &str) -> Run {
        let mut records = Records::default();
        for line in lines {
            records.line(line);
        }
        Run {
            end,
            records,
            console: console.into(),
            stderr: stderr.into(),
            boot_record: None,
            trace: None,
            peak_resident_bytes: None,
        }
    }

    fn outcome(run: &Run) -> (Outcome, String) {
        after(run, None)
    }

    fn after(run: &Run, next: Option<Next>) -> (Outcome, String) {
        let (outcome, reason) = of(run, next, Duration::from_secs(60));
        (outcome, reason.unwrap_or_default())
    }

    pub(crate) fn status(code: i32) -> End {
        End::Exited(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn the_kernels_own_word_counts_only_with_an_end_and_a_power_off() {
        let end = |lines: &[&str]| outcome(&run_of(lines, status(0), "", "x"));
        assert_eq!(end(&["outcome=ok", "end"]), (Outcome::Ok, String::new()));
        for outcome in &Outcome::OF_KERNELS[1..] {
            let line = format!("outcome={}", outcome.word());
            assert_eq!(end(&[&line, "reason=r", "end"]), (*outcome, "r".into()));
        }
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
    fn a_kernel_without_a_console_differs_from_one_that_printed_nothing() {
        let mut bytes = b"GRANULE-BOOTREC\0".to_vec();
        bytes.extend([1_u32, 4, 12, 13].map(u32::to_le_bytes).concat());
        bytes.extend(b"no console: x");
        bytes.resize(crate::bootrec::BYTES, 0);
        let ended = |end: End, lines: &[&str], reason: u8| {
            let mut bytes = bytes.clone();
            bytes[24] = reason;
            let mut run = run_of(lines, end, "", "");
            run.boot_record = BootRecord::decode(&bytes).ok();
            outcome(&run)
        };
        let (what, why) = ended(status(0), &[], 12);
        assert_eq!(what, Outcome::GuestExit);
        assert_ends_with(&why, "no console: x; the kernel had finished");
        let late = ended(End::TimedOut, &[], 12);
        assert!(late.1.ends_with("finished; no console: x"), "{late:?}");
        // A failure replaced the reason. No reason at all, and a record that was heard after all.
        let failed = ended(status(0), &[], 9);
        assert!(failed.1.contains("no console: x"), "{failed:?}");
        assert!(ended(status(0), &[], 0).1.contains("@granule end"));
        assert_eq!(ended(status(0), &["outcome=ok", "end"], 12).0, Outcome::Ok);
    }

    #[test]
    fn a_panic_that_never_ends_is_a_timeout_with_its_reason() {
        let lines = ["outcome=panic", "reason=no memory"];
        let (what, why) = outcome(&run_of(&lines, End::TimedOut, "", ""));
        assert_eq!(what, Outcome::Timeout);
        assert_eq!(why, "no end after 60 s; the kernel had reported: no memory");
        let silent = outcome(&run_of(&[], End::TimedOut, "", ""));
        assert_eq!(silent.1, "no end after 60 s");
    }

    #[test]
    fn qemus_refusal_differs_from_qemus_death() {
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

    const LEFT: [&str; 3] = ["kexec.leaving.dsb=3", "outcome=ok", "end"];

    /// A kernel that left, and the output after it.
    fn left(behind: &[&str], console: &str, next: Option<Next>) -> (Outcome, String) {
        let lines = [&LEFT, behind].concat();
        after(&run_of(&lines, status(0), "", console), next)
    }

    #[test]
    fn a_next_kernel_of_ours_must_end_well() {
        let ours = Some(Next::Ours);
        let well = (Outcome::Ok, String::new());
        assert_eq!(left(&["outcome=ok", "end"], "x", ours), well);
        assert_eq!(left(&["outcome=ok", "end"], "x", None), well);
        let three = [&LEFT[..], &["outcome=ok", "end"]].concat();
        assert_eq!(left(&three, "x", ours), well);
        for (behind, outcome, part) in [
            (&[][..], Outcome::GuestExit, "nothing was heard"),
            (&["page_size=4096"], Outcome::GuestExit, "@granule end"),
            (&["outcome=ok"], Outcome::GuestExit, "@granule end"),
            (&["end"], Outcome::GuestExit, "no outcome"),
            (
                &["x", "outcome=ok", "end"],
                Outcome::GuestExit,
                "understood",
            ),
            (&["outcome=panic", "reason=r", "end"], Outcome::Panic, ": r"),
            (
                &["outcome=self-check-failed", "reason=r", "end"],
                Outcome::SelfCheckFailed,
                ": r",
            ),
        ] {
            let (what, why) = left(behind, "x", ours);
            assert_eq!(what, outcome, "{behind:?}: {why}");
            assert_contains(&why, part);
            assert_contains(&why, "next");
        }
        let third = left(&[&LEFT[..], &["outcome=panic", "end"]].concat(), "x", ours);
        assert!(third.1.starts_with("kernel 3: "), "{third:?}");
    }

    #[test]
    fn a_next_kernel_of_others_is_believed_unless_it_reports_a_panic() {
        for next in [Some(Next::Other), None] {
            assert_eq!(left(&[], "Linux version\n", next).0, Outcome::Ok);
            let console = "[    0.5] Kernel panic - not syncing: No init found.\r\nmore\n";
            let (what, why) = left(&[], console, next);
            assert_eq!(what, Outcome::Panic);
            assert!(why.ends_with("not syncing: No init found."), "{why}");
            // If the next kernel prints a record, the record counts.
            let ended = left(&["outcome=refused", "reason=r", "end"], "", next);
            assert_eq!(ended, (Outcome::Refused, "the next kernel: r".into()));
        }
    }

    #[test]
    fn a_boot_that_should_leave_and_does_not_has_failed() {
        let stays = |lines: &[&str], next| after(&run_of(lines, status(0), "", "x"), next);
        let (what, why) = stays(&["outcome=ok", "end"], Some(Next::Other));
        assert!(
            what == Outcome::GuestExit && why.contains("did not leave"),
            "{why}"
        );
        let gave_up = [
            "kexec.refused=too big",
            "outcome=guest-exit",
            "reason=ended with 1",
            "end",
        ];
        let (what, why) = stays(&gave_up, Some(Next::Ours));
        assert_eq!((what, why.as_str()), (Outcome::Refused, "too big"));
        // A user's own program may have its own reasons.
        assert_eq!(
            stays(&gave_up, None),
            (Outcome::GuestExit, "ended with 1".into())
        );
        let (what, why) = stays(&["outcome=ok", "end", "outcome=ok", "end"], None);
        assert!(
            what == Outcome::GuestExit && why.contains("more was heard"),
            "{why}"
        );
    }

    #[test]
    fn a_next_kernel_that_never_ends_differs_from_the_first() {
        let late =
            |lines: &[&str], console: &str| outcome(&run_of(lines, End::TimedOut, "", console)).1;
        assert!(late(&LEFT, "x").contains("printed no record"));
        assert!(late(&LEFT, "Kernel panic - not syncing: r").contains("syncing: r"));
        let panicked = [&LEFT[..], &["outcome=panic", "reason=r"]].concat();
        assert_eq!(
            late(&panicked, ""),
            "no end after 60 s; the kernel had reported: r"
        );
        let silent = [&LEFT[..], &["page_size=4096"]].concat();
        assert_eq!(late(&silent, ""), "no end after 60 s");
    }
}
