//! `granule bench user`: the cost of user memory, on the kernel for every page size and on each
//! kernel for one, measured by a program that runs at EL0.
//!
//! The program is `kernel/granule-programs/src/bench`; [`lines`] parses its output. [`run`] makes one boot for
//! each build and page size, and [`report`] prints them.

pub mod counts;
pub mod lines;
pub mod report;
pub mod together;

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
    /// The number of programs that wait at once; 0 for none.
    pub programs: u32,
    /// Whether programs of all page sizes do the work at once, and each alone to compare, instead of one.
    pub together: bool,
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
    /// What runs.
    pub programs: Programs,
}

/// The programs of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// One, of the kernel's page size, which does everything.
    One,
    /// One of this page size, and the program that tells it what to do, and no other size.
    Alone(PageSize),
    /// One of each page size at once.
    Together,
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

    /// What runs, in a word.
    #[must_use]
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
            let image = there((&file, &command))?;
            self.request(cell, &image, &image).check()?;
        }
        let path = there(PROGRAM)?;
        let program =
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Files { folder, program })
    }

    /// The words for the kernel and, behind `--`, for the program.
    fn words(&self, cell: Cell) -> String {
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
            Programs::One => words += &format!(" switches programs={}", self.programs),
            Programs::Alone(size) => words += &format!(" together={}", size.bytes()),
            Programs::Together => {
                let sizes = SIZES.map(|size| size.bytes().to_string());
                words += &format!(" together={}", sizes.join(","));
            }
        }
        words
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
            append: Some(self.words(cell)),
            ..Request::default()
        }
    }

    /// The relative duration of a boot.
    fn weight(&self, cell: Cell) -> u64 {
        // A boot by itself, and a page; bytes count too where they are zeroed and copied.
        const BOOT: u64 = 1 << 28;
        const PAGE: u64 = 3500;
        let pages = self.bytes / cell.measuring().bytes();
        let programs = if cell.programs == Programs::Together {
            3
        } else {
            1
        };
        BOOT + u64::from(self.rounds) * programs * (pages * PAGE + self.bytes / 4)
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
            "{}, {} pages, {}",
            cell.build(),
            cell.page_size.word(),
            cell.programs()
        ));
        let image = files.folder.join(cell.image().0);
        // Without the plugin, on a host that QEMU cannot load it on, TLBIs and DSBs are not counted.
        let counter = Counter::new().ok();
        let request = Request {
            plugin: counter.as_ref().map(Counter::option),
            ..bench.request(cell, &image, archive.path())
        };
        let boot = boot::boot(&request, &mut std::io::sink(), interrupt);
        if interrupt.load(Ordering::Relaxed) && !boot.is_ok() {
            // The boot was cut short: its counts are no result.
            return Ok(Done {
                boots,
                interrupted: true,
            });
        }
        let ran = judged(bench, cell, boot, counter.as_ref());
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
fn judged(bench: &Bench, cell: Cell, mut boot: Boot, counter: Option<&Counter>) -> Ran {
    let mut measured = None;
    if boot.is_ok() {
        let read = || {
            let mut read = as_asked(bench, cell, lines::read(&boot.console_text())?)?;
            if let Some(counter) = counter {
                counter.add_to(&mut read)?;
            }
            Ok(read)
        };
        match read() {
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
        ("page size", cell.measuring().bytes(), read.page),
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
            programs: 1000,
            together: false,
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
        judged(bench, cell, boot, None)
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
            text += &format!("bench op={name} best={ticks} median={ticks} worst={ticks} at=0\n");
        }
        text + &format!("bench end ops={} timed=1\n", ops.len())
    }

    #[test]
    fn kernel_and_program_are_told_of_the_leaves() {
        assert_eq!(
            bench().words(bench().cells()[0]),
            "-- 1073741824 3 large switches programs=1000"
        );
        let off = Bench {
            large_leaves: false,
            ..bench()
        };
        assert_eq!(
            off.words(off.cells()[0]),
            "user_large_leaves=off -- 1073741824 3 switches programs=1000"
        );
    }

    #[test]
    fn programs_of_all_sizes_are_beside_each_alone() {
        let bench = Bench {
            together: true,
            ..bench()
        };
        let cells = bench.cells();
        assert_eq!(cells.len(), 8);
        let words: Vec<_> = cells.iter().map(|cell| bench.words(*cell)).collect();
        let expected = "user_pagesize=16k -- 1073741824 3 large together=16384";
        assert_eq!(words[1], expected);
        let expected = "-- 1073741824 3 large together=4096,16384,65536";
        assert_eq!((words[3].as_str(), words[7].as_str()), (expected, expected));
        let error = Bench {
            bytes: 3 << 29,
            ..bench
        }
        .check()
        .unwrap_err();
        assert!(error.contains("more than thrice"), "{error}");
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
