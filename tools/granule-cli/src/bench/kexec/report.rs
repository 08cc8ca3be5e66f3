//! The cost of leaving for another kernel as tables for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::published::{self, LINES, Line};
use super::{Bench, Cell, Done, Figures, Mmu, Row};
use crate::bench::text::{Ended, Head, grouped};
use crate::json::{optional, rounded, value};
use crate::sizes::show_size;

/// Result of `granule bench kexec --json`. The table for people goes to standard error. The exit code is 0 only
/// if every boot was `ok` and none is missing. For a command line that cannot be understood or carried out there is
/// no object, but a line on standard error, and the exit code is 2.
///
/// Sizes are in bytes. Instructions are multiples of a tick of the counter, 16.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule bench kexec --json")]
pub(crate) struct Object {
    #[serde(flatten)]
    head: Head,
    /// RAM of the machine.
    memory: u64,
    /// Whether the command was interrupted; `rows` then has the boots that were finished.
    interrupted: bool,
    /// One object for each boot, in their order: page sizes, in each the payloads, in each the places, in each
    /// the MMU.
    rows: Vec<RowObject>,
    /// Published results of Linux, whatever was measured.
    published: &'static [Line],
}

/// A boot; it has figures only if its outcome is `ok`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Row")]
struct RowObject {
    /// Page size of both kernels.
    page_size: u64,
    /// Bytes of image and initramfs.
    payload: u64,
    /// `copied` or `in-place`.
    place: &'static str,
    /// MMU while bytes are copied: `off` or `on`.
    mmu: &'static str,
    #[serde(flatten)]
    ended: Ended,
    /// Whether the files arrived intact, as in `granule boot`.
    digest_ok: Option<bool>,
    /// Peak of QEMU's resident host memory; null where the host does not count it.
    peak_resident_bytes: Option<u64>,
    #[serde(flatten)]
    #[schemars(with = "FiguresObject")]
    figures: Option<FiguresObject>,
}

/// Cost of one boot.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Figures", transform = optional)]
struct FiguresObject {
    /// Bytes of image, initramfs and device tree.
    bytes_total: u64,
    /// Bytes of these that were copied.
    bytes_copied: u64,
    /// Operations on cache lines, of every kind.
    lines_cleaned: u64,
    /// DSBs of the relocation.
    dsb: u64,
    /// TLBIs of the relocation.
    tlbi: u64,
    /// Loads and stores of the copied bytes, 16 bytes each, to Normal Cacheable memory: derived from
    /// `bytes_copied`, without those of the list (two a record).
    accesses_cached: u64,
    /// The same to Device memory, as all memory is with the MMU off.
    accesses_device: u64,
    /// Instructions from the call of `reboot` to the relocation code.
    shutdown_instructions: u64,
    /// Instructions from there to the next kernel's entry.
    relocation_instructions: u64,
    /// Instructions from the entry to the first line on the console.
    startup_console_instructions: u64,
    /// Instructions from the entry until the kernel is up, before its first process.
    startup_up_instructions: u64,
    /// Bytes of the plain copy in the same boot.
    yardstick_bytes: u64,
    /// Instructions of the plain copy.
    yardstick_instructions: u64,
    /// Instructions of the plain copy for 64 bytes.
    yardstick_per_line: f64,
    /// 1.1 times the plain copy of as many bytes, and an instruction for each operation on a line.
    bound_instructions: f64,
    /// `relocation_instructions` divided by the bound; null if nothing is copied and nothing cleaned.
    of_bound: Option<f64>,
    /// By machine: milliseconds that copying as many bytes is predicted to take there, from the published times.
    /// A machine is left out if the prediction is longer than a whole reboot published for as large a payload;
    /// empty if nothing was copied.
    #[schemars(with = "BTreeMap<String, f64>")]
    predicted_ms: serde_json::Map<String, Value>,
}

/// No prediction where nothing is copied: the published times are for copying.
fn predicted(cell: &Cell, figures: &Figures) -> Vec<(&'static str, f64)> {
    if figures.bytes_copied == 0 {
        return Vec::new();
    }
    published::predicted(figures.bytes_copied, cell.mmu == Mmu::Off).collect()
}

