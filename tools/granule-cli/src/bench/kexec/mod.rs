//! `granule bench kexec`: the cost of leaving for another kernel, by phase and payload, with the
//! MMU on and off while bytes are copied, and with nothing to copy.
//!
//! The kernel leaves for its own image with an initramfs that is filled up to the payload's size.
//! [`run`] makes one boot for each combination, [`report`] prints them beside the [`published`]
//! times.

pub mod published;
pub mod report;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use granule_kexec::copy_accesses;
use serde_json::Value;

use super::progress::Bar;
use crate::boot;
use crate::image::Image;
use crate::initramfs::Initramfs;
use crate::request::Kexec;
use crate::request::{PageSize, Request};
use crate::result::record::RecordLines;
use crate::result::{Boot, Outcome};
use crate::sizes::show_size;

/// Whether the MMU is on while bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mmu {
    /// Off, and with it the caches.
    Off,
    /// On.
    On,
}

/// The place of the payload before the kernel leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// Not at its destination: all of it is copied.
    Copied,
    /// At its destination, as far as that memory is free.
    InPlace,
}

impl Mmu {
    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

impl Place {
    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::InPlace => "in-place",
        }
    }
}

/// The benchmark: every combination of the lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bench {
    /// Bytes of image and initramfs together.
    pub payload: Vec<u64>,
    /// MMU settings.
    pub mmu: Vec<Mmu>,
    /// Places of the payload.
    pub place: Vec<Place>,
    /// Page sizes; both kernels use the same.
    pub page_size: Vec<PageSize>,
    /// Bytes of RAM.
    pub memory: u64,
    /// QEMU's text for the CPU.
    pub cpu: String,
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
    /// Bytes of image and initramfs.
    pub payload: u64,
    /// Whether the payload is copied.
    pub place: Place,
    /// Whether the MMU is on while bytes are copied.
    pub mmu: Mmu,
}

/// The cost of one combination. Instructions are multiples of a tick of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of image, initramfs and device tree.
    pub bytes_total: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
    /// Maintenance operations on cache lines.
    pub lines_cleaned: u64,
    /// Barriers of the relocation.
    pub dsb: u64,
    /// TLBIs of the relocation.
    pub tlbi: u64,
    /// Instructions from the call of `reboot` to the relocation code.
    pub shutdown: u64,
    /// Instructions from there to the next kernel's entry.
    pub relocation: u64,
    /// Instructions from the entry to the first line on the console.
    pub to_console: u64,
    /// Instructions from the entry until the kernel is up, before its first process.
    pub to_up: u64,
    /// A plain copy for comparison: bytes, and instructions.
    pub yardstick: (u64, u64),
}

/// Bytes of a cache line.
const LINE: u64 = 64;

impl Figures {
    /// The bound: 1.1 times the yardstick, and an instruction for each operation on a cache line.
    #[must_use]
    pub fn bound(&self) -> f64 {
        let (bytes, instructions) = self.yardstick;
        let copy = self.bytes_copied as f64 * instructions as f64 / bytes as f64;
        1.1 * (copy + self.lines_cleaned as f64)
    }

    /// The relocation as a ratio to the bound; `None` if nothing is copied and nothing cleaned.
    #[must_use]
    pub fn of_bound(&self) -> Option<f64> {
        let bound = self.bound();
        (bound > 0.0).then(|| self.relocation as f64 / bound)
    }

    /// Instructions of the yardstick for each cache line.
    #[must_use]
    pub fn yardstick_per_line(&self) -> f64 {
        let (bytes, instructions) = self.yardstick;
        instructions as f64 * LINE as f64 / bytes as f64
    }

    /// Loads and stores of the copied bytes. The MMU alone decides their memory type: with the MMU
    /// off all memory is Device memory.
    #[must_use]
    pub const fn accesses(&self) -> u64 {
        copy_accesses(self.bytes_copied)
    }
}

/// A finished boot.
#[derive(Debug)]
pub struct Row {
    /// The combination.
    pub cell: Cell,
    /// The boot.
    pub boot: Boot,
    /// The cost, if the boot is ok.
    pub figures: Option<Figures>,
}

/// All finished boots.
#[derive(Debug)]
pub struct Done {
    /// In the order of [`Bench::cells`].
    pub rows: Vec<Row>,
    /// Whether the benchmark was interrupted before the last boot.
    pub interrupted: bool,
}

impl Done {
    /// Whether every cell was measured and every boot was ok.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.interrupted && self.rows.iter().all(|row| row.boot.is_ok())
    }
}

