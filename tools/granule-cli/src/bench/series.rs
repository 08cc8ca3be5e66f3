//! The skeleton of every benchmark that boots: a series of boots, one for each [`Cell`](Benchmark::Cell),
//! of which finished ones are kept, and one that measured something else than was requested is refused.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tempfile::NamedTempFile;

use super::args::RunArgs;
use super::progress::Bar;
use crate::boot;
use crate::request::Request;
use crate::result::{Boot, Outcome};

/// The part in which benchmarks differ.
pub trait Benchmark {
    /// One boot to make.
    type Cell: Copy;
    /// The files that [`check`](Self::check) found: boots need them besides the options.
    type Files;
    /// The measurement of one boot, where it is more than the kernel's record.
    type Figures;

    /// The options that all benchmarks have.
    fn run_args(&self) -> &RunArgs;

    /// Every boot, those to compare next to each other.
    fn cells(&self) -> Vec<Self::Cell>;

    /// Checks everything that can be checked before the first boot, and finds every file.
    /// Fails with one line about the first thing that is missing or wrong, with what to do.
    fn check(&self) -> Result<Self::Files, String>;

    /// The cell in words: page size, RAM.
    fn name(cell: &Self::Cell) -> String;

    /// The relative duration of a boot.
    fn weight(&self, cell: &Self::Cell) -> u64;

    /// The part of [`weight`](Self::weight) that is done once the kernel printed this line.
    fn weight_of_line(_line: &str) -> u64 {
        0
    }

    /// The request of a boot, without what [`prepare`](Self::prepare) makes for it.
    fn request(&self, cell: &Self::Cell) -> Request;

    /// Makes what a boot needs besides its request.
    /// Fails with one line when a file cannot be written.
    fn prepare(
        &self,
        _cell: &Self::Cell,
        _files: &mut Self::Files,
        request: Request,
    ) -> Result<Request, String> {
        Ok(request)
    }

    /// Reads the figures of a boot that ended well.
    /// Fails with one line if the boot measured something else than was requested, or not everything.
    fn figures(
        &self,
        cell: &Self::Cell,
        files: &Self::Files,
        boot: &Boot,
    ) -> Result<Self::Figures, String>;

    /// The tables, in Markdown, of everything that was measured.
    fn tables(&self, done: &DoneOf<Self>) -> String;

    /// A line about a boot that is ok, but has not every figure.
    fn remark(_row: &RowOf<Self>) -> Option<String> {
        None
    }

    /// The JSON object.
    fn json(&self, done: &DoneOf<Self>) -> Value;
}

/// A finished boot.
#[derive(Debug)]
pub struct Row<C, F> {
    /// The request.
    pub cell: C,
    pub boot: Boot,
    /// The measurement, if the boot is ok.
    pub figures: Option<F>,
}

/// All finished boots.
#[derive(Debug)]
pub struct Done<C, F> {
    /// In the order of [`Benchmark::cells`].
    pub rows: Vec<Row<C, F>>,
    /// Whether the benchmark was interrupted before the last boot.
    pub interrupted: bool,
}

/// A finished boot of a benchmark.
pub type RowOf<B> = Row<<B as Benchmark>::Cell, <B as Benchmark>::Figures>;
/// All finished boots of a benchmark.
pub type DoneOf<B> = Done<<B as Benchmark>::Cell, <B as Benchmark>::Figures>;

impl<C, F> Done<C, F> {
    /// Whether everything was measured, and every boot was ok.
    pub fn is_ok(&self) -> bool {
        !self.interrupted && self.rows.iter().all(|row| row.boot.is_ok())
    }
}

/// Measures every cell. It stops early, and returns the finished boots, when `interrupt` is true or a
/// boot shows that the request itself is wrong, as it would be for all others.
/// Fails with one line when a file that a boot needs cannot be written.
pub fn run<B: Benchmark>(
    bench: &B,
    files: B::Files,
    bar: &mut Bar,
    interrupt: &AtomicBool,
) -> Result<DoneOf<B>, String> {
    run_by(bench, files, bar, interrupt, |request, console| {
        boot::boot(request, console, interrupt)
    })
}

/// Measures every cell with another way to boot.
/// Fails as [`run`].
pub fn run_by<B: Benchmark>(
    bench: &B,
    mut files: B::Files,
    bar: &mut Bar,
    interrupt: &AtomicBool,
    boot: impl Fn(&Request, &mut dyn io::Write) -> Boot,
) -> Result<DoneOf<B>, String> {
    let cells = bench.cells();
    let mut rows = Vec::new();
    for cell in &cells {
        bar.next(B::name(cell));
        let request = bench.prepare(cell, &mut files, bench.request(cell))?;
        let boot = boot(&request, bar);
        let interrupted = interrupt.load(Ordering::Relaxed);
        if interrupted && !boot.is_ok() {
            // The boot was cut short: its counts are not a result.
            return Ok(Done { rows, interrupted });
        }
        let row = judged(bench, &files, *cell, boot);
        let stop = row.boot.bad_usage;
        bar.done(bench.weight(cell));
        rows.push(row);
        if interrupted && rows.len() < cells.len() {
            return Ok(Done { rows, interrupted });
        }
        if stop {
            break;
        }
    }
    Ok(Done {
        rows,
        interrupted: false,
    })
}

/// A boot with its figures. A kernel that falls back reports it and boots well, but measures something else
/// than was requested: that is not a result.
pub(super) fn judged<B: Benchmark>(
    bench: &B,
    files: &B::Files,
    cell: B::Cell,
    mut boot: Boot,
) -> RowOf<B> {
    let mut figures = None;
    if boot.is_ok() {
        match bench.figures(&cell, files, &boot) {
            Ok(read) => figures = Some(read),
            Err(reason) => {
                boot.outcome = Outcome::Refused;
                boot.reason = Some(reason);
            }
        }
    }
    Row {
        cell,
        boot,
        figures,
    }
}

/// The tables, and below them a line for each boot that was not ok.
pub fn table<B: Benchmark>(bench: &B, done: &DoneOf<B>) -> String {
    let mut text = bench.tables(done);
    for row in &done.rows {
        let line = if row.boot.is_ok() {
            B::remark(row)
        } else {
            Some(row.boot.last_line())
        };
        if let Some(line) = line {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "granule: {}: {line}", B::name(&row.cell));
        }
    }
    if done.interrupted {
        let (finished, all) = (done.rows.len(), bench.cells().len());
        let _ = writeln!(text, "granule: interrupted after {finished} of {all} boots");
    }
    text
}

/// A temporary file with the initramfs that `write` makes.
pub(super) fn temporary(
    write: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<NamedTempFile, String> {
    NamedTempFile::new()
        .and_then(|file| write(file.path()).map(|()| file))
        .map_err(|error| format!("a temporary file for the initramfs: {error}; set TMPDIR"))
}
