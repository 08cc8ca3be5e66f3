//! `granule bench user`: the cost of user memory, on the kernel for every page size and on each
//! kernel for one, measured by a program that runs at EL0.
//!
//! The program is `granule-user/src/bench`; [`lines`] parses its output. [`run`] makes one boot for
//! each build and page size, and [`report`] prints them.

pub mod lines;
pub mod report;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::progress::Bar;
use crate::boot;
use crate::image;
use crate::initramfs::Initramfs;
use crate::request::{PageSize, Request};
use crate::result::{Boot, Outcome};
use crate::sizes::show_size;
use lines::Measured;

/// The kernel to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Build {
    /// The kernel for every page size, which chooses at boot.
    Boot,
    /// The kernel built for one page size.
    Fixed,
}

/// The benchmark: every build with every page size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bench {
    /// Builds.
    pub build: Vec<Build>,
    /// Page sizes.
    pub page_size: Vec<PageSize>,
    /// Whether the kernel maps the program's memory in large leaves.
    pub large_leaves: bool,
    /// Bytes of RAM.
    pub memory: u64,
    /// Bytes that the program maps.
    pub bytes: u64,
    /// The number of rounds of the program.
    pub rounds: u32,
    /// QEMU's text for the CPU.
    pub cpu: String,
    /// The QEMU to run.
    pub qemu: PathBuf,
    /// The folder with images and program; `None` looks for it as `granule boot` does.
    pub folder: Option<PathBuf>,
    /// The time limit of one boot.
    pub timeout: Duration,
}

/// One boot to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The build.
    pub build: Build,
    /// The page size.
    pub page_size: PageSize,
}

impl Cell {
    /// `boot`, or `fixed-` and the page size.
    #[must_use]
    pub fn build(&self) -> String {
        match self.build {
            Build::Boot => "boot".into(),
            Build::Fixed => format!("fixed-{}", self.page_size.word()),
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

/// The program's file, and the command that builds it.
const PROGRAM: (&str, &str) = ("granule-user-bench", "cargo xtask user");

/// A finished boot.
#[derive(Debug)]
pub struct Ran {
    /// The cell that was booted.
    pub cell: Cell,
    /// The boot.
    pub boot: Boot,
    /// The program's results, if the boot is ok.
    pub measured: Option<Measured>,
}

/// All finished boots.
#[derive(Debug)]
pub struct Done {
    /// In the order of [`Bench::cells`].
    pub boots: Vec<Ran>,
    /// Whether the benchmark was interrupted before the last boot.
    pub interrupted: bool,
}

impl Done {
    /// Whether everything was measured, and every boot was ok.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.interrupted && self.boots.iter().all(|ran| ran.boot.is_ok())
    }
}

/// The files of a benchmark, all of which exist.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    program: Vec<u8>,
}

impl Bench {
    /// Every boot, by page size and then by build, so that boots to compare follow each other.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &page_size in &self.page_size {
            let of = |&build| Cell { build, page_size };
            cells.extend(self.build.iter().map(of));
        }
        cells
    }

    /// Finds every file that is needed before the first boot, and checks the request.
    ///
    /// # Errors
    ///
    /// One line about the first thing that is missing or wrong, with the command that builds it.
    pub fn check(&self) -> Result<Files, String> {
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => image::default_folder().map_err(|error| error.to_string())?,
        };
        let largest = self.page_size.iter().map(|size| size.bytes()).max();
        if self.bytes == 0 || !self.bytes.is_multiple_of(largest.unwrap_or(1)) {
            return Err(format!(
                "--bytes {}: expected whole pages of every size, a multiple of {}",
                show_size(self.bytes),
                show_size(largest.unwrap_or(1))
            ));
        }
        // A child needs as much memory again while the parent writes.
        if self.bytes > self.memory / 2 - self.memory / 16 {
            return Err(format!(
                "--bytes {} needs more than twice as much RAM, with --memory {} there is not so much",
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
            let image = there((&file, &command))?;
            self.request(cell, &image, &image).check()?;
        }
        let path = there(PROGRAM)?;
        let program =
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Files { folder, program })
    }

    /// The words for the kernel and, behind `--`, for the program.
    fn words(&self) -> String {
        let Self { bytes, rounds, .. } = self;
        if self.large_leaves {
            format!("-- {bytes} {rounds} large")
        } else {
            format!("user_large_leaves=off -- {bytes} {rounds}")
        }
    }

    fn request(&self, cell: Cell, image: &Path, initrd: &Path) -> Request {
        Request {
            image: Some(image.to_owned()),
            initrd: Some(initrd.to_owned()),
            page_size: Some(cell.page_size),
            memory: self.memory,
            cpu: self.cpu.clone(),
            qemu: self.qemu.clone(),
            icount: true,
            timeout: self.timeout,
            append: Some(self.words()),
            ..Request::default()
        }
    }

    /// The relative duration of a boot.
    fn weight(&self, cell: Cell) -> u64 {
        // A boot by itself, and a page; bytes count too where they are zeroed and copied.
        const BOOT: u64 = 1 << 28;
        const PAGE: u64 = 3500;
        let pages = self.bytes / cell.page_size.bytes();
        BOOT + u64::from(self.rounds) * (pages * PAGE + self.bytes / 4)
    }
}

