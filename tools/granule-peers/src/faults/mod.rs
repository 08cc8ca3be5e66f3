//! Plants faults in Debian's kernel while it runs under `granule watch`: single TLBIs and barriers
//! become NOPs in its memory. Each must be found, with the name of the affected function. Another
//! judge confirms that each matters, on a recording of the kernel without faults.
//!
//! [`list`] has the faults with the expected findings. The rules are the model's.

mod list;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use xtask::deadline::{Finished, run_for};
use xtask::workspace::{cargo, image_path};
use xtask::{files, graph};

use crate::machine::{self, archive, granule, items, program};
use crate::peers::Peers;
use list::{FAULTS, Fault};

/// The first process: forks and executes, copies on write, protects, unmaps, loads modules, patches
/// the kernel's code through the fixmap, migrates pages, and leaves for the next kernel if `leave`
/// is set. A DSB of an interrupt or of a context switch may replace a removed one. So a module is
/// loaded nine times, many pages are protected five times, and the benchmark forks often with few
/// pages.
const SCRIPT: &[u8] = b"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
for i in 1 2 3 4 5; do /bin/busybox true; done
/bench 4M 5
/bench 64K 20
echo 1 > /proc/sys/kernel/sched_schedstats
/bin/busybox insmod /module.ko && /bin/busybox rmmod brd
echo 1 > /proc/sys/vm/compact_memory
/bin/busybox sha256sum /bin/busybox | /bin/busybox wc -c
echo 0 > /proc/sys/kernel/sched_schedstats
for i in 1 2 3 4 5 6 7 8; do /bin/busybox insmod /module.ko && /bin/busybox rmmod brd; done
/bin/busybox true
echo watched to the end
[ $leave ] && /leave /next 50000000
/bin/busybox poweroff -f
";
/// The word that makes the first process leave for the next kernel, and the last line of that
/// kernel.
const LEAVE: &str = "leave=1";
const LAST_LINE: &str = "@granule outcome=ok";

/// A module that does work when it is loaded and removed.
const MODULE: &str = "brd";

/// The time limit of the other judge.
const JUDGE_LIMIT: Duration = Duration::from_secs(3600);

/// The machine and the kernel.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) qemu: &'a Path,
    pub(crate) image: &'a Path,
    pub(crate) initrd: &'a Path,
    pub(crate) cpus: u32,
    pub(crate) folder: &'a Path,
}

/// Runs `granule watch --json`. Returns its report, and the console.
pub(crate) fn watch(
    subject: &Subject<'_>,
    name: &str,
    options: &[&str],
    words: &str,
) -> Result<(Value, String)> {
    let console = subject.folder.join(format!("{name}.console"));
    let seconds = machine::LIMIT.as_secs().to_string();
    let mut command = granule(&["watch", "--json", "--timeout", &seconds]);
    command
        .args(options)
        .arg("--")
        .arg(subject.qemu)
        // A CPU without the erratum for which Linux repeats TLBIs: a second TLBI would hide a fault
        // in the first.
        .args(["-machine", "virt,gic-version=3", "-cpu", "cortex-a57"])
        .args(["-m", "512M", "-smp", &subject.cpus.to_string()])
        .args(["-display", "none", "-nodefaults", "-serial"])
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(subject.image)
        .arg("-initrd")
        .arg(subject.initrd)
        .arg("-append")
        // The other judge does not support page-table isolation.
        .arg(format!(
            "console=ttyAMA0 panic=-1 quiet nowatchdog kpti=off {words}"
        ));
    let (report, _) = machine::json(command, 2 * machine::LIMIT)?;
    let console = std::fs::read(&console).unwrap_or_default();
    Ok((report, String::from_utf8_lossy(&console).into_owned()))
}

/// Lists the functions of a finding: that of its place, and those of the conflicting events.
fn names(finding: &Value) -> BTreeSet<String> {
    let conflicts = |step: &&Value| {
        let role = step["role"].as_str();
        role.is_some_and(|role| role.starts_with("conflicts with this"))
    };
    let steps = items(&finding["steps"]).iter().filter(conflicts);
    let places = items(&finding["places"]).iter().chain(steps);
    let names = places.filter_map(|one| Some(one["name"].as_str()?.split_once("+0x")?.0));
    names.map(str::to_owned).collect()
}

