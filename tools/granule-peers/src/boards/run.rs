//! One boot on a board, from its start to the end of the kernel's record, which must be as expected
//! by the list. Boards without PSCI cannot be powered off, so the boot ends with the record.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use granule_cli::PageSize;
use granule_cli::sizes::show_size;
use xtask::machine::Machine;

use super::list::Board;
use super::npcm845;
use crate::machine::LIMIT;

/// The files of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct With<'a> {
    pub(super) image: &'a Path,
    /// The tree, unless QEMU makes one.
    pub(super) tree: Option<&'a Path>,
    /// The code that starts the CPUs, in place of QEMU's.
    pub(super) start: Option<&'a Path>,
    pub(super) initramfs: &'a Path,
}

/// The test of the first program: more children than CPUs never call the kernel, so others run only
/// by the timer.
const TEST: &str = "preempt";

/// The beginning of the record's lines, and of its end.
const MARK: &str = "@granule ";

/// The kernel's record: the values of each key.
type BoardRecord = BTreeMap<String, Vec<String>>;

/// The record's line of the timer's driver.
const TIMER: &str = "name=arm-timer page_sizes=4k,16k,64k in_use=true";

/// Boots, with files in a folder of its own, and returns a line with the number of CPUs.
pub(super) fn boot(
    board: &Board,
    page_size: PageSize,
    qemu: &Path,
    with: &With<'_>,
    folder: &Path,
) -> Result<String> {
    let mut command = Command::new(qemu);
    command.args(["-machine", board.name, "-monitor", "none"]);
    command.args(board.options.split(' '));
    command.arg("-kernel").arg(with.image);
    if let Some(tree) = with.tree {
        command.arg("-dtb").arg(tree);
    }
    if let Some(start) = with.start {
        let file = start.display();
        let at = npcm845::START;
        let code = format!("loader,file={file},addr={at:#x},force-raw=on");
        command.arg("-device").arg(code);
        for cpu in 0..npcm845::CPUS {
            let entry = format!("loader,addr={at:#x},cpu-num={cpu}");
            command.arg("-device").arg(entry);
        }
    }
    let size = show_size(page_size.bytes()).to_ascii_lowercase();
    let words = format!("arm64.pagesize={size} -- {}", TEST);
    command.arg("-initrd").arg(with.initramfs);
    command.args(["-append", &words]);
    let mut machine = Machine::start(command, board.name, folder, LIMIT)?;
    let console = machine.until(&format!("\n{MARK}end"))?;
    compare(&record(&console), board, page_size)
}

/// Checks that the boot was as expected by the list.
fn compare(record: &BoardRecord, board: &Board, page_size: PageSize) -> Result<String> {
    let all = |key: &str| record.get(key).map(Vec::as_slice).unwrap_or_default();
    for (key, wanted) in [
        ("outcome", "ok".to_owned()),
        ("page_size", page_size.bytes().to_string()),
        ("cpus", board.cpus.to_string()),
        ("cpus_expected", board.cpus.to_string()),
        ("user.exit_code", "0".to_owned()),
        ("user.signal", "0".to_owned()),
    ] {
        ensure!(
            all(key) == [wanted.clone()],
            "{key} is {:?}, expected {wanted}: {}",
            all(key),
            all("reason").join("; ")
        );
    }
    ensure!(
        all("driver").iter().any(|it| it == TIMER),
        "no timer ended the time slices: the drivers are {}",
        all("driver").join("; ")
    );
    let missing = all("cpu_mismatch").join("; ");
    ensure!(missing.is_empty(), "CPUs are missing: {missing}");
    let cpus = board.cpus;
    Ok(format!(
        "{cpus} of {cpus} CPUs up, and the first program ended well"
    ))
}

fn record(console: &str) -> BoardRecord {
    let mut record = BoardRecord::new();
    for line in console.lines().map(str::trim_end) {
        if let Some((key, value)) = line.strip_prefix(MARK).and_then(|it| it.split_once('=')) {
            let values = record.entry(key.to_owned()).or_default();
            values.push(value.to_owned());
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::super::list::BOARDS;
    use super::*;

    #[test]
    fn a_boot_must_be_as_expected_by_the_list() {
        let board = Board {
            cpus: 2,
            ..BOARDS[0]
        };
        let good = [
            "granule 1",
            "@granule page_size=4096",
            "@granule cpus=2",
            "@granule cpus_expected=2",
            "@granule driver=name=arm-timer page_sizes=4k,16k,64k in_use=true",
            "@granule user.exit_code=0",
            "@granule user.signal=0",
            "@granule outcome=ok",
        ];
        let judged = |lines: &[&str]| compare(&record(&lines.join("\r\n")), &board, PageSize::K4);
        let line = judged(&good).unwrap();
        assert!(line.starts_with("2 of 2 CPUs up, "), "{line}");
        for at in 1..good.len() {
            let mut less = good.to_vec();
            less.remove(at);
            let error = format!("{:#}", judged(&less).unwrap_err());
            assert!(!error.contains('\n'), "{error}");
        }
        let other = [&["@granule cpu_mismatch=CPU 1 is broken"], &good[..]].concat();
        assert!(judged(&other).unwrap_err().to_string().contains("broken"));
        assert!(compare(&record(&good.join("\n")), &board, PageSize::K64).is_err());
    }
}
