//! The benchmark of building the linear map: every strategy, with every page size, memory and
//! protection.
//!
//! [`Bench`] is the request, [`run`] makes all its boots and keeps finished ones even after a
//! failure; [`report`] turns the rows into a table and into JSON.

pub mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::progress::Bar;
use crate::boot;
use crate::image::Image;
use crate::request::{Barriers, LinearMap, PageSize, Request, Rodata};
use crate::result::{Boot, Outcome};
use crate::sizes::show_size;

/// A strategy for building the map, with its barriers where they are not the strategy's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The strategy.
    pub strategy: LinearMap,
    /// The barriers to ask for.
    pub barriers: Option<Barriers>,
}

impl Form {
    /// The barriers in effect.
    #[must_use]
    pub fn barriers(self) -> &'static str {
        match self.barriers {
            Some(barriers) => barriers.word(),
            None => self.strategy.strategy().barriers().name(),
        }
    }
}

/// The benchmark: every combination of the lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bench {
    /// Bytes of RAM.
    pub memory: Vec<u64>,
    /// Page sizes.
    pub page_size: Vec<PageSize>,
    /// Protections.
    pub rodata: Vec<Rodata>,
    /// Strategies for building the map.
    pub forms: Vec<Form>,
    /// QEMU's text for the CPU.
    pub cpu: String,
    /// The VA size to ask for.
    pub va_bits: Option<u8>,
    /// The QEMU to run.
    pub qemu: PathBuf,
    /// The kernel image; `None` looks for it as `granule boot` does.
    pub image: Option<PathBuf>,
    /// The time limit of one boot.
    pub timeout: Duration,
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The page size.
    pub page_size: PageSize,
    /// Bytes of RAM.
    pub memory: u64,
    /// The protection.
    pub rodata: Rodata,
    /// The strategy for building the map.
    pub form: Form,
}

impl Cell {
    /// The relative duration: about the number of instructions.
    #[must_use]
    pub fn weight(&self) -> u64 {
        // A boot by itself takes about as long as a few hundred thousand pages.
        const BOOT: u64 = 1 << 26;
        let each = match (self.rodata, self.form.strategy) {
            (Rodata::Off | Rodata::Noalias, _) => return BOOT,
            (_, LinearMap::Base) => 40,
            (_, LinearMap::Direct) => 2,
            _ => 14,
        };
        // The self-check's work for each leaf.
        const CHECKED: u64 = 40;
        BOOT + self.memory / self.page_size.bytes() * (each + CHECKED)
    }
}

/// The result of one combination.
#[derive(Debug)]
pub struct Row {
    /// The combination.
    pub cell: Cell,
    /// The boot.
    pub boot: Boot,
}

impl Row {
    /// A number of the boot's linear map, such as `tlbi`.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.boot
            .record
            .get(&format!("linear_map.{name}"))
            .and_then(Value::as_u64)
    }
}

/// All finished rows.
#[derive(Debug)]
pub struct Done {
    /// In the order of [`Bench::cells`].
    pub rows: Vec<Row>,
    /// Whether the benchmark was interrupted before the last boot.
    pub interrupted: bool,
}

impl Done {
    /// Whether every combination was measured, and every boot was ok.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.interrupted && self.rows.iter().all(|row| row.boot.is_ok())
    }
}

/// Receives the progress of a benchmark.
pub trait Observer {
    /// A cell is about to be measured.
    fn begin(&mut self, _cell: &Cell) {}
    /// A cell was measured.
    fn end(&mut self, _row: &Row) {}
}

impl Observer for () {}

impl Bench {
    /// Every combination, strategies next to each other.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &page_size in &self.page_size {
            for &rodata in &self.rodata {
                for &memory in &self.memory {
                    cells.extend(self.forms.iter().map(|&form| Cell {
                        page_size,
                        memory,
                        rodata,
                        form,
                    }));
                }
            }
        }
        cells
    }

    /// Checks everything that can be checked before the first boot: each request, and the image.
    ///
    /// # Errors
    ///
    /// One line about the first thing that is wrong.
    pub fn check(&self) -> Result<(), String> {
        for cell in self.cells() {
            self.request(&cell).check()?;
        }
        Image::open(self.image.as_deref())
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    fn request(&self, cell: &Cell) -> Request {
        Request {
            image: self.image.clone(),
            page_size: Some(cell.page_size),
            va_bits: self.va_bits,
            memory: cell.memory,
            cpu: self.cpu.clone(),
            rodata: Some(cell.rodata),
            linear_map: Some(cell.form.strategy),
            linear_map_barriers: cell.form.barriers,
            qemu: self.qemu.clone(),
            icount: true,
            timeout: self.timeout,
            ..Request::default()
        }
    }
}

impl Observer for Bar {
    fn begin(&mut self, cell: &Cell) {
        self.next(format_args!(
            "{} pages, {}, {}",
            cell.page_size.word(),
            show_size(cell.memory),
            cell.form.strategy.word()
        ));
    }

    fn end(&mut self, row: &Row) {
        self.done(row.cell.weight());
    }
}

/// Measures every combination. It stops early, and returns the finished rows, when `interrupt` is
/// true or a boot shows that the request itself is wrong, as it would be for all others.
pub fn run(bench: &Bench, observer: &mut dyn Observer, interrupt: &AtomicBool) -> Done {
    run_by(bench, observer, interrupt, |request| {
        boot::boot(request, &mut std::io::sink(), interrupt)
    })
}

