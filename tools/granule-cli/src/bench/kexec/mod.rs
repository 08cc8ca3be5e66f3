//! `granule bench kexec`: the cost of leaving for another kernel, by phase and payload, with the
//! MMU on and off while bytes are copied, and with nothing to copy.
//!
//! The kernel leaves for its own image with an initramfs that is filled up to the payload's size.
//! One boot for each combination is beside the [`published`] times.

pub(crate) mod args;
pub mod published;
pub mod report;
#[cfg(test)]
mod tests;

use granule_kexec::copy_accesses;
use serde_json::Value;
use tempfile::NamedTempFile;

pub use self::args::Bench;
use super::args::RunArgs;
use super::series::{self, Benchmark, temporary};
use crate::initramfs::Initramfs;
use crate::request::{Kexec, PageSize, Request};
use crate::result::Boot;
use crate::result::console_record::RecordLines;
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
pub enum PayloadPlace {
    /// Not at its destination: all of it is copied.
    Copied,
    /// At its destination, as far as that memory is free.
    InPlace,
}

impl Mmu {
    /// The word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

impl PayloadPlace {
    /// The word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::InPlace => "in-place",
        }
    }
}

/// One combination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub page_size: PageSize,
    /// Bytes of image and initramfs.
    pub payload: u64,
    /// Whether the payload is copied.
    pub place: PayloadPlace,
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
    pub fn bound(&self) -> f64 {
        let (bytes, instructions) = self.yardstick;
        let copy = self.bytes_copied as f64 * instructions as f64 / bytes as f64;
        1.1 * (copy + self.lines_cleaned as f64)
    }

    /// The relocation as a ratio to the bound; `None` if nothing is copied and nothing cleaned.
    pub fn of_bound(&self) -> Option<f64> {
        let bound = self.bound();
        (bound > 0.0).then(|| self.relocation as f64 / bound)
    }

    /// Instructions of the yardstick for each cache line.
    pub fn yardstick_per_line(&self) -> f64 {
        let (bytes, instructions) = self.yardstick;
        instructions as f64 * LINE as f64 / bytes as f64
    }

    /// Loads and stores of the copied bytes. The MMU alone decides their memory type: with the MMU
    /// off all memory is Device memory.
    pub const fn accesses(&self) -> u64 {
        copy_accesses(self.bytes_copied)
    }
}

/// A finished boot, with the cost if the boot is ok.
pub type Row = series::Row<Cell, Figures>;
/// All finished boots.
pub type Done = series::Done<Cell, Figures>;

/// The next kernel's first process, which has nothing to do.
const PROGRAM: &str = "granule-kexec";

/// The files that every archive needs, read before the first boot.
#[derive(Debug)]
pub struct Files {
    image_bytes: u64,
    program: Vec<u8>,
    /// The archive of the payload that was measured last.
    archive: Option<(u64, NamedTempFile)>,
}

impl Benchmark for Bench {
    type Cell = Cell;
    type Files = Files;
    type Figures = Figures;

    fn run_args(&self) -> &RunArgs {
        &self.on.run
    }

    fn cells(&self) -> Vec<Cell> {
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

    fn check(&self) -> Result<Files, String> {
        let image = self.on.open()?;
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
            archive: None,
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
            self.request(&cell).check()?;
        }
        Ok(files)
    }

    fn name(cell: &Cell) -> String {
        format!(
            "{} pages, {}, MMU {}, {}",
            cell.page_size.word(),
            show_size(cell.payload),
            cell.mmu.word(),
            cell.place.word()
        )
    }

    fn weight(&self, cell: &Cell) -> u64 {
        // A boot by itself takes about as long as loading this many bytes.
        const BOOT: u64 = 32 << 20;
        BOOT + cell.payload
    }

    fn request(&self, cell: &Cell) -> Request {
        Request {
            page_size: Some(cell.page_size),
            memory: self.memory,
            cpu: self.cpu.clone(),
            append: Some("granule.bench=copy".into()),
            kexec: Some(Kexec {
                page_size: Some(cell.page_size),
                copy: cell.place == PayloadPlace::Copied,
                uncached: cell.mmu == Mmu::Off,
                ..Kexec::default()
            }),
            ..self.on.request()
        }
    }

    fn prepare(
        &self,
        cell: &Cell,
        files: &mut Files,
        mut request: Request,
    ) -> Result<Request, String> {
        let archive = match files.archive.take() {
            Some((payload, file)) if payload == cell.payload => file,
            _ => {
                let bytes = files.filled(cell.payload)?;
                temporary(|path| std::fs::write(path, bytes))?
            }
        };
        if let Some(kexec) = &mut request.kexec {
            kexec.initrd = Some(archive.path().to_owned());
        }
        files.archive = Some((cell.payload, archive));
        Ok(request)
    }

    fn figures(&self, cell: &Cell, _files: &Files, boot: &Boot) -> Result<Figures, String> {
        read(cell, boot)
    }

    fn tables(&self, done: &Done) -> String {
        report::table(done)
    }

    fn json(&self, done: &Done) -> Value {
        report::json(self, done)
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

/// Under `-icount shift=0` an instruction takes one nanosecond of counter time.
const NANOSECONDS: u128 = 1_000_000_000;

fn read(cell: &Cell, boot: &Boot) -> Result<Figures, String> {
    let [first, next] = boot.boots.as_slice() else {
        return Err(format!(
            "{} kernels printed a record, expected one that leaves and the next",
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
    let requested = [
        ("page size", cell.page_size.bytes(), of("from_page_size")?),
        ("page size", cell.page_size.bytes(), of("to_page_size")?),
    ];
    if let Some((what, expected, took)) = requested
        .iter()
        .find(|(_, expected, took)| expected != took)
    {
        return Err(format!(
            "{what}: {expected} was requested, the kernel took {took}"
        ));
    }
    let uncached = next.get("kexec.uncached").and_then(Value::as_bool);
    if uncached != Some(cell.mmu == Mmu::Off) {
        return Err(format!(
            "MMU {} was requested, kexec.uncached is {uncached:?}",
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
    if cell.place == PayloadPlace::Copied && figures.bytes_copied < cell.payload {
        return Err(format!(
            "all was to be copied, of {} bytes {} were",
            cell.payload, figures.bytes_copied
        ));
    }
    Ok(figures)
}
