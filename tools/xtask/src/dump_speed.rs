//! `cargo xtask dump-speed`: the time and the memory that `granule dump` takes for 64 GiB in 4K pages.
//!
//! The time is that of the CPU beside the elapsed one: `granule dump` is one thread, so on an idle machine both
//! are the same, and a busy one changes only the latter. The map is in a sparse raw file of 64 GiB, of which
//! only the tables are written: once with all pages alike, which is one range, and once with neighbours that
//! differ, which is a range for each page and the longest list there can be. The list goes nowhere, so that no
//! disk is timed; it is read once, untimed, and its lines are counted. Nothing fails by being slow: no test may
//! depend on a time.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::results::cpu_of_children;
use xtask::workspace::build_executable;

#[derive(Debug, Args)]
pub(crate) struct DumpSpeedOptions {
    /// Timed runs of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

const PAGE: u64 = 4096;
const ENTRIES: u64 = PAGE / 8;
const MAPPED: u64 = 64 << 30;
const LEAVES: u64 = MAPPED / PAGE;
/// Where the memory begins, with the root table.
const BASE: u64 = 0x4000_0000;
/// TCR_EL1: no TTBR0; 39 bits and 4K pages in TTBR1, so the root is of level 1; 40 bits of output.
const TCR: u64 = 1 << 7 | 25 << 16 | 0b10 << 30 | 0b010 << 32;
/// Index 0 is Normal write-back.
const MAIR: u64 = 0xff;
/// Valid, accessed, inner shareable, never executable; and read-only.
const PAGE_BITS: u64 = 0x60_0000_0000_0703;
const READ_ONLY: u64 = 1 << 7;
const TABLE: u64 = 0b11;
/// The lines of a list that are not ranges: the heading, what is mapped by what, tables, TLB
/// entries.
const OTHER_LINES: u64 = 5;

/// The pages alike, or each other than the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Map {
    Alike,
    Apart,
}

impl Map {
    const fn ranges(self) -> u64 {
        match self {
            Self::Alike => 1,
            Self::Apart => LEAVES,
        }
    }
}

pub(crate) fn measure(options: &DumpSpeedOptions) -> Result<()> {
    let granule = build_executable(&["--release", "-p", "granule-cli", "--bin", "granule"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("memory");
    println!(
        "`granule dump` of {LEAVES} leaves of 4K, a raw file, the least of {} runs",
        options.rounds
    );
    println!("pages  output    ranges  CPU seconds  elapsed  peak resident MiB");
    for map in [Map::Alike, Map::Apart] {
        write(&file, map).with_context(|| format!("cannot write {}", file.display()))?;
        let lines = lines(command(&granule, &file, false))?;
        ensure!(
            lines == map.ranges() + OTHER_LINES,
            "{map:?}: the list has {lines} lines, expected {} ranges and {OTHER_LINES} lines",
            map.ranges()
        );
        for json in [false, true] {
            let runs = (0..options.rounds).map(|_| timed(command(&granule, &file, json)));
            let runs = runs.collect::<Result<Vec<Cost>>>()?;
            let least = |of: fn(&Cost) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
            let memory = runs.iter().map(|run| run.peak_kib).max().unwrap_or(0);
            println!(
                "{:5}  {:6}  {:8}  {:11.2}  {:7.2}  {:17.1}",
                if map == Map::Alike { "alike" } else { "apart" },
                if json { "JSON" } else { "words" },
                map.ranges(),
                least(|run| run.cpu),
                least(|run| run.elapsed),
                memory as f64 / 1024.0
            );
        }
    }
    Ok(())
}

/// Writes the tables: the root, those of level 2, those of level 3.
fn write(path: &Path, map: Map) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let last_tables = LEAVES / ENTRIES;
    let middle_tables = last_tables / ENTRIES;
    let mut entry = |word: u64| file.write_all(&word.to_le_bytes());
    for index in 0..ENTRIES {
        let table = BASE + (1 + index) * PAGE;
        entry(if index < middle_tables {
            table | TABLE
        } else {
            0
        })?;
    }
    for index in 0..last_tables {
        entry((BASE + (1 + middle_tables + index) * PAGE) | TABLE)?;
    }
    for page in 0..LEAVES {
        let read_only = if map == Map::Apart && page % 2 == 1 {
            READ_ONLY
        } else {
            0
        };
        entry((BASE + page * PAGE) | PAGE_BITS | read_only)?;
    }
    // The rest of the memory is a hole.
    file.into_inner()?.set_len(MAPPED)
}

fn command(granule: &Path, file: &Path, json: bool) -> Command {
    let mut command = Command::new(granule);
    command.arg("dump").arg(file).stdin(Stdio::null());
    for (option, value) in [
        ("--base", BASE),
        ("--ttbr1", BASE),
        ("--tcr", TCR),
        ("--mair", MAIR),
    ] {
        command.arg(option).arg(format!("{value:#x}"));
    }
    if json {
        command.arg("--json");
    }
    command
}

/// The number of lines that the command prints.
fn lines(mut command: Command) -> Result<u64> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().context("it has no output")?;
    let (mut buffer, mut lines) = (vec![0; 1 << 20], 0);
    loop {
        let read = out.read(&mut buffer)?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
    }
    let status = child.wait()?;
    ensure!(status.success(), "granule dump failed ({status})");
    Ok(lines)
}

/// The resources of a command: seconds, and resident memory as Linux counts it.
struct Cost {
    cpu: f64,
    elapsed: f64,
    peak_kib: u64,
}

fn timed(mut command: Command) -> Result<Cost> {
    let (start, before) = (Instant::now(), cpu_of_children());
    let mut child = command.stdout(Stdio::null()).spawn()?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let ended = loop {
        let text = std::fs::read_to_string(&status).ok();
        if let Some(kib) = text.and_then(|text| read_peak(&text)) {
            peak_kib = peak_kib.max(kib);
        }
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let elapsed = start.elapsed().as_secs_f64();
    ensure!(ended.success(), "granule dump failed ({ended})");
    ensure!(peak_kib > 0, "{status} has no VmHWM; this needs Linux");
    Ok(Cost {
        cpu: (cpu_of_children() - before).as_secs_f64(),
        elapsed,
        peak_kib,
    })
}

fn read_peak(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