/// Describes the finding that shows a fault: it names the fault's rule and function, and the run
/// without the fault does not have it.
fn shows(report: &Value, whole: &Value, fault: &Fault) -> Result<String> {
    let site = |finding: &Value| (finding["rule"].clone(), finding["function"].clone());
    let known: Vec<_> = items(&whole["findings"]).iter().map(site).collect();
    let all = items(&report["findings"]).iter();
    let new: Vec<_> = all.filter(|it| !known.contains(&site(it))).collect();
    ensure!(!new.is_empty(), "nothing is found");
    let Fault(_, _, rules, function) = fault;
    let mut others = BTreeSet::new();
    for finding in new {
        let rule = finding["rule"].as_str().unwrap_or_default();
        let named = names(finding);
        let is_named = named.iter().any(|name| {
            let rest = name.strip_prefix(function);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        if is_named && rules.contains(&rule) {
            let times = finding["count"].as_u64().unwrap_or_default();
            return Ok(format!("{rule}, {times} times, naming {function}"));
        }
        others.extend(named.into_iter().map(|name| format!("{rule} {name}")));
    }
    let others: Vec<_> = others.into_iter().collect();
    bail!("{function} is not named; found: {}", others.join(", "))
}

/// Lists the link addresses of a run's planted instructions.
fn planted(report: &Value) -> Result<String> {
    let all = items(&report["planted"]).iter();
    let addresses: Vec<_> = all.filter_map(|one| one["linked"].as_str()).collect();
    ensure!(!addresses.is_empty(), "nothing was planted");
    Ok(addresses.join(","))
}

/// Runs a test of `granule-cli` that judges recordings, with one more environment variable.
pub(crate) fn judged(
    test: &str,
    traces: &str,
    (name, value): (&str, &str),
    limit: Duration,
) -> Result<Finished> {
    let words = "test --quiet --workspace --test qemu -- --ignored --nocapture";
    let mut command = cargo(&words.split(' ').chain([test]).collect::<Vec<_>>());
    command
        .env("GRANULE_SENSITIVITY_TRACES", traces)
        .env(name, value);
    run_for(command, limit)
}

/// Counts the removals of each fault's instructions from the recording, in the order of the faults:
/// those that matter, and all.
fn mattering(record: &Path, places: &[String]) -> Result<Vec<(u64, u64)>> {
    let places_of = ("GRANULE_SENSITIVITY_PLACES", &*places.join(";"));
    let traces = record.to_str().context("the folder's name is not UTF-8")?;
    let finished = judged("planted_faults_matter", traces, places_of, JUDGE_LIMIT)?;
    let rows = rows(&finished.stdout);
    ensure!(
        rows.len() == places.len(),
        "the other judge reported {} faults, expected {}: {}",
        rows.len(),
        places.len(),
        finished.stderr.lines().last().unwrap_or("no error message")
    );
    Ok(rows)
}

/// Parses the rows `fault N: M of R removals mattered`.
fn rows(text: &str) -> Vec<(u64, u64)> {
    let row = |line: &str| {
        let (_, rest) = line.split_once("fault ")?.1.split_once(": ")?;
        let (mattered, rest) = rest.split_once(" of ")?;
        let removed = rest.strip_suffix(" removals mattered")?;
        Some((mattered.parse().ok()?, removed.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// Plants the faults, and adds a check for each. Returns a row for each fault that is found and
/// matters.
fn all(subject: &Subject<'_>, peers: &Peers<'_>) -> Vec<Value> {
    let record = subject.folder.join("whole.gz");
    let whole = match without(subject, &record) {
        Ok(whole) => whole,
        Err(error) => {
            peers.add("planted faults: the kernel without one", Err(error));
            return Vec::new();
        }
    };
    let done = graph::map(FAULTS.len(), |at| {
        // KASLR places the kernel at another address each time.
        let plant = ["--plant", FAULTS[at].1];
        let (report, _) = watch(subject, &format!("fault-{at}"), &plant, LEAVE)?;
        anyhow::Ok((shows(&report, &whole, &FAULTS[at])?, planted(&report)?))
    });
    let found = done.iter().flatten();
    let places: Vec<String> = found.map(|(_, places)| places.clone()).collect();
    // Faults that were not found are reported below.
    let judged = if places.is_empty() {
        Ok(Vec::new())
    } else {
        mattering(&record, &places)
    };
    let judged = judged.unwrap_or_else(|error| {
        peers.add("planted faults: the other judge", Err(error));
        Vec::new()
    });
    let mut mattering = judged.into_iter();
    let mut rows = Vec::new();
    for (Fault(what, plant, ..), result) in FAULTS.iter().zip(done) {
        let result = result.and_then(|(found, _)| {
            let (mattered, removed) = mattering.next().context("no other judge looked at it")?;
            ensure!(
                mattered > 0,
                "{found}; but none of {removed} removals matters"
            );
            let matter = format!("{mattered} of {removed}");
            let line = format!("{found}; {matter} removals matter");
            rows.push(json!({ "what": what, "plant": plant, "found": found, "matter": matter }));
            Ok(line)
        });
        peers.add(format!("planted fault, {what}"), result);
    }
    rows
}

/// The kernel in which faults are planted, by its place in `LINUXES`.
const PLANTED_IN: usize = 1;

/// Makes the initramfs for the kernel at this place of `LINUXES`, with the benchmark of user
/// memory, and the program that loads the next kernel and leaves for it.
pub(crate) fn initrd(peers: &Peers<'_>, at: usize) -> Result<PathBuf> {
    let modules = peers.modules(at, &[MODULE])?;
    let module = modules.first();
    let (_, module) = module.with_context(|| format!("the kernel has no module {MODULE}"))?;
    let archive = archive(&peers.busybox, "/bin /proc /sys", "")
        .program("/bench", &program("granule-user-bench")?)
        .program("/leave", &program("granule-user-leave")?)
        .file("/next", &files::read(&image_path())?)
        .file("/module.ko", module)
        .program("/init", SCRIPT);
    peers.files.initramfs(&format!("faults-{at}.cpio"), archive)
}

/// Plants the faults, and keeps a row for each fault that is found and matters.
pub(crate) fn run(peers: &Peers<'_>) -> Result<()> {
    let subject = Subject {
        qemu: &peers.qemu(0)?,
        image: &peers.linux(PLANTED_IN)?.image,
        initrd: &initrd(peers, PLANTED_IN)?,
        cpus: 1,
        folder: &peers.files.folder("faults")?,
    };
    peers.summary.keep("faults", all(&subject, peers))
}

/// Records the run without a fault.
fn without(subject: &Subject<'_>, record: &Path) -> Result<Value> {
    let record = record.to_str().context("the folder's name is not UTF-8")?;
    let (report, console) = watch(
        subject,
        "whole",
        &["--record", record],
        &format!("nokaslr {LEAVE}"),
    )?;
    ensure!(
        report["complete"] == true && console.contains(LAST_LINE),
        "it was not seen to its end: {}",
        report["unchecked"]
    );
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::list::STALE;
    use super::*;

    #[test]
    fn a_fault_is_shown_by_a_new_finding_that_names_its_function() {
        let known = json!({"rule": "RWHZWS", "function": "map_range", "places": []});
        let whole = json!({ "findings": [known] });
        let with = |finding: Value| json!({ "findings": [known, finding] });
        let one = Fault("", "f:tlbi", STALE, "copy_page_range");
        let found = with(json!({
            "rule": "stale-translation", "function": "ret_to_user", "count": 3,
            "places": [{"address": "0x10", "name": "ret_to_user+0x10"}],
            "steps": [
                {"name": "f+0x4", "role": "earlier store"},
                {"name": "copy_page_range.isra.0+0x40", "role": "conflicts with this"},
            ],
        }));
        let shown = shows(&found, &whole, &one).unwrap();
        assert_eq!(shown, "stale-translation, 3 times, naming copy_page_range");
        for (other, part) in [
            (whole.clone(), "nothing is found"),
            (
                with(
                    json!({"rule": "stale-translation", "function": "f", "places": [{"name": "f+0x4"}]}),
                ),
                "found: stale-translation f",
            ),
            (
                with(json!({"rule": "RJQQTC", "places": [{"name": "copy_pte_range+0x4"}]})),
                "copy_page_range is not named",
            ),
        ] {
            let error = shows(&other, &whole, &one).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn rows_are_read_and_a_run_without_planted_faults_is_refused() {
        assert!(planted(&json!({"planted": []})).is_err());
        let report = json!({"planted": [{"linked": "0x10"}, {"linked": "0x20"}]});
        assert_eq!(planted(&report).unwrap(), "0x10,0x20");
        let text = "running 1 test\nfault 0: 3 of 40 removals mattered\nfault 1: 0 of 0 removals mattered\n";
        assert_eq!(rows(text), [(3, 40), (0, 0)]);
        assert!(rows("test result: ok").is_empty());
    }
}