/// The next kernel's first process, which has nothing to do.
const PROGRAM: &str = "granule-kexec";

/// The files that every archive needs, read before the first boot.
#[derive(Debug)]
pub struct Files {
    image_bytes: u64,
    program: Vec<u8>,
}

impl Bench {
    /// Every combination; those to compare are neighbours.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &page_size in &self.page_size {
            for &payload in &self.payload {
                for &place in &self.place {
                    cells.extend(self.mmu.iter().map(|&mmu| Cell {
                        page_size,
                        payload,
                        place,
                        mmu,
                    }));
                }
            }
        }
        cells
    }

    /// Reads every file that is needed before the first boot, and checks the request.
    ///
    /// # Errors
    ///
    /// One line about the first thing that is missing or wrong, with what to do.
    pub fn check(&self) -> Result<Files, String> {
        let image = Image::open(self.image.as_deref()).map_err(|error| error.to_string())?;
        let path = image.path.with_file_name(PROGRAM);
        let program = std::fs::read(&path).map_err(|error| {
            format!(
                "{}: {error}; build it with `cargo xtask user`",
                path.display()
            )
        })?;
        let files = Files {
            image_bytes: image.bytes,
            program,
        };
        for cell in self.cells() {
            // Check before the first archive of a hundred megabytes is made.
            files.filler(cell.payload)?;
            // RAM holds the payload four times: the first initramfs, the loaded segments, their
            // destination, and what both kernels need.
            let needed = 4 * cell.payload;
            if needed > self.memory {
                return Err(format!(
                    "--payload {} needs {} of RAM, with --memory {} there is not so much",
                    show_size(cell.payload),
                    show_size(needed),
                    show_size(self.memory)
                ));
            }
            self.request(cell, Path::new("initrd")).check()?;
        }
        Ok(files)
    }

    fn request(&self, cell: Cell, initrd: &Path) -> Request {
        Request {
            image: self.image.clone(),
            page_size: Some(cell.page_size),
            memory: self.memory,
            cpu: self.cpu.clone(),
            qemu: self.qemu.clone(),
            icount: true,
            timeout: self.timeout,
            append: Some("granule.bench=copy".into()),
            kexec: Some(Kexec {
                initrd: Some(initrd.to_owned()),
                page_size: Some(cell.page_size),
                copy: cell.place == Place::Copied,
                uncached: cell.mmu == Mmu::Off,
                ..Kexec::default()
            }),
            ..Request::default()
        }
    }
}

impl Files {
    fn archive(&self, filler: &[u8]) -> Vec<u8> {
        Initramfs::new()
            .program("/init", &self.program)
            .directory("/etc")
            .file("/etc/kexec", b"# nothing\n")
            .file("/filler", filler)
            .bytes()
    }

    /// Bytes of the file that fills the archive up.
    fn filler(&self, payload: u64) -> Result<u64, String> {
        let without = self.image_bytes + self.archive(b"").len() as u64;
        // The archive and the files in it are multiples of a word.
        let filler = payload.checked_sub(without).map(|bytes| bytes & !3);
        filler.filter(|bytes| *bytes > 0).ok_or_else(|| {
            format!(
                "--payload {}: the image and a program have {without} bytes already; take more",
                show_size(payload)
            )
        })
    }

    /// The next kernel's archive: together with the image it has `payload` bytes, less up to three.
    fn filled(&self, payload: u64) -> Result<Vec<u8>, String> {
        let bytes = usize::try_from(self.filler(payload)?).map_err(|error| error.to_string())?;
        let mut filler = Vec::with_capacity(bytes);
        // No two pages are alike (xorshift), so that a swapped page is found.
        let mut word: u64 = 0x9e37_79b9_7f4a_7c15;
        while filler.len() < bytes {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            filler.extend_from_slice(&word.to_le_bytes());
        }
        filler.truncate(bytes);
        Ok(self.archive(&filler))
    }
}

/// A boot by itself takes about as long as loading this many bytes.
const BOOT: u64 = 32 << 20;

/// A progress bar for all of `bench`.
#[must_use]
pub fn bar(bench: &Bench) -> Bar {
    Bar::of(bench.cells().iter().map(|cell| BOOT + cell.payload))
}