/// Accesses of the copied bytes: to cached memory, and to Device memory.
fn accesses(cell: &Cell, figures: &Figures) -> [u64; 2] {
    match cell.mmu {
        Mmu::On => [figures.accesses(), 0],
        Mmu::Off => [0, figures.accesses()],
    }
}

fn figures_object(cell: &Cell, figures: &Figures) -> FiguresObject {
    let [accesses_cached, accesses_device] = accesses(cell, figures);
    let predicted = predicted(cell, figures).into_iter();
    let of_bound = figures.of_bound();
    FiguresObject {
        bytes_total: figures.bytes_total,
        bytes_copied: figures.bytes_copied,
        lines_cleaned: figures.lines_cleaned,
        dsb: figures.dsb,
        tlbi: figures.tlbi,
        accesses_cached,
        accesses_device,
        shutdown_instructions: figures.shutdown,
        relocation_instructions: figures.relocation,
        startup_console_instructions: figures.to_console,
        startup_up_instructions: figures.to_up,
        yardstick_bytes: figures.yardstick.0,
        yardstick_instructions: figures.yardstick.1,
        yardstick_per_line: rounded(figures.yardstick_per_line(), 3),
        bound_instructions: figures.bound().round(),
        of_bound: of_bound.map(|part| rounded(part, 4)),
        predicted_ms: predicted
            .map(|(machine, ms)| (machine.to_owned(), rounded(ms, 3).into()))
            .collect(),
    }
}

/// The JSON object.
pub fn json(bench: &Bench, done: &Done) -> Value {
    let row = |row: &Row| RowObject {
        page_size: row.cell.page_size.bytes(),
        payload: row.cell.payload,
        place: row.cell.place.word(),
        mmu: row.cell.mmu.word(),
        ended: Ended::of(&row.boot),
        digest_ok: row.boot.kexec.as_ref().and_then(|kexec| kexec.digest_ok),
        peak_resident_bytes: row.boot.peak_resident_bytes,
        figures: row
            .figures
            .as_ref()
            .map(|figures| figures_object(&row.cell, figures)),
    };
    value(Object {
        head: Head::of(&done.rows, &bench.cpu),
        memory: bench.memory,
        interrupted: done.interrupted,
        rows: done.rows.iter().map(row).collect(),
        published: &LINES,
    })
}

/// The tables, in Markdown: phases, the relocation's work, the published times.
pub(super) fn table(done: &Done) -> String {
    let measured = || {
        done.rows
            .iter()
            .filter_map(|row| Some((&row.cell, row.figures.as_ref()?)))
    };
    let name = |cell: &Cell| {
        format!(
            "| {} | {} | {} | {} |",
            cell.page_size.word(),
            show_size(cell.payload),
            cell.place.word(),
            cell.mmu.word()
        )
    };
    let mut text = String::from(
        "instructions\n\n\
         | pages | payload | place | MMU | shutdown | relocation | startup to console | to up | of bound |\n\
         | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (cell, figures) in measured() {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{} {} | {} | {} | {} | {} |",
            name(cell),
            grouped(figures.shutdown),
            grouped(figures.relocation),
            grouped(figures.to_console),
            grouped(figures.to_up),
            figures
                .of_bound()
                .map_or_else(|| "nothing to do".into(), |part| format!("{part:.3}"))
        );
    }
    text += "\n| pages | payload | place | MMU | bytes copied | lines | DSB | TLBI | accesses cached | device \
             | predicted ms |\n\
             | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
    for (cell, figures) in measured() {
        let [cached, device] = accesses(cell, figures);
        let predicted: Vec<String> = predicted(cell, figures)
            .into_iter()
            .map(|(machine, ms)| format!("{ms:.1} {machine}"))
            .collect();
        let _ = writeln!(
            text,
            "{} {} | {} | {} | {} | {} | {} | {} |",
            name(cell),
            grouped(figures.bytes_copied),
            grouped(figures.lines_cleaned),
            figures.dsb,
            figures.tlbi,
            grouped(cached),
            grouped(device),
            predicted.join(", ")
        );
    }
    text += "\npublished of Linux, milliseconds\n\n\
             | machine | MiB | phase | MMU off | MMU on |\n\
             | --- | ---: | --- | ---: | ---: |\n";
    for line in &LINES {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} |",
            line.machine,
            line.payload_mib,
            line.phase,
            1000.0 * line.off,
            1000.0 * line.on
        );
    }
    text
}
