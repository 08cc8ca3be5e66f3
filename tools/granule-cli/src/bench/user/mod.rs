//! `granule bench user`: the cost of user memory, on the kernel for every page size and on each
//! kernel for one, measured by a program that runs at EL0.
//!
//! The program is `kernel/granule-programs/src/bench`; [`lines`] parses its output. One boot is made for
//! each build and page size.

pub(crate) mod args;
pub mod counts;
pub mod lines;
pub mod report;
#[cfg(test)]
mod tests;
pub mod together;

use std::path::PathBuf;

use serde_json::Value;
use tempfile::NamedTempFile;

pub use self::args::Bench;
use super::args::RunArgs;
use super::series::{self, Benchmark, temporary};
use crate::image;
use crate::initramfs::Initramfs;
use crate::request::{PageSize, Request};
use crate::result::Boot;
use crate::sizes::show_size;
use counts::Counter;
use lines::Measured;

/// The kernel to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Build {
    /// The kernel for every page size, which chooses at boot.
    Boot,
    /// The kernel built for one page size.
    Fixed,
}

/// One boot to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub build: Build,
    pub page_size: PageSize,
    /// The programs that run.
    pub programs: Programs,
}

/// The programs of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// One, of the kernel's page size, which does everything.
    One,
    /// One of this page size, and the program that gives it orders, and no other size.
    Alone(PageSize),
    /// One of each page size at once.
    Together,
}

impl Cell {
    /// `boot`, or `fixed-` and the page size.
    pub fn build(&self) -> String {
        match self.build {
            Build::Boot => "boot".into(),
            Build::Fixed => format!("fixed-{}", self.page_size.word()),
        }
    }

    /// The programs that run, in a word.
    pub fn programs(&self) -> String {
        match self.programs {
            Programs::One => "one".into(),
            Programs::Alone(size) => format!("alone-{}", size.word()),
            Programs::Together => "together".into(),
        }
    }

    /// The page size of the program that measures.
    fn measuring(&self) -> PageSize {
        match self.programs {
            Programs::Alone(size) => size,
            Programs::One | Programs::Together => self.page_size,
        }
    }

    /// The image's file, and the command that builds it.
    fn image(&self) -> (String, String) {
        let size = self.page_size.word();
        match self.build {
            Build::Boot => ("Image".into(), "cargo xtask image".into()),
            Build::Fixed => (
                format!("Image-{size}"),
                format!("cargo xtask image --fixed {size}"),
            ),
        }
    }
}

/// The page sizes that programs run with at once.
const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// The program's file, and the command that builds it.
const PROGRAM: (&str, &str) = ("granule-user-bench", "cargo xtask user");

/// A finished boot, with the program's results if the boot is ok.
pub type Ran = series::Row<Cell, Measured>;
/// All finished boots.
pub type Done = series::Done<Cell, Measured>;

/// The files of a benchmark, all of which exist.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    /// The initramfs with the program.
    archive: NamedTempFile,
    /// Counts TLBIs and DSBs of the boot that was requested last; `None` on a host that QEMU cannot load
    /// the plugin on.
    counter: Option<Counter>,
}

impl Bench {
    /// The words for the kernel and, behind `--`, for the program.
    fn words(&self, cell: &Cell) -> String {
        let mut words = String::new();
        if !self.large_leaves {
            words += "user_large_leaves=off ";
        }
        if let Programs::Alone(size) = cell.programs {
            words += &format!("user_pagesize={} ", size.word());
        }
        words += &format!("-- {} {}", self.bytes, self.rounds);
        if self.large_leaves {
            words += " large";
        }
        match cell.programs {
            Programs::One => {
                words += &format!(" calls switches programs={}", self.programs);
                if !self.areas.is_empty() {
                    let counts: Vec<_> = self.areas.iter().map(u32::to_string).collect();
                    words += &format!(" areas={}", counts.join(","));
                }
            }
            Programs::Alone(size) => words += &format!(" together={}", size.bytes()),
            Programs::Together => {
                let sizes = SIZES.map(|size| size.bytes().to_string());
                words += &format!(" together={}", sizes.join(","));
            }
        }
        words
    }