/// Measures every combination. It stops early, and returns the finished rows, when `interrupt` is
/// true or a boot shows that the request itself is wrong.
///
/// # Errors
///
/// One line when an initramfs cannot be written.
pub fn run(
    bench: &Bench,
    files: &Files,
    bar: &mut Bar,
    interrupt: &AtomicBool,
) -> Result<Done, String> {
    let mut rows = Vec::new();
    let mut archive: Option<(u64, tempfile::NamedTempFile)> = None;
    for cell in bench.cells() {
        bar.next(format_args!(
            "{} pages, {}, MMU {}, {}",
            cell.page_size.word(),
            show_size(cell.payload),
            cell.mmu.word(),
            cell.place.word()
        ));
        let path = match &archive {
            Some((payload, file)) if *payload == cell.payload => file.path().to_owned(),
            _ => {
                let bytes = files.filled(cell.payload)?;
                let file = tempfile::NamedTempFile::new()
                    .and_then(|file| std::fs::write(file.path(), bytes).map(|()| file))
                    .map_err(|error| {
                        format!("a temporary file for the initramfs: {error}; set TMPDIR")
                    })?;
                let (_, file) = archive.insert((cell.payload, file));
                file.path().to_owned()
            }
        };
        let boot = boot::boot(&bench.request(cell, &path), &mut std::io::sink(), interrupt);
        if interrupt.load(Ordering::Relaxed) && !boot.is_ok() {
            // The boot was cut short: its counts are no result.
            return Ok(Done {
                rows,
                interrupted: true,
            });
        }
        let row = judged(cell, boot);
        let stop = row.boot.bad_usage;
        bar.done(BOOT + cell.payload);
        rows.push(row);
        if stop {
            break;
        }
    }
    Ok(Done {
        rows,
        interrupted: false,
    })
}

/// A boot with the kernels' figures, which must match the request.
fn judged(cell: Cell, mut boot: Boot) -> Row {
    let mut figures = None;
    if boot.is_ok() {
        match read(cell, &boot) {
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

/// Under `-icount shift=0` an instruction takes one nanosecond of counter time.
const NANOSECONDS: u128 = 1_000_000_000;

fn read(cell: Cell, boot: &Boot) -> Result<Figures, String> {
    let [first, next] = boot.boots.as_slice() else {
        return Err(format!(
            "{} kernels said something, expected one that leaves and the next",
            boot.boots.len()
        ));
    };
    let number = |record: &RecordLines, key: &str| {
        let value = record.get(key).and_then(Value::as_u64);
        value.ok_or_else(|| format!("the record has no number {key}"))
    };
    let of = |key: &str| number(next, &format!("kexec.{key}"));
    let hz = of("count.hz")?.max(1);
    let between = |from: &str, to: &str| -> Result<u64, String> {
        let (start, end) = (of(&format!("count.{from}"))?, of(&format!("count.{to}"))?);
        let ticks = end
            .checked_sub(start)
            .ok_or_else(|| format!("the count at {to} is before that at {from}"))?;
        u64::try_from(u128::from(ticks) * NANOSECONDS / u128::from(hz))
            .map_err(|error| error.to_string())
    };
    let asked = [
        ("page size", cell.page_size.bytes(), of("from_page_size")?),
        ("page size", cell.page_size.bytes(), of("to_page_size")?),
    ];
    if let Some((what, asked, told)) = asked.iter().find(|(_, asked, told)| asked != told) {
        return Err(format!(
            "{what}: {asked} was asked for, the kernel took {told}"
        ));
    }
    let uncached = next.get("kexec.uncached").and_then(Value::as_bool);
    if uncached != Some(cell.mmu == Mmu::Off) {
        return Err(format!(
            "MMU {} was asked for, kexec.uncached is {uncached:?}",
            cell.mmu.word()
        ));
    }
    if boot.kexec.as_ref().and_then(|kexec| kexec.digest_ok) != Some(true) {
        return Err("it was not seen that what arrived is what was given".into());
    }
    let figures = Figures {
        bytes_total: of("bytes_total")?,
        bytes_copied: of("bytes_copied")?,
        lines_cleaned: of("lines_cleaned")?,
        dsb: of("dsb")?,
        tlbi: of("tlbi")?,
        shutdown: between("call", "leave")?,
        relocation: between("leave", "entry")?,
        to_console: between("entry", "console")?,
        to_up: between("entry", "up")?,
        yardstick: (
            number(first, "bench.copy.bytes")?.max(1),
            number(first, "bench.copy.instructions")?,
        ),
    };
    if cell.place == Place::Copied && figures.bytes_copied < cell.payload {
        return Err(format!(
            "all was to be copied, of {} bytes {} were",
            cell.payload, figures.bytes_copied
        ));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests;
