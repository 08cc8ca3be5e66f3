//! One run of `granule watch`: its files, its exit code, and whether its recording has the same verdict.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::deadline::{Finished, run_for};
use xtask::files;

use crate::machine::{granule, items, json, last_line, parse};

/// A guest may take 10 minutes, on its own clock; a busy host more.
const GUEST_LIMIT: &str = "600";
const LIMIT: Duration = Duration::from_secs(3600);

/// What is watched.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) qemu: &'a Path,
    /// QEMU's options but for the console, which is a file.
    pub(super) options: Vec<OsString>,
    /// What the guest reads from its console.
    pub(super) input: &'a str,
    /// Findings that are accepted, as `granule watch --accept` takes them.
    pub(super) accepted: Option<&'a Path>,
    /// Whether the recording is checked too.
    pub(super) is_recorded: bool,
    /// A folder of its own.
    pub(super) folder: &'a Path,
}

/// What was seen.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) told: Value,
    pub(super) console: String,
}

impl Run<'_> {
    /// Watches it to its end.
    pub(super) fn watch(&self) -> Result<Watched> {
        let file = |name: &str| self.folder.join(name);
        files::write(&file("input"), self.input)?;
        // What the guest writes to its second serial port is typed into the monitor.
        for name in ["monitor.in", "monitor.out"] {
            let made = Command::new("mkfifo").arg(file(name)).status();
            ensure!(made.is_ok_and(|it| it.success()), "mkfifo failed");
        }
        let mut command = granule(&["watch", "--json", "--timeout", GUEST_LIMIT]);
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
        let (told, finished) = parse(self.run(command)?)?;
        let code = finished.status.and_then(|status| status.code());
        let console = files::read(&file("console")).context("the guest wrote no console")?;
        let console = String::from_utf8_lossy(&console).into_owned();
        ensure!(
            told["outcome"] == "ended",
            "the outcome is {}; the console's last line is {:?}",
            told["outcome"],
            last_line(&console)
        );
        let is_new = findings(&told).iter().any(is_new);
        ensure!(
            code == Some(i32::from(is_new)),
            "the exit code was {code:?}, with {} findings",
            findings(&told).len()
        );
        if self.is_recorded {
            self.check(count(&told))?;
        }
        Ok(Watched { told, console })
    }

    /// Runs the command. QEMU looks for what is typed only when something wakes it, which a guest that waits in a loop
    /// never does: empty lines in the monitor do.
    fn run(&self, command: Command) -> Result<Finished> {
        if self.input.is_empty() {
            return run_for(command, LIMIT);
        }
        // Opened for both, it waits for nobody.
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
            let finished = run_for(command, LIMIT);
            over.store(true, Ordering::Relaxed);
            finished
        })
    }

    /// The recording has as many violations.
    fn check(&self, count: u64) -> Result<()> {
        let mut check = granule(&["check", "--json", "--most", "0"]);
        check.arg(self.folder.join("trace.gz"));
        let (checked, _) = json(check, LIMIT)?;
        let later = checked["violation_count"].as_u64();
        ensure!(
            later == Some(count),
            "{count} violations beside the guest, {later:?} in its recording"
        );
        Ok(())
    }
}

/// The findings of a run.
pub(super) fn findings(told: &Value) -> &[Value] {
    items(&told["findings"])
}

/// Whether a finding is neither accepted nor undecided.
pub(super) fn is_new(finding: &Value) -> bool {
    finding["accepted"].is_null() && finding["undecided"].is_null()
}

/// Violations of a run that are decided, accepted or not.
fn count(told: &Value) -> u64 {
    let decided = findings(told).iter().filter(|it| it["undecided"].is_null());
    decided.filter_map(|it| it["count"].as_u64()).sum()
}

/// Events of a kind.
pub(super) fn events(told: &Value, kind: &str) -> u64 {
    told["events"][kind].as_u64().unwrap_or_default()
}

/// Each kind of event was seen as often as it must be at least.
pub(super) fn saw(told: &Value, least: &[(&str, u64)]) -> Result<()> {
    for (kind, least) in least {
        let found = events(told, kind);
        ensure!(
            found >= *least,
            "{kind}: {found}, where {least} is the least"
        );
    }
    Ok(())
}

/// A finding in one line.
fn line(finding: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let place = match finding["function"].as_str() {
        Some(name) => name.to_owned(),
        None => text(&finding["places"][0]["address"]),
    };
    let (rule, example) = (text(&finding["rule"]), text(&finding["example"]));
    format!("{rule} in {place}: {example}")
}

/// One finding in a line, and the events that led to it in further ones: a rare one may not come again.
pub(super) fn lines(finding: &Value) -> String {
    items(&finding["steps"])
        .iter()
        .fold(line(finding), |told, step| {
            let text = |key: &str| step[key].as_str().unwrap_or("").to_owned();
            let (name, what, role) = (text("name"), text("text"), text("role"));
            told + &format!("\n       {} {name}: {what}  {role}", step["event"])
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_are_counted_and_told() {
        let told = json!({
            "events": {"tlbi": 2},
            "findings": [
                {"rule": "a", "function": "f", "places": [], "count": 3, "example": "x"},
                {"rule": "b", "function": null, "places": [{"address": "0x1"}], "count": 4, "example": "y"},
                {"rule": "c", "function": "g", "places": [], "count": 8, "undecided": "no locks", "example": "z"},
            ],
        });
        assert_eq!(count(&told), 7);
        assert_eq!(line(&findings(&told)[0]), "a in f: x");
        assert_eq!(line(&findings(&told)[1]), "b in 0x1: y");
        assert_eq!(lines(&findings(&told)[1]), "b in 0x1: y");
        let step = json!({"event": 7, "name": "f+0x4", "text": "isb cpu0", "role": "is late"});
        let finding = json!({"rule": "a", "function": "f", "example": "x", "steps": [step]});
        assert_eq!(
            lines(&finding),
            "a in f: x\n       7 f+0x4: isb cpu0  is late"
        );
        assert!(saw(&told, &[("tlbi", 2)]).is_ok());
        let error = saw(&told, &[("tlbi", 3)]).unwrap_err().to_string();
        assert!(error.contains("tlbi: 2"), "{error}");
        assert!(saw(&told, &[("dsb", 1)]).is_err());
        assert_eq!(count(&json!({})), 0);
    }
}
