//! A boot that crashes into a crash kernel: the disk for the core, what a finished run means, and the core itself.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use granule_inspect::source::Source;
use granule_inspect::source::bytes::DumpFile;
use granule_inspect::source::elf_core::file_bytes;
use granule_inspect::walk::EVERYTHING;
use granule_inspect::{Options, open};
use tempfile::NamedTempFile;

use super::guest::{End, Run};
use super::outcome::{self, Next};
use crate::image;
use crate::inspect::json::TotalsObject;
use crate::inspect::listing::ranges;
use crate::request::{Crash, Request};
use crate::result::Outcome;
use crate::result::crash::Core;

/// Room on the disk for the headers and the notes of a core beside RAM.
const HEADERS: u64 = 16 << 20;

/// The disk that the crash kernel writes to, which is removed unless it becomes the core.
pub(super) struct Disk {
    file: NamedTempFile,
    /// The file that the user named.
    output: Option<PathBuf>,
}

impl Disk {
    /// Makes a disk of zeros in the folder of the output.
    /// Fails with one line: the folder cannot be written to.
    pub(super) fn new(crash: &Crash, request: &Request) -> Result<Self, String> {
        let folder = match &crash.output {
            Some(path) => match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => ".".into(),
            },
            None => image::default_folder().map_err(
                |_| "--crash: there is no target/granule here or above: give --crash-output FILE",
            )?,
        };
        let complain = |error| {
            let folder = folder.display();
            format!("--crash-output: a file in {folder} cannot be made: {error}")
        };
        let file = tempfile::Builder::new()
            .prefix("core-")
            .tempfile_in(&folder)
            .map_err(complain)?;
        let bytes = request.memory.saturating_add(HEADERS);
        file.as_file().set_len(bytes).map_err(complain)?;
        Ok(Self {
            file,
            output: crash.output.clone(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads the core, cuts the disk behind it, and keeps it under the name of the output.
    /// Fails with one line if there is no core, or it is not whole.
    pub(super) fn keep(self) -> Result<Core, String> {
        let name = self.path().display().to_string();
        let unread = |error| format!("{name}: {error}");
        let file = File::open(self.path()).and_then(DumpFile::new);
        let file = file.map_err(unread)?;
        let mut magic = [0; 4];
        std::io::Read::read_exact(&mut self.file.as_file(), &mut magic).map_err(unread)?;
        if magic == [0; 4] {
            return Err("the crash kernel wrote no core to its disk".into());
        }
        let complain = |why: String| {
            format!("what the crash kernel wrote to its disk is not a whole core: {why}")
        };
        let bytes = file_bytes(&file).map_err(|error| complain(error.to_string()))?;
        let disk = self.file.as_file().metadata().map_err(unread)?.len();
        if bytes > disk {
            let line = format!("it has {bytes} bytes, and the disk {disk}");
            return Err(complain(line));
        }
        self.file.as_file().set_len(bytes).map_err(unread)?;
        let opened = open(&Source::File(self.path().to_owned()), &Options::default());
        let opened = opened.map_err(|error| complain(error.to_string()))?;
        let tree = opened.trees.first();
        let tree = tree.ok_or_else(|| complain("it has no page tables".into()))?;
        let mut count = 0;
        let walked = ranges(
            (EVERYTHING, |_, _| true),
            &*opened.memory,
            tree,
            &mut |_| {},
            |_| {
                count += 1;
                Ok(())
            },
        );
        let walked = walked.map_err(|error| complain(error.to_string()))?;
        if let Some(line) = walked.lines().next() {
            return Err(complain(line));
        }
        let ram = opened.memory.ranges();
        let ram_bytes = ram.iter().map(|range| range.end - range.start).sum();
        // The mode of a temporary file stays: only its owner may read what programs had in memory.
        let output = match self.output {
            Some(path) => match self.file.persist(&path) {
                Ok(_) => path,
                Err(error) => return Err(format!("{}: {}", path.display(), error.error)),
            },
            None => self.file.keep().map_err(|error| unread(error.error))?.1,
        };
        Ok(Core {
            output,
            bytes,
            ram_bytes,
            page_size: tree.geometry().page_size().bytes(),
            va_bits: tree.geometry().va_bits(),
            ranges: count,
            totals: TotalsObject::of(&walked.totals),
            notes: opened.notes.clone(),
        })
    }
}

/// The reason of the kernel that crashed into a crash kernel, which is one of `ours` or not, if the crash kernel then
/// ended well; else the outcome and its reason.
pub(super) fn of(run: &Run, ours: bool, timeout: Duration) -> Result<String, (Outcome, String)> {
    let mut kernels = run.records.iter();
    let crashed = kernels
        .next()
        .filter(|it| it.outcome() == Some(Outcome::Panic));
    let reason = crashed.and_then(|it| it.reason().filter(|_| it.has_ended()));
    let Some(reason) = reason else {
        let first = run.records.iter().next();
        let refused = first.and_then(|it| it.get("kexec.refused")?.as_str());
        let (outcome, why) = outcome::of(run, None, timeout);
        return Err(match (outcome, refused) {
            (Outcome::Ok, _) => (Outcome::GuestExit, "the kernel did not crash".into()),
            // The program gave up for that.
            (Outcome::GuestExit, Some(refused)) => (Outcome::Refused, refused.to_owned()),
            _ => (outcome, why.unwrap_or_default() + &complaint(run)),
        });
    };
    let bad = |outcome, why: String| {
        let complaint = complaint(run);
        let line = format!("{why}{complaint}; the kernel had crashed: {reason}");
        Err((outcome, line))
    };
    match &run.end {
        End::Exited(status) if status.success() => {}
        End::TimedOut => {
            let seconds = timeout.as_secs_f64();
            let mut line = format!("the crash kernel had not powered off after {seconds} s");
            if let Some(panic) = outcome::linux_panic(&run.console) {
                line += &format!("; it had reported: {panic}");
            }
            return bad(Outcome::Timeout, line);
        }
        _ => {
            let (outcome, why) = outcome::of(run, Some(Next::Other), timeout);
            return bad(outcome, why.unwrap_or_default());
        }
    }
    match kernels
        .next()
        .map(|record| outcome::not_well(record, false))
    {
        Some(Some((outcome, why))) => bad(outcome, format!("the crash kernel: {why}")),
        None if ours => {
            let entered = crashed.and_then(|it| it.get("crash.entered")?.as_bool());
            let line = match entered {
                Some(true) => "nothing was heard of the crash kernel, which was entered",
                _ => "the crash kernel was not entered",
            };
            bad(Outcome::Panic, line.into())
        }
        _ => match outcome::linux_panic(&run.console) {
            Some(line) => bad(Outcome::Panic, format!("the crash kernel: {line}")),
            None => Ok(reason.to_owned()),
        },
    }
}

/// Returns the last complaint of the program `kexec`, in parentheses; empty if it had none.
fn complaint(run: &Run) -> String {
    let text = String::from_utf8_lossy(&run.console);
    let mut lines = text.lines().rev().map(str::trim_end);
    let line = lines.find(|line| line.starts_with("kexec: "));
    line.map_or_else(String::new, |line| format!(" ({line})"))
}

#[cfg(test)]
mod tests {
    use super::outcome::tests::{run_of, status};
    use super::*;

    #[test]
    fn a_silent_crash_kernel_was_entered_or_was_not() {
        for (entered, words) in [("true", "which was entered"), ("false", "was not entered")] {
            let entered = format!("crash.entered={entered}");
            let lines = ["outcome=panic", "reason=dead", &entered, "end"];
            let run = run_of(&lines, status(0), "", "");
            let (_, line) = of(&run, true, Duration::from_secs(60)).unwrap_err();
            assert!(line.contains(words), "{line}");
        }
    }

    #[test]
    fn a_crash_is_well_if_the_crash_kernel_ends_well() {
        let crashed = ["outcome=panic", "reason=dead", "end"];
        let of = |more: &[&str], end: End, console: &str, ours| {
            let lines = [&crashed[..], more].concat();
            let run = run_of(&lines, end, "", console);
            super::of(&run, ours, Duration::from_secs(60))
        };
        let well = ["outcome=ok", "end"];
        assert_eq!(of(&well, status(0), "", true), Ok("dead".into()));
        assert_eq!(of(&[], status(0), "", false), Ok("dead".into()));
        type Case<'a> = (&'a [&'a str], End, &'a str, bool, Outcome, &'a str);
        let cases: [Case<'_>; 6] = [
            (
                &[],
                status(0),
                "",
                true,
                Outcome::Panic,
                "the crash kernel was not entered",
            ),
            (
                &["outcome=guest-exit", "reason=init", "end"],
                status(0),
                "kexec: first\nkexec: /dev/vda: no\nx",
                true,
                Outcome::GuestExit,
                "the crash kernel: init (kexec: /dev/vda: no); ",
            ),
            (
                &["outcome=refused", "reason=r", "end"],
                status(0),
                "",
                true,
                Outcome::Refused,
                "the crash kernel: r;",
            ),
            (
                &[],
                End::TimedOut,
                "Kernel panic - not syncing: y",
                false,
                Outcome::Timeout,
                "had not powered off after 60 s; it had reported: Kernel panic - not syncing: y",
            ),
            (
                &well,
                End::Interrupted,
                "",
                true,
                Outcome::GuestExit,
                "interrupted",
            ),
            (
                &[],
                status(0),
                "[1.0] Kernel panic - not syncing: x",
                false,
                Outcome::Panic,
                "not syncing: x",
            ),
        ];
        for (more, end, console, ours, outcome, words) in cases {
            let (found, line) = of(more, end, console, ours).unwrap_err();
            assert_eq!(found, outcome, "{line}");
            assert!(
                line.contains(words) && line.ends_with("had crashed: dead"),
                "{line}"
            );
        }
        for (lines, outcome, words) in [
            (
                &["outcome=ok", "end"][..],
                Outcome::GuestExit,
                "did not crash",
            ),
            (
                &["kexec.refused=no room", "outcome=guest-exit", "end"],
                Outcome::Refused,
                "no room",
            ),
            (
                &["outcome=panic"],
                Outcome::GuestExit,
                "without `@granule end`",
            ),
        ] {
            let run = run_of(lines, status(0), "", "");
            let (found, line) = super::of(&run, true, Duration::from_secs(60)).unwrap_err();
            assert_eq!(found, outcome, "{line}");
            assert!(line.contains(words), "{line}");
        }
    }
}
