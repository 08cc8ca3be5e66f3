//! `granule bench permissions`: one boot for each page size, in which the kernel changes its linear
//! map and reports the cost.
//!
//! The kernel's part is its `memory/selftest/bench.rs`. [`run`] boots, [`report`] prints.

pub mod report;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;

use super::progress;
use crate::boot;
use crate::image::Image;
use crate::request::{PageSize, Request, Rodata};
use crate::result::{Boot, Outcome};

/// The benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bench {
    /// Page sizes, one boot each.
    pub page_size: Vec<PageSize>,
    /// Bytes of RAM.
    pub memory: u64,
    /// Random changes of each size.
    pub changes: u64,
    /// The protection.
    pub rodata: Rodata,
    /// QEMU's text for the CPU.
    pub cpu: String,
    /// The QEMU to run.
    pub qemu: PathBuf,
    /// The kernel image; `None` looks for it as `granule boot` does.
    pub image: Option<PathBuf>,
    /// The time limit of one boot.
    pub timeout: Duration,
}

/// The kernel's names for the sizes of changes.
const SIZES: [&str; 4] = ["page", "k64", "m2", "g1"];
const KINDS: [&str; 4] = ["single", "single_merge", "random", "random_merge"];

/// The figures that the kernel reports for each.
const FIGURES: [&str; 8] = [
    "leaves_split",
    "tables",
    "stores",
    "tlbi",
    "dsb",
    "isb",
    "instructions",
    "locks",
];

/// The result of one boot.
#[derive(Debug)]
pub struct Measured {
    /// The requested page size.
    pub page_size: PageSize,
    /// The boot.
    pub boot: Boot,
}

/// One line of the results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The page size.
    pub page_size: u64,
    /// The bytes of each change.
    pub bytes: u64,
    /// The kind of changes: `single`, `random`, or one of them with `-merge`.
    pub kind: String,
    /// The figures, in the order of their names.
    pub figures: [u64; FIGURES.len()],
}

impl Row {
    /// A figure by its name in JSON.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<u64> {
        let place = FIGURES.iter().position(|figure| *figure == name)?;
        Some(self.figures[place])
    }
}

impl Measured {
    fn number(&self, path: &str) -> Option<u64> {
        self.boot
            .record
            .get(&format!("bench.{path}"))
            .and_then(Value::as_u64)
    }

    /// The figures that the kernel reported; missing ones have no row.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let of = |size: &&str, kind: &str| {
            let figure = |name| self.number(&format!("{size}.{kind}.{name}"));
            let mut figures = [0; FIGURES.len()];
            for (figure_of, name) in figures.iter_mut().zip(FIGURES) {
                *figure_of = figure(name)?;
            }
            Some(Row {
                page_size: self.page_size.bytes(),
                bytes: self.number(&format!("{size}.bytes"))?,
                kind: kind.replace('_', "-"),
                figures,
            })
        };
        let rows = SIZES
            .iter()
            .flat_map(|size| KINDS.iter().filter_map(move |kind| of(size, kind)));
        rows.collect()
    }

    /// Why a boot that ended well is no result: it measured something else, or not everything.
    fn other_than_asked(&self, bench: &Bench) -> Option<String> {
        let told = self.boot.record.get("page_size").and_then(Value::as_u64);
        if told != Some(self.page_size.bytes()) {
            return Some(format!(
                "page_size: {} was asked for, the kernel took {told:?}",
                self.page_size.bytes()
            ));
        }
        let changes = self.number("changes");
        if changes != Some(bench.changes) {
            return Some(format!(
                "{} random changes were asked for, the kernel made {changes:?}",
                bench.changes
            ));
        }
        let sizes = SIZES
            .iter()
            .filter(|size| self.number(&format!("{size}.bytes")).is_some());
        let (expected, rows) = (sizes.count() * KINDS.len(), self.rows().len());
        (rows == 0 || rows != expected)
            .then(|| format!("the kernel's record has {rows} rows, expected {expected}"))
    }
}

/// All finished boots.
#[derive(Debug)]
pub struct Done {
    /// In the order of the page sizes.
    pub boots: Vec<Measured>,
    /// Whether the benchmark was interrupted before the last boot.
    pub interrupted: bool,
}

impl Done {
    /// Whether every page size was measured, and every boot was ok.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.interrupted && self.boots.iter().all(|measured| measured.boot.is_ok())
    }

    /// Every row.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.boots.iter().flat_map(Measured::rows).collect()
    }
}

impl Bench {
    /// Checks everything that can be checked before the first boot.
    ///
    /// # Errors
    ///
    /// One line about the first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.changes == 0 {
            return Err("--changes 0: there is nothing to measure; take at least 1".into());
        }
        for &page_size in &self.page_size {
            self.request(page_size).check()?;
        }
        Image::open(self.image.as_deref())
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    fn request(&self, page_size: PageSize) -> Request {
        Request {
            image: self.image.clone(),
            page_size: Some(page_size),
            memory: self.memory,
            cpu: self.cpu.clone(),
            rodata: Some(self.rodata),
            qemu: self.qemu.clone(),
            icount: true,
            timeout: self.timeout,
            // Merging happens only when a change asks for it.
            append: Some(format!(
                "granule.merge=off granule.bench=permissions:{}",
                self.changes
            )),
            ..Request::default()
        }
    }
}

/// A progress bar on standard error that follows the console; hidden if standard error is no
/// terminal.
#[derive(Debug)]
pub struct Listener {
    bar: ProgressBar,
    line: Vec<u8>,
}

impl Listener {
    /// A bar for all of `bench`.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        Self {
            bar: progress::bar((bench.page_size.len() * SIZES.len()) as u64),
            line: Vec::new(),
        }
    }

    fn begin(&self, page_size: PageSize, place: usize) {
        self.bar.set_position((place * SIZES.len()) as u64);
        self.bar.set_message(format!("{} pages", page_size.word()));
    }
}

impl Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            if byte == b'\n' {
                // The last line that the kernel prints for a size.
                let line = std::mem::take(&mut self.line);
                let text = String::from_utf8_lossy(&line);
                if text.starts_with("@granule bench.") && text.contains(".random_merge.locks=") {
                    self.bar.inc(1);
                }
            } else if self.line.len() < 256 {
                self.line.push(byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The following table needs the line.
        self.bar.finish_and_clear();
    }
}

/// Measures every page size. It stops early, and returns the finished boots, when `interrupt` is
/// true or a boot shows that the request itself is wrong.
pub fn run(bench: &Bench, listener: &mut Listener, interrupt: &AtomicBool) -> Done {
    let mut boots = Vec::new();
    for (place, &page_size) in bench.page_size.iter().enumerate() {
        listener.begin(page_size, place);
        let boot = boot::boot(&bench.request(page_size), listener, interrupt);
        if interrupt.load(Ordering::Relaxed) {
            // The boot was cut short: its counts are no result.
            return Done {
                boots,
                interrupted: true,
            };
        }
        let mut measured = Measured { page_size, boot };
        if measured.boot.is_ok()
            && let Some(other) = measured.other_than_asked(bench)
        {
            measured.boot.outcome = Outcome::Refused;
            measured.boot.reason = Some(other);
        }
        let stop = measured.boot.bad_usage;
        boots.push(measured);
        if stop {
            break;
        }
    }
    Done {
        boots,
        interrupted: false,
    }
}