/// A progress bar for all of `bench`.
#[must_use]
pub fn bar(bench: &Bench) -> Bar {
    Bar::of(bench.cells().iter().map(|&cell| bench.weight(cell)))
}

/// Measures every boot. It stops early, and returns the finished boots, when `interrupt` is true or
/// a boot shows that the request itself is wrong.
///
/// # Errors
///
/// One line when the initramfs with the program cannot be written.
pub fn run(
    bench: &Bench,
    files: &Files,
    bar: &mut Bar,
    interrupt: &AtomicBool,
) -> Result<Done, String> {
    let archive = tempfile::NamedTempFile::new()
        .and_then(|file| {
            let archive = Initramfs::new().program("/init", &files.program);
            archive.write(file.path()).map(|()| file)
        })
        .map_err(|error| format!("a temporary file for the initramfs: {error}; set TMPDIR"))?;
    let mut boots = Vec::new();
    for cell in bench.cells() {
        bar.next(format_args!(
            "{}, {} pages",
            cell.build(),
            cell.page_size.word()
        ));
        let image = files.folder.join(cell.image().0);
        let request = bench.request(cell, &image, archive.path());
        let boot = boot::boot(&request, &mut std::io::sink(), interrupt);
        if interrupt.load(Ordering::Relaxed) && !boot.is_ok() {
            // The boot was cut short: its counts are no result.
            return Ok(Done {
                boots,
                interrupted: true,
            });
        }
        let ran = judged(bench, cell, boot);
        let stop = ran.boot.bad_usage;
        bar.done(bench.weight(cell));
        boots.push(ran);
        if stop {
            break;
        }
    }
    Ok(Done {
        boots,
        interrupted: false,
    })
}

/// A boot with the program's results, which must match the request.
fn judged(bench: &Bench, cell: Cell, mut boot: Boot) -> Ran {
    let mut measured = None;
    if boot.is_ok() {
        match lines::read(&boot.console_text()).and_then(|read| as_asked(bench, cell, read)) {
            Ok(read) => measured = Some(read),
            Err(reason) => {
                boot.outcome = Outcome::Refused;
                boot.reason = Some(reason);
            }
        }
    }
    Ran {
        cell,
        boot,
        measured,
    }
}

