//! How much `granule check` notices in recordings of Debian's kernels of three generations: TLBIs and DSBs are
//! left out one by one, and another judge says which matter.
//!
//! The removals and both judges are a test of `granule-cli`; here the recordings are made, which that test
//! cannot do without.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use granule_cli::PageSize;
use serde_json::{Value, json};
use xtask::workspace::{cargo, target_dir};

use crate::check::Check;
use crate::emulator;
use crate::faults::{self, Subject};
use crate::machine::{Files, Kernel};
use crate::peers::Peers;
use xtask::deadline::run_for;

/// Removals of each kind from each recording.
const REMOVALS: &str = "100";
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// The recordings that are measured: a kernel with 4K pages of each suite.
const RECORDINGS: usize = 3;

/// The part: records each kernel with 4K pages, and measures what is noticed in all recordings.
pub(crate) fn run(
    peers: &Peers<'_>,
    files: &Files,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<Vec<Value>> {
    let qemu = emulator::qemu(&emulator::QEMUS[1], &target_dir().join("peers"), fresh)?;
    let folder = files.folder("sensitivity")?;
    let kernels = peers.linuxes.iter().enumerate();
    let kernels = kernels.filter(|(_, (_, page_size))| *page_size == PageSize::K4);
    let mut recordings = Vec::new();
    for (number, (kernel, _)) in kernels {
        let Kernel::Linux { image, name } = kernel else {
            continue;
        };
        let subject = Subject {
            qemu: &qemu,
            image,
            initrd: &faults::initrd(peers, number, files)?,
            cpus: 2,
            folder: &folder,
        };
        let recorded = record(&subject, &format!("recording-{number}"));
        let done = recorded.map(|path| recordings.push(path));
        let name = format!("recording of {name}");
        add(Check::new(name, done.map(|()| "to its end".to_owned())));
    }
    let mut rows = Vec::new();
    let measured = if recordings.len() == RECORDINGS {
        measure(&recordings).map(|(all, said)| {
            rows = all;
            said
        })
    } else {
        Err(anyhow!(
            "there are {} recordings, and {RECORDINGS} are needed",
            recordings.len()
        ))
    };
    let name = "what is noticed in recordings".to_owned();
    add(Check::new(name, measured));
    Ok(rows)
}

/// Records a kernel.
fn record(subject: &Subject<'_>, name: &str) -> Result<PathBuf> {
    let path = subject.folder.join(format!("{name}.gz"));
    let file = path.to_str().context("the folder's name is not UTF-8")?;
    let (told, _) = faults::watch(subject, name, &["--no-check", "--record", file], "")?;
    ensure!(
        told["outcome"] == "ended" && told["recorded"].as_u64().is_some_and(|events| events > 0),
        "it was not recorded to its end: {}",
        told["unchecked"]
    );
    Ok(path)
}

/// Leaves events out of the recordings: a row for each kind, and the line that says whether enough was noticed.
fn measure(recordings: &[PathBuf]) -> Result<(Vec<Value>, String)> {
    let files: Option<Vec<&str>> = recordings.iter().map(|path| path.to_str()).collect();
    let files = files.context("the folder's name is not UTF-8")?;
    let mut command = cargo(&[
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "qemu",
        "--",
        "--ignored",
        "--nocapture",
        "mattering_removals_from_recordings_of_linux_are_noticed",
    ]);
    command
        .env("GRANULE_SENSITIVITY_TRACES", files.join(","))
        .env("GRANULE_SENSITIVITY_REMOVALS", REMOVALS);
    let finished = run_for(command, LIMIT)?;
    let rows = rows(&finished.stdout);
    let why = finished.stderr.lines().find(|line| !line.trim().is_empty());
    ensure!(
        finished.status.is_some_and(|status| status.success()) && !rows.is_empty(),
        "the test failed: {}",
        why.unwrap_or("it said nothing")
    );
    let of = |family: &str, key: &str| -> u64 {
        let rows = rows.iter();
        let rows = rows.filter(|row| {
            row["kind"]
                .as_str()
                .is_some_and(|it| it.starts_with(family))
        });
        rows.filter_map(|row| row[key].as_u64()).sum()
    };
    let said = ["tlbi", "dsb"].map(|family| {
        let (noticed, mattered) = (of(family, "noticed"), of(family, "mattered"));
        format!("{noticed} of {mattered} {family} that matter are noticed")
    });
    Ok((rows, said.join(", ")))
}

/// The rows of the test's table.
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
