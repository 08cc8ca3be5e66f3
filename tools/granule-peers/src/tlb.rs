//! `granule bench tlb` with the supported QEMUs: our program, and Debian's busybox on our kernel
//! and on Debian's.
//!
//! The models are granule's. The checks are that figures are produced, and that larger leaves do
//! not miss more.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::boot::require;

use crate::machine::{LIMIT, granule, items, json};
use crate::peers::Peers;
use crate::{emulator, shell, watch};

/// The memory of the replayed program: with the oldest QEMU, and with the newest, for figures.
const REPLAYED: [&str; 2] = ["16M", "64M"];
/// The watched kernel on which Debian's shell is replayed, by its place in `LINUXES`.
const REPLAYED_LINUX: usize = 1;

const MACHINE: &str =
    "-machine virt,gic-version=3 -cpu neoverse-n1 -m 1G -display none -nodefaults -serial null";

/// Models TLB misses. Keeps one object for each workload on the newest QEMU.
pub(crate) fn replays(peers: &Peers<'_>) -> Result<()> {
    let initramfs = |name: &str, archive| peers.files.initramfs(name, archive);
    let shell = initramfs("replayed.cpio", shell::archive(&peers.busybox))?;
    let watched = initramfs("watched.cpio", watch::archive(&peers.busybox))?;
    let mut all = Vec::new();
    for (at, bytes) in REPLAYED.into_iter().enumerate() {
        let is_newest = at == 1;
        let version = emulator::QEMUS[at].version;
        let qemu = match peers.qemu(at) {
            Ok(qemu) => qemu,
            Err(error) => {
                peers.add(format!("TLB, QEMU {version}"), Err(error));
                continue;
            }
        };
        let seconds = LIMIT.as_secs().to_string();
        let bench = || granule(&["bench", "tlb", "--json", "--timeout", &seconds]);
        let mut program = bench();
        program.args(["--bytes", bytes, "--qemu"]).arg(&qemu);
        let name = format!("`granule-user-bench`, {bytes}");
        let mut cases = vec![(name, true, program)];
        if is_newest {
            let mut on_ours = bench();
            on_ours.arg("--qemu").arg(&qemu);
            on_ours.arg("--initrd").arg(&shell);
            cases.push(("busybox".to_owned(), false, on_ours));
        }
        if let (true, Ok(linux)) = (is_newest, peers.linux(REPLAYED_LINUX)) {
            let mut on_linux = bench();
            on_linux.arg("--").arg(&qemu).args(MACHINE.split(' '));
            on_linux.arg("-kernel").arg(&linux.image);
            on_linux.arg("-initrd").arg(&watched);
            // The models assume that all processes share the kernel's addresses, so page-table
            // isolation is off.
            on_linux.args(["-append", "panic=-1 quiet kpti=off"]);
            cases.push((format!("busybox on {}", linux.name), false, on_linux));
        }
        for (name, is_program, command) in cases {
            let result = run(command, &name).and_then(|report| {
                let line = judge(&report, is_program)?;
                if is_newest {
                    all.push(report);
                }
                Ok(line)
            });
            peers.add(format!("TLB, QEMU {version}, {name}"), result);
        }
    }
    peers.summary.keep("tlb", all)
}

/// Replays a workload. `name` replaces the workload in granule's object, so that documents have no
/// paths of this machine.
fn run(command: Command, name: &str) -> Result<Value> {
    let (mut report, finished) = json(command, 2 * LIMIT)?;
    ensure!(
        finished.status.is_some_and(|status| status.success()),
        "the exit code is not 0: {}",
        report["outcome"]
    );
    report["workload"] = name.into();
    Ok(report)
}

/// Checks that a replay covered the whole workload, and that larger leaves do not miss more. Larger
/// leaves are known to help only a program that goes through its memory.
fn judge(report: &Value, goes_through_memory: bool) -> Result<String> {
    let instructions = report["instructions"].as_u64().unwrap_or_default();
    ensure!(instructions > 1_000_000, "{instructions} instructions only");
    require(
        report,
        [
            ("outcome", "ended".into()),
            ("modelled", true.into()),
            ("unseen_accesses", false.into()),
            ("guest_page_size", 4096.into()),
        ],
    )?;
    let misses = |map: &str, page_size: u64| {
        let found = items(&report["rows"]).iter().find(|row| {
            row["cpu"] == "cortex-a76" && row["map"] == map && row["page_size"] == page_size
        });
        let misses = found.and_then(|row| row["misses"].as_u64());
        misses.with_context(|| format!("there is no row of {map}, {page_size}"))
    };
    let pages = misses("pages", 4096)?;
    // The guest's own leaves are between pages and blocks.
    let (guest, blocks) = (misses("guest", 4096)?, misses("blocks", 4096)?);
    ensure!(pages > 0, "no page was ever missed");
    if goes_through_memory {
        ensure!(
            report["larger_missed_more"].is_null(),
            "larger leaves missed more: {}",
            report["larger_missed_more"]
        );
        ensure!(
            (blocks..=pages).contains(&guest),
            "{guest} misses with the guest's own leaves, {pages} with pages, {blocks} with blocks"
        );
        for map in ["contiguous", "linear-blocks", "blocks"] {
            let fewer = misses(map, 4096)?;
            ensure!(
                fewer * 5 < pages * 4,
                "{fewer} misses with {map}, {pages} with pages"
            );
        }
        let larger = misses("pages", 65536)?;
        ensure!(
            larger * 2 < pages,
            "{larger} misses with 64K pages, {pages} with 4K"
        );
    }
    Ok(format!(
        "{instructions} instructions, modelled misses of a Cortex-A76: {pages} with 4K pages, {blocks} with blocks"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtask::boot::{changed, unjudged};

    fn report() -> Value {
        let cpu = "cortex-a76";
        let row = |size: u64, map: &str, misses: u64| json!({"cpu": cpu, "page_size": size, "map": map, "misses": misses});
        json!({
            "instructions": 2_000_000, "outcome": "ended", "modelled": true,
            "unseen_accesses": false, "guest_page_size": 4096, "larger_missed_more": null,
            "rows": [
                row(4096, "pages", 1000), row(4096, "contiguous", 200),
                row(4096, "linear-blocks", 700), row(4096, "blocks", 100),
                row(4096, "guest", 800), row(65536, "pages", 200),
            ],
        })
    }

    #[test]
    fn an_implausible_replay_is_refused() {
        judge(&report(), true).unwrap();
        let unjudged_by = |all| unjudged(&report(), |report| judge(report, all).is_ok());
        assert_eq!(unjudged_by(true), ["/larger_missed_more"]);
        for (pointer, value, part) in [
            ("/instructions", json!(7), "instructions only"),
            ("/outcome", json!("died"), "outcome is"),
            ("/rows/0/misses", json!(0), "ever missed"),
            ("/rows", json!([]), "no row"),
        ] {
            for goes_through_memory in [false, true] {
                let broken = changed(&report(), pointer, value.clone());
                let error = judge(&broken, goes_through_memory).unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
        }
        for (pointer, value, part) in [
            ("/larger_missed_more", json!("x"), "larger leaves"),
            ("/rows/1/misses", json!(800), "with contiguous"),
            ("/rows/4/misses", json!(1001), "own leaves"),
            ("/rows/5/misses", json!(500), "64K pages"),
        ] {
            let broken = changed(&report(), pointer, value);
            judge(&broken, false).unwrap();
            let error = judge(&broken, true).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
