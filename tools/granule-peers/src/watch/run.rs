//! One run of `granule watch`: its files, its exit code, and the verdict of its recording.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xtask::deadline::{Finished, run_for};
use xtask::files;

use crate::machine::{LIMIT, granule, items, json, last_line, parse};

/// The time limit of a guest and of its judge.
const BOTH: Duration = LIMIT.saturating_mul(2);

/// A watched machine.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) qemu: &'a Path,
    /// QEMU's options, without those of the console, which is a file.
    pub(super) options: Vec<OsString>,
    pub(super) input: &'a str,
    /// The file of accepted findings for `granule watch --accept`.
    pub(super) accepted: Option<&'a Path>,
    /// Whether the run is recorded, and the recording is checked too.
    pub(super) is_recorded: bool,
    pub(super) folder: &'a Path,
}

/// The results of a run.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) report: Value,
    pub(super) console: String,
}

impl Run<'_> {
    pub(super) fn watch(&self) -> Result<Watched> {
        let file = |name: &str| self.folder.join(name);
        files::write(&file("input"), self.input)?;
        // The output of the second serial port is the input of the monitor.
        for name in ["monitor.in", "monitor.out"] {
            let made = Command::new("mkfifo").arg(file(name)).status();
            ensure!(made.is_ok_and(|it| it.success()), "mkfifo failed");
        }
        let seconds = LIMIT.as_secs().to_string();
        let mut command = granule(&["watch", "--json", "--timeout", &seconds]);
        if self.is_recorded {
            command.arg("--record").arg(file("trace.gz"));
        }
        if let Some(path) = self.accepted {
            command.arg("--accept").arg(path);
        }
        command.arg("--").arg(self.qemu);
        command.args(["-display", "none", "-nodefaults"]);
        let path = |name: &str| file(name).display().to_string();
        let monitor = format!("pipe,id=monitor,path={}", path("monitor"));
        let (output, input) = (path("console"), path("input"));
        let console = format!("file,id=console,path={output},input-path={input}");
        let second = format!("file:{}", path("monitor.in"));
        for (option, value) in [
            ("-chardev", monitor.as_str()),
            ("-mon", "chardev=monitor,mode=readline"),
            ("-chardev", &console),
            ("-serial", "chardev:console"),
            ("-serial", &second),
        ] {
            command.args([option, value]);
        }
        command.args(&self.options);
        let (report, finished) = parse(self.run(command)?)?;
        let code = finished.status.and_then(|status| status.code());
        let console = files::read(&file("console")).context("the guest wrote no console")?;
        let console = String::from_utf8_lossy(&console).into_owned();
        ensure!(
            report["outcome"] == "ended",
            "the outcome is {}; the console's last line is {:?}",
            report["outcome"],
            last_line(&console)
        );
        let expected = match findings(&report).iter().any(is_new) {
            true => 1,
            false if items(&report["unchecked"]).is_empty() => 0,
            false => 3,
        };
        ensure!(
            code == Some(expected),
            "the exit code was {code:?}, with {} findings",
            findings(&report).len()
        );
        if self.is_recorded {
            self.check(count(&report))?;
        }
        Ok(Watched { report, console })
    }

    /// Runs the command. QEMU reads the console's input only when an event wakes it, which a guest
    /// that waits in a loop never does. Empty lines for the monitor wake it.
    fn run(&self, command: Command) -> Result<Finished> {
        if self.input.is_empty() {
            return run_for(command, BOTH);
        }
        // Opened for reading and writing, it does not wait for the other side.
        let mut monitor = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.folder.join("monitor.in"))
            .context("cannot open the monitor's pipe")?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) && monitor.write_all(b"\n").is_ok() {
                    thread::sleep(Duration::from_millis(500));
                }
            });
            let finished = run_for(command, BOTH);
            over.store(true, Ordering::Relaxed);
            finished
        })
    }

    /// Checks that the recording has the same number of violations.
    fn check(&self, count: u64) -> Result<()> {
        let mut check = granule(&["check", "--json", "--most", "0"]);
        check.arg(self.folder.join("trace.gz"));
        let (checked, _) = json(check, LIMIT)?;
        let later = checked["violation_count"].as_u64();
        ensure!(
            later == Some(count),
            "{count} violations in the run, {later:?} in its recording"
        );
        Ok(())
    }
}