fn run_by(
    bench: &Bench,
    observer: &mut dyn Observer,
    interrupt: &AtomicBool,
    boot: impl Fn(&Request) -> Boot,
) -> Done {
    let mut rows = Vec::new();
    let cells = bench.cells();
    for cell in &cells {
        observer.begin(cell);
        let mut boot = boot(&bench.request(cell));
        let interrupted = interrupt.load(Ordering::Relaxed);
        if interrupted && !boot.is_ok() {
            // The boot was cut short: its counts are no result.
            return Done {
                rows,
                interrupted: true,
            };
        }
        // A kernel that falls back reports it and boots well, but it measured another configuration
        // than the requested one.
        if boot.is_ok()
            && let Some(other) = other_than_asked(bench, cell, &boot)
        {
            boot.outcome = Outcome::Refused;
            boot.reason = Some(other);
        }
        let stop = boot.bad_usage;
        let row = Row { cell: *cell, boot };
        observer.end(&row);
        rows.push(row);
        if interrupted && rows.len() < cells.len() {
            return Done {
                rows,
                interrupted: true,
            };
        }
        if stop {
            break;
        }
    }
    Done {
        rows,
        interrupted: false,
    }
}

/// What the kernel did instead of the request, if it did.
fn other_than_asked(bench: &Bench, cell: &Cell, boot: &Boot) -> Option<String> {
    let asked = [
        ("page_size", cell.page_size.bytes().to_string()),
        ("linear_map.strategy", cell.form.strategy.word().to_owned()),
        ("linear_map.barriers", cell.form.barriers().to_owned()),
        ("linear_map.rodata", cell.rodata.word().to_owned()),
    ];
    let va_bits = bench.va_bits.map(|bits| ("va_bits", bits.to_string()));
    asked.into_iter().chain(va_bits).find_map(|(key, asked)| {
        let told = match boot.record.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => "nothing".into(),
        };
        (told != asked).then(|| format!("{key}: {asked} was asked for, the kernel took {told}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> Bench {
        Bench {
            memory: vec![1 << 30, 4 << 30],
            page_size: vec![PageSize::K4, PageSize::K64],
            rodata: vec![Rodata::Full],
            forms: LinearMap::ALL
                .map(|strategy| Form {
                    strategy,
                    barriers: None,
                })
                .to_vec(),
            cpu: "max".into(),
            va_bits: None,
            qemu: "/nonexistent/qemu".into(),
            image: Some("/nonexistent/Image".into()),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn every_combination_is_there_once_and_strategies_are_neighbours() {
        let cells = bench().cells();
        assert_eq!(cells.len(), 2 * 2 * 6);
        for cell in &cells {
            assert_eq!(cells.iter().filter(|other| *other == cell).count(), 1);
        }
        assert!(
            cells[..6]
                .iter()
                .all(|cell| (cell.memory, cell.page_size) == (1 << 30, PageSize::K4))
        );
    }

    #[test]
    fn bad_usage_ends_it_and_is_kept() {
        let done = run(&bench(), &mut (), &AtomicBool::new(false));
        assert_eq!(done.rows.len(), 1);
        assert!(!done.is_ok() && !done.interrupted);
        assert!(done.rows[0].boot.bad_usage);
    }

    #[test]
    fn an_interrupted_boot_is_no_row() {
        let done = run(&bench(), &mut (), &AtomicBool::new(true));
        assert!(done.interrupted && done.rows.is_empty() && !done.is_ok());
    }

    #[test]
    fn a_boot_that_ended_well_before_the_interrupt_is_kept() {
        let interrupt = AtomicBool::new(false);
        let well = |request: &Request| {
            let mut boot = boot::run(request);
            (boot.outcome, boot.reason) = (Outcome::Ok, None);
            interrupt.store(true, Ordering::Relaxed);
            boot
        };
        let done = run_by(&bench(), &mut (), &interrupt, well);
        assert_eq!((done.rows.len(), done.interrupted), (1, true));
        // With the last figure nothing is missing.
        let mut one = bench();
        (one.memory, one.page_size) = (vec![1 << 30], vec![PageSize::K4]);
        one.forms.truncate(1);
        interrupt.store(false, Ordering::Relaxed);
        let done = run_by(&one, &mut (), &interrupt, well);
        assert_eq!((done.rows.len(), done.interrupted), (1, false));
    }

    #[test]
    fn a_wrong_request_is_refused_before_the_first_boot() {
        let line = bench().check().unwrap_err();
        assert!(line.contains("/nonexistent/Image"), "{line}");
        let mut odd = bench();
        odd.va_bits = Some(41);
        assert!(odd.check().unwrap_err().contains("--va-bits 41"));
        let mut empty = bench();
        empty.memory.push(0);
        assert!(empty.check().unwrap_err().contains("--memory 0"));
    }

    #[test]
    fn a_kernel_that_took_something_else_is_told() {
        let cell = bench().cells()[0];
        let mut boot = boot::run(&bench().request(&cell));
        for line in [
            "page_size=4096",
            "linear_map.strategy=base",
            "linear_map.barriers=entry",
            "linear_map.rodata=full",
        ] {
            boot.record.line(line);
        }
        let mut asked = bench();
        assert_eq!(other_than_asked(&asked, &cell, &boot), None);
        // A CPU with fewer address bits also makes the kernel fall back.
        asked.va_bits = Some(52);
        for (line, took) in [("levels=4", "nothing"), ("va_bits=48", "48")] {
            boot.record.line(line);
            let told = other_than_asked(&asked, &cell, &boot).unwrap();
            let expected = format!("va_bits: 52 was asked for, the kernel took {took}");
            assert_eq!(told, expected);
        }
        boot.record.line("va_bits=52");
        assert_eq!(other_than_asked(&asked, &cell, &boot), None);
        boot.record.line("page_size=65536");
        let told = other_than_asked(&asked, &cell, &boot).unwrap();
        assert!(told.contains("4096") && told.contains("65536"), "{told}");
    }
}