fn as_asked(bench: &Bench, cell: Cell, read: Measured) -> Result<Measured, String> {
    let asked = [
        ("page size", cell.page_size.bytes(), read.page),
        ("bytes", bench.bytes, read.bytes),
        ("rounds", u64::from(bench.rounds), read.rounds),
    ];
    match asked.iter().find(|(_, asked, told)| asked != told) {
        None => Ok(read),
        Some((what, asked, told)) => Err(format!(
            "{what}: {asked} was asked for, the benchmark had {told}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn bench() -> Bench {
        Bench {
            build: vec![Build::Boot, Build::Fixed],
            page_size: vec![PageSize::K4, PageSize::K64],
            large_leaves: true,
            memory: 4 << 30,
            bytes: 1 << 30,
            rounds: 3,
            cpu: "neoverse-n1".into(),
            qemu: "/nonexistent/qemu".into(),
            folder: Some("/nonexistent".into()),
            timeout: Duration::from_secs(1),
        }
    }

    /// A boot that ended well, with this output on its console.
    pub(super) fn ran(bench: &Bench, cell: Cell, console: &str) -> Ran {
        let nowhere = Path::new("/nonexistent/file");
        let mut boot = boot::run(&bench.request(cell, nowhere, nowhere));
        (boot.outcome, boot.reason, boot.bad_usage) = (Outcome::Ok, None, false);
        boot.console = console.as_bytes().to_vec();
        judged(bench, cell, boot)
    }

    /// The program's output if each operation takes this many ticks.
    pub(super) fn console(bench: &Bench, cell: Cell, ops: &[(&str, u64)]) -> String {
        let page = cell.page_size.bytes();
        let mut text = format!(
            "bench begin page={page} bytes={} pages={} rounds={} frequency=62500000\n",
            bench.bytes,
            bench.bytes / page,
            bench.rounds
        );
        for (name, ticks) in ops {
            text += &format!("bench op={name} best={ticks} median={ticks} worst={ticks}\n");
        }
        text + &format!("bench end ops={}\n", ops.len())
    }

    #[test]
    fn kernel_and_program_are_told_of_the_leaves() {
        assert_eq!(bench().words(), "-- 1073741824 3 large");
        let off = Bench {
            large_leaves: false,
            ..bench()
        };
        assert_eq!(off.words(), "user_large_leaves=off -- 1073741824 3");
    }

    #[test]
    fn builds_of_a_page_size_are_neighbours() {
        let names: Vec<_> = bench().cells().iter().map(Cell::build).collect();
        assert_eq!(names, ["boot", "fixed-4k", "boot", "fixed-64k"]);
    }

    #[test]
    fn the_first_file_that_is_missing_is_named_with_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let bench = Bench {
            folder: Some(folder.path().to_owned()),
            ..bench()
        };
        for (file, command) in [
            ("Image", "`cargo xtask image`"),
            ("Image-4k", "`cargo xtask image --fixed 4k`"),
            ("Image-64k", "`cargo xtask image --fixed 64k`"),
            ("granule-user-bench", "`cargo xtask user`"),
        ] {
            let path = folder.path().join(file);
            let line = bench.check().unwrap_err();
            let expected = format!("{} is not there: build it with {command}", path.display());
            assert_eq!(line, expected);
            std::fs::write(path, b"something").unwrap();
        }
        assert!(bench.check().is_ok());
    }

    #[test]
    fn an_impossible_measurement_is_refused_before_the_first_boot() {
        let with = |bytes| Bench { bytes, ..bench() }.check().unwrap_err();
        assert!(with(0).contains("whole pages"));
        assert!(with(4096).contains("a multiple of 64K"), "{}", with(4096));
        assert!(with(2 << 30).contains("more than twice"));
        assert!(with(1 << 63).contains("more than twice"));
    }

    #[test]
    fn a_program_that_did_something_else_is_no_result() {
        let (bench, cell) = (bench(), bench().cells()[0]);
        let good = console(&bench, cell, &[("fork", 7)]);
        assert!(ran(&bench, cell, &good).measured.is_some());
        for (change, to, expected) in [
            (
                "rounds=3",
                "rounds=2",
                "rounds: 3 was asked for, the benchmark had 2",
            ),
            ("bench end", "bench", "the benchmark's line"),
            ("bench", "Bench", "no line `bench begin`"),
        ] {
            let ran = ran(&bench, cell, &good.replace(change, to));
            assert_eq!((ran.boot.outcome, ran.measured), (Outcome::Refused, None));
            let reason = ran.boot.reason.unwrap_or_default();
            assert!(reason.contains(expected), "{reason}");
        }
        let other = console(&bench, bench.cells()[2], &[("fork", 7)]);
        let ran = ran(&bench, cell, &other);
        let reason = ran.boot.reason.unwrap_or_default();
        assert!(
            reason.starts_with("page size: 4096 was asked for"),
            "{reason}"
        );
    }
}
