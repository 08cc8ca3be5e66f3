//! Measures how many removed events `granule check` notices in recordings of three generations of
//! Debian's kernels: TLBIs and DSBs are removed one by one, and another judge decides which matter.
//!
//! The removals and both judges are a test of `granule-cli`; this file makes the recordings for it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use granule_cli::PageSize;
use serde_json::{Value, json};

use crate::faults::{self, Subject};
use crate::peers::Peers;

/// The number of removals of each kind from each recording.
const REMOVALS: &str = "100";
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// The number of recordings: of the kernel with 4K pages of each suite.
const RECORDINGS: usize = 3;

/// Records each kernel with 4K pages, and measures how many removals are noticed.
pub(crate) fn run(peers: &Peers<'_>) -> Result<()> {
    let qemu = peers.qemu(1)?;
    let folder = peers.files.folder("sensitivity")?;
    let kernels = peers.linuxes.iter().enumerate();
    let mut recordings = Vec::new();
    for (number, kernel) in kernels.filter(|(_, kernel)| kernel.page_size == PageSize::K4) {
        let subject = Subject {
            qemu: &qemu,
            image: &kernel.image,
            initrd: &faults::initrd(peers, number)?,
            cpus: 2,
            folder: &folder,
        };
        let recorded = record(&subject, &format!("recording-{number}"));
        let done = recorded.map(|path| recordings.push(path));
        let name = format!("recording of {}", kernel.name);
        peers.add(name, done.map(|()| "to its end".to_owned()));
    }
    let measured = measure(&recordings).and_then(|(rows, line)| {
        peers.summary.keep("sensitivity", rows)?;
        Ok(line)
    });
    peers.add("removals noticed in recordings", measured);
    Ok(())
}

fn record(subject: &Subject<'_>, name: &str) -> Result<PathBuf> {
    let path = subject.folder.join(format!("{name}.gz"));
    let file = path.to_str().context("the folder's name is not UTF-8")?;
    let (report, _) = faults::watch(subject, name, &["--no-check", "--record", file], "")?;
    ensure!(
        report["outcome"] == "ended"
            && report["recorded"].as_u64().is_some_and(|events| events > 0),
        "it was not recorded to its end: {}",
        report["unchecked"]
    );
    Ok(path)
}

/// Removes events from the recordings. Returns a row for each kind, and a summary line.
fn measure(recordings: &[PathBuf]) -> Result<(Vec<Value>, String)> {
    let count = recordings.len();
    if count != RECORDINGS {
        bail!("there are {count} recordings, and {RECORDINGS} are needed");
    }
    let files: Option<Vec<&str>> = recordings.iter().map(|path| path.to_str()).collect();
    let files = files.context("the folder's name is not UTF-8")?;
    let test = "mattering_removals_from_recordings_of_linux_are_noticed";
    let (traces, removals) = (files.join(","), ("GRANULE_SENSITIVITY_REMOVALS", REMOVALS));
    let finished = faults::judged(test, &traces, removals, LIMIT)?;
    let rows = rows(&finished.stdout);
    let why = finished.stderr.lines().find(|line| !line.trim().is_empty());
    ensure!(
        finished.status.is_some_and(|status| status.success()) && !rows.is_empty(),
        "the test failed: {}",
        why.unwrap_or("no error message")
    );
    let of = |family: &str, key: &str| -> u64 {
        let kind = |row: &Value| row["kind"].as_str().unwrap_or_default().to_owned();
        let rows = rows.iter().filter(|row| kind(row).starts_with(family));
        rows.filter_map(|row| row[key].as_u64()).sum()
    };
    let sums = ["tlbi", "dsb"].map(|family| {
        let (noticed, mattered) = (of(family, "noticed"), of(family, "mattered"));
        format!("{noticed} of {mattered} {family} that matter are noticed")
    });
    Ok((rows, sums.join(", ")))
}

/// Parses the rows of the test's table.
fn rows(text: &str) -> Vec<Value> {
    let row = |line: &str| {
        let (kind, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        let numbers = rest.split('|').map(|word| word.trim().parse::<u64>());
        let numbers: Vec<u64> = numbers.filter_map(Result::ok).collect();
        let [removed, mattered, noticed, harmless] = numbers.try_into().ok()?;
        Some(json!({
            "kind": kind,
            "removed": removed,
            "mattered": mattered,
            "noticed": noticed,
            "harmless": harmless,
        }))
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let text = "| event left out | removals | mattered | a | b |\n| --- | --- | --- | --- | --- |\n\
                    | `dsb after a TLBI` | 237 | 208 | 200 | 9 |\n";
        let rows = rows(text);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (&rows[0]["kind"], &rows[0]["noticed"]),
            (&json!("dsb after a TLBI"), &json!(200))
        );
    }
}
