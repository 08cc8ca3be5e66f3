//! One boot on a board, from its start to the end of the kernel's record, which must be as expected
//! by the list. Boards without PSCI cannot be powered off, so the boot ends with the record.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use granule_cli::PageSize;
use granule_cli::sizes::show_size;
use xtask::workspace::show;

use super::list::Board;
use super::npcm845;

/// The time limit of a boot, which takes seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(600);

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

/// The kernel's record: the values of each key.
type Record = BTreeMap<String, Vec<String>>;

/// The record's line of the timer's driver.
const TIMER: &str = "name=arm-timer page_sizes=4k,16k,64k in_use=true";

/// Boots, and returns a line with the number of CPUs.
pub(super) fn boot(
    board: &Board,
    page_size: PageSize,
    qemu: &Path,
    with: &With<'_>,
) -> Result<String> {
    let mut command = Command::new(qemu);
    command.args(["-machine", board.name, "-display", "none"]);
    command.args(["-monitor", "none", "-no-reboot"]);
    command.args(board.options.split(' '));
    command.args(["-serial", "stdio"]);
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
    let record = run(command)?;
    compare(&record, board, page_size)
}

/// Checks that the boot was as expected by the list.
fn compare(record: &Record, board: &Board, page_size: PageSize) -> Result<String> {
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

/// Starts QEMU, and ends it when the record is complete.
fn run(mut command: Command) -> Result<Record> {
    let text = show(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let console = child.stdout.take().context("QEMU has no output")?;
    let (send, receive) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let record = read(&receive);
    // It may have ended by itself.
    let _ = child.kill();
    child.wait().context("QEMU does not end")?;
    drop(receive);
    let _ = reader.join();
    record.with_context(|| format!("`{text}`"))
}

fn read(lines: &mpsc::Receiver<String>) -> Result<Record> {
    let deadline = Instant::now() + PATIENCE;
    let patience = PATIENCE.as_secs();
    let mut record = Record::new();
    let mut last = String::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                anyhow!("no end after {patience} s; the last line was {last:?}")
            }
            RecvTimeoutError::Disconnected => {
                anyhow!("QEMU ended before the record did; the last line was {last:?}")
            }
        })?;
        match line.strip_prefix("@granule ") {
            Some("end") => return Ok(record),
            Some(pair) => {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                let values = record.entry(key.to_owned()).or_default();
                values.push(value.to_owned());
            }
            None if line.is_empty() => {}
            None => last = line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::BOARDS;
    use super::*;

    fn record(lines: &[&str]) -> Result<Record> {
        let (send, receive) = mpsc::channel();
        for line in lines {
            send.send((*line).to_owned()).unwrap();
        }
        drop(send);
        read(&receive)
    }

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
            "@granule end",
        ];
        let judged = |lines: &[&str]| compare(&record(lines)?, &board, PageSize::K4);
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
        assert!(compare(&record(&good).unwrap(), &board, PageSize::K64).is_err());
    }
}