    /// The program's results, if they are those of the request.
    fn as_requested(&self, cell: &Cell, read: Measured) -> Result<Measured, String> {
        let requested = [
            ("page size", cell.measuring().bytes(), read.page),
            ("bytes", self.bytes, read.bytes),
            ("rounds", u64::from(self.rounds), read.rounds),
        ];
        match requested
            .iter()
            .find(|(_, expected, took)| expected != took)
        {
            None => Ok(read),
            Some((what, expected, took)) => Err(format!(
                "{what}: {expected} was requested, the benchmark had {took}"
            )),
        }
    }
}

impl Benchmark for Bench {
    type Cell = Cell;
    type Files = Files;
    type Figures = Measured;

    fn run_args(&self) -> &RunArgs {
        &self.run
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &page_size in &self.page_size {
            let of = |build, programs| Cell {
                build,
                page_size,
                programs,
            };
            if self.together {
                let alone = SIZES.map(|size| of(Build::Boot, Programs::Alone(size)));
                cells.extend(alone);
                cells.push(of(Build::Boot, Programs::Together));
            } else {
                cells.extend(self.build.iter().map(|&build| of(build, Programs::One)));
            }
        }
        cells
    }

    fn check(&self) -> Result<Files, String> {
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => image::default_folder().map_err(|error| error.to_string())?,
        };
        let sizes = if self.together {
            &SIZES
        } else {
            &*self.page_size
        };
        let largest = sizes.iter().map(|size| size.bytes()).max();
        if self.bytes == 0 || !self.bytes.is_multiple_of(largest.unwrap_or(1)) {
            return Err(format!(
                "--bytes {}: expected whole pages of every size, a multiple of {}",
                show_size(self.bytes),
                show_size(largest.unwrap_or(1))
            ));
        }
        // A child needs as much memory again while the parent writes, and three programs thrice as much.
        let (times, words) = if self.together {
            (3, "thrice")
        } else {
            (2, "twice")
        };
        if self.bytes > self.memory / times - self.memory / 16 {
            return Err(format!(
                "--bytes {} needs more than {words} as much RAM, with --memory {} there is not so much",
                show_size(self.bytes),
                show_size(self.memory)
            ));
        }
        let there = |(file, command): (&str, &str)| {
            let path = folder.join(file);
            if path.is_file() {
                return Ok(path);
            }
            Err(format!(
                "{} is not there: build it with `{command}`",
                path.display()
            ))
        };
        for cell in self.cells() {
            let (file, command) = cell.image();
            there((&file, &command))?;
            self.request(&cell).check()?;
        }
        let path = there(PROGRAM)?;
        let program =
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let archive = Initramfs::new().program("/init", &program);
        Ok(Files {
            folder,
            archive: temporary(|path| archive.write(path))?,
            counter: None,
        })
    }

    fn name(cell: &Cell) -> String {
        format!(
            "{}, {} pages, {}",
            cell.build(),
            cell.page_size.word(),
            cell.programs()
        )
    }

    fn weight(&self, cell: &Cell) -> u64 {
        // A boot by itself, and a page; bytes count too where they are zeroed and copied.
        const BOOT: u64 = 1 << 28;
        const PAGE: u64 = 3500;
        let pages = self.bytes / cell.measuring().bytes();
        let programs = if cell.programs == Programs::Together {
            3
        } else {
            1
        };
        let areas: u64 = self.areas.iter().map(|count| u64::from(*count)).sum();
        BOOT + u64::from(self.rounds) * programs * (pages * PAGE + self.bytes / 4) + areas * PAGE
    }

    fn request(&self, cell: &Cell) -> Request {
        self.run
            .request()
            .page_size(cell.page_size)
            .memory(self.memory)
            .cpu(self.cpu.clone())
            .append(self.words(cell))
    }

    fn prepare(&self, cell: &Cell, files: &mut Files, request: Request) -> Result<Request, String> {
        files.counter = Counter::new().ok();
        Ok(Request {
            image: Some(files.folder.join(cell.image().0)),
            initrd: Some(files.archive.path().to_owned()),
            plugin: files.counter.as_ref().map(Counter::option),
            ..request
        })
    }

    fn figures(&self, cell: &Cell, files: &Files, boot: &Boot) -> Result<Measured, String> {
        let mut read = self.as_requested(cell, lines::read(&boot.console_text())?)?;
        if let Some(counter) = &files.counter {
            counter.add_to(&mut read)?;
        }
        Ok(read)
    }

    fn tables(&self, done: &Done) -> String {
        report::table(self, done)
    }

    fn json(&self, done: &Done) -> Value {
        report::json(self, done)
    }
}