pub(super) fn findings(report: &Value) -> &[Value] {
    items(&report["findings"])
}

/// Returns whether a finding is neither accepted nor undecided.
pub(super) fn is_new(finding: &Value) -> bool {
    finding["accepted"].is_null() && finding["undecided"].is_null()
}

/// Counts the decided violations of a run, accepted or not.
fn count(report: &Value) -> u64 {
    let decided = findings(report)
        .iter()
        .filter(|it| it["undecided"].is_null());
    decided.filter_map(|it| it["count"].as_u64()).sum()
}

pub(super) fn events(report: &Value, kind: &str) -> u64 {
    report["events"][kind].as_u64().unwrap_or_default()
}

/// The expected report of a run.
pub(super) struct Expected<'a> {
    pub(super) page_sizes: &'a [u64],
    /// The least number of events of each kind.
    pub(super) least: &'a [(&'a str, u64)],
    /// The exact list of things that are not checked, sorted.
    pub(super) unchecked: &'a [&'a str],
    pub(super) is_known: &'a dyn Fn(&Value) -> bool,
}

impl Expected<'_> {
    /// Checks that the run was observed completely except for what is listed, and has no new findings.
    pub(super) fn judge(&self, report: &Value) -> Result<()> {
        let unchecked = items(&report["unchecked"]).iter();
        let mut unchecked: Vec<&str> = unchecked.filter_map(Value::as_str).collect();
        unchecked.sort_unstable();
        let is_list = report["unchecked"].is_array() && unchecked == self.unchecked;
        ensure!(
            is_list && report["complete"] == unchecked.is_empty(),
            "not checked is {unchecked:?}, expected {:?}; complete is {}",
            self.unchecked,
            report["complete"]
        );
        let page_sizes = &report["guest"]["page_sizes"];
        ensure!(
            *page_sizes == Value::from(self.page_sizes),
            "the page sizes are {page_sizes}"
        );
        for (kind, least) in self.least {
            let found = events(report, kind);
            ensure!(
                found >= *least,
                "{kind}: {found}, expected at least {least}"
            );
        }
        let new = findings(report).iter().filter(|it| !(self.is_known)(it));
        let new: Vec<String> = new.map(lines).collect();
        let count = new.len();
        match new.first() {
            Some(first) => bail!("{count} new findings, the first: {first}"),
            None => Ok(()),
        }
    }
}

fn line(finding: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let place = match finding["function"].as_str() {
        Some(name) => name.to_owned(),
        None => text(&finding["places"][0]["address"]),
    };
    let (rule, example) = (text(&finding["rule"]), text(&finding["example"]));
    format!("{rule} in {place}: {example}")
}

/// Formats a finding in one line, and the events that led to it in further ones, because a rare
/// finding may not occur again.
fn lines(finding: &Value) -> String {
    items(&finding["steps"])
        .iter()
        .fold(line(finding), |all, step| {
            let text = |key: &str| step[key].as_str().unwrap_or("").to_owned();
            let (name, what, role) = (text("name"), text("text"), text("role"));
            all + &format!("\n       {} {name}: {what}  {role}", step["event"])
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_are_counted_and_formatted() {
        let report = json!({
            "events": {"tlbi": 2},
            "findings": [
                {"rule": "a", "function": "f", "places": [], "count": 3, "example": "x"},
                {"rule": "b", "function": null, "places": [{"address": "0x1"}], "count": 4, "example": "y"},
                {"rule": "c", "function": "g", "places": [], "count": 8, "undecided": "no locks", "example": "z"},
            ],
        });
        assert_eq!(count(&report), 7);
        assert_eq!(line(&findings(&report)[0]), "a in f: x");
        assert_eq!(line(&findings(&report)[1]), "b in 0x1: y");
        assert_eq!(lines(&findings(&report)[1]), "b in 0x1: y");
        let step = json!({"event": 7, "name": "f+0x4", "text": "isb cpu0", "role": "is late"});
        let finding = json!({"rule": "a", "function": "f", "example": "x", "steps": [step]});
        assert_eq!(
            lines(&finding),
            "a in f: x\n       7 f+0x4: isb cpu0  is late"
        );
        assert_eq!(count(&json!({})), 0);
    }
}
