//! The cost of user memory as a table for people and as JSON.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::lines::{Measured, Op};
use super::{Bench, Build, Done, Programs, Ran, together};
use crate::bench::text::{Ended, Qemu, grouped};
use crate::json::{Version, rounded, value};
use crate::result::json::ImageObject;
use crate::sizes::show_size;

/// Result of `granule bench user --json`. The table for people goes to standard error. The exit code is 0 only
/// if every boot was `ok` and none is missing. For a command line that cannot be understood or carried out there is
/// no object, but a line on standard error, and the exit code is 2. Sizes are in bytes.
///
/// A round consists of these kinds of work:
/// - `touch`: the first write to each page;
/// - `fork`: a fork whose child exits at once;
/// - `reuse`: a write to each page, which no process shares any more;
/// - `fork-held`: a fork whose child sleeps until the parent has taken the time;
/// - `copy`: a write to each page while that child lives;
/// - `mprotect-read` and `mprotect-write`: to read-only, and back;
/// - `rewrite`: a write to each page after that;
/// - `loop`: a write to each page that causes no fault;
/// - `munmap`;
/// - `munmap-touched`: of as much memory that was mapped and touched once more, and no more.
///
/// After the rounds:
/// - `switch-same` and `switch-other`: switches between the program and another one of the same page size, or of
///   another one that the kernel has for programs (a row each), each with its call of `sched_yield`; the fewest
///   of five rounds;
/// - `getpid`, and `dup` to a descriptor that another file has; `munmap-part`, `mmap-part`, `mprotect-part` and
///   `mprotect-whole`: of single pages of an area whose pages were all written, the last of which makes it whole again;
///   `spawn`: `fork`, `execve` and the wait for a program that ends at once; `exec`: of one program by itself;
/// - `programs-N` (`--programs N`): what N small programs of 4K pages take that wait for input at once: all
///   memory that is gone, with their tables, stacks, and what the kernel keeps for each. Not on kernels that
///   have no programs of 4K;
/// - `mprotect-split-N` and `mprotect-merge-N` (`--areas N`): `mprotect` of the middle page of an area, which makes
///   it three areas, and back, where the program has N areas; `dontneed-N`: `madvise(MADV_DONTNEED)` of that page,
///   which was written; `mmap-N` and `munmap-N`: of two pages, where N areas have single free pages between them;
///   `munmap-one-N`: of two pages, one of which was read. Some areas fewer than N, so that none of these goes beyond it.
///
/// With `--together` there is a program of each page size, and a kind of work of each is a row. They take turns,
/// so that the counts of one are its own, while the others wait with all their memory. A round is `touch`, `fork`
/// and `munmap`; then `touch-at-once`, `fork-at-once` and `munmap-at-once`, in which all work and the kernel
/// switches between them as it does: instructions from the first order to the last answer, over pipes.
///
/// The child's exit is in none of them, except for the part of it that falls between the two readings of the
/// clock in `fork`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule bench user --json")]
pub(crate) struct Object {
    schema: Version,
    qemu: Qemu,
    /// RAM of the machine.
    memory: u64,
    /// Bytes that the program maps.
    bytes: u64,
    /// Number of rounds of the program.
    rounds: u32,
    /// Whether it was interrupted; the lists then have what was finished before.
    interrupted: bool,
    /// One object for each boot: page sizes, in each the builds.
    boots: Vec<BootObject>,
    /// One object for each boot that is `ok` and each kind of work, in their order; none for boots with
    /// `alone-`.
    rows: Vec<RowObject>,
}

/// A boot.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Boot")]
struct BootObject {
    /// `boot`, the image for every page size, or `fixed-4k`, `fixed-16k`, `fixed-64k`.
    build: String,
    /// Page size of the kernel.
    page_size: u64,
    /// `one`; with `--together`: `alone-4k`, `alone-16k`, `alone-64k`, one of that page size, or `together`, one
    /// of each.
    programs: String,
    image: ImageObject,
    #[serde(flatten)]
    ended: Ended,
    /// Peak of QEMU's resident host memory; null where the host does not count it.
    peak_resident_bytes: Option<u64>,
}

/// A kind of work in a boot.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Row")]
struct RowObject {
    /// As in `boots`.
    build: String,
    /// Page size of the program; of `programs-N` that of those programs.
    page_size: u64,
    /// Of a switch: page size of the other program; else null.
    other_page_size: Option<u64>,
    /// Page size of the kernel.
    kernel_page_size: u64,
    /// Whether the kernel mapped the memory in large leaves (`--large-leaves`).
    large_leaves: bool,
    /// Kind of work.
    op: String,
    /// Number of pages; null for work that is not on memory.
    pages: Option<u64>,
    /// Number of repetitions of the work between two readings of the clock: 1, but for work that is not on all of the memory.
    times: u64,
    /// Instructions of kernel and program from before the work until after it, in the round with the fewest; in
    /// steps of 16; null for `programs-N`.
    instructions: Option<u64>,
    /// The same in the median round.
    median_instructions: Option<u64>,
    /// The same in the round with the most.
    worst_instructions: Option<u64>,
    /// `instructions` divided by `pages`, to three places; null without `pages`.
    instructions_per_page: Option<f64>,
    /// TLBI instructions, whatever they invalidate and on which CPUs, in the round with the fewest instructions;
    /// exact, and counted by a plugin of QEMU, which the guest does not notice; null without `instructions`, and
    /// where `granule` has no plugin (built for other than Linux with glibc).
    tlbi: Option<u64>,
    /// DSB instructions, in the same way.
    dsb: Option<u64>,
    /// Of `programs-N`: bytes of RAM that are gone; else null.
    bytes: Option<u64>,
    /// For `boot`: percent that `instructions` is above that of the build for that page size, to four places;
    /// null for the other builds, if that build was not measured, and without `instructions`.
    over_fixed_percent: Option<f64>,
    /// With `--together`: `instructions` of the same work on the same kernel where the program is alone; of work
    /// of all at once, the sum; null if that was not measured, and without `--together`.
    alone_instructions: Option<u64>,
    /// Percent that `instructions` is above `alone_instructions`, to four places; null without.
    over_alone_percent: Option<f64>,
}

/// One operation of one boot.
struct Row<'a> {
    ran: &'a Ran,
    measured: &'a Measured,
    op: &'a Op,
    /// The same operation on the kernel built for the page size.
    fixed: Option<&'a Op>,
    /// Instructions of the same operation where a program is alone, or the sum of those where all are at once.
    alone: Option<u64>,
}

impl Row<'_> {
    /// The pages that it is work on.
    fn pages(&self) -> Option<u64> {
        let is_on_memory = self.op.times.is_none() && self.op.bytes.is_none();
        is_on_memory.then(|| self.measured.bytes / self.page_size())
    }

    /// The page size of the program.
    fn page_size(&self) -> u64 {
        self.op.page.unwrap_or(self.measured.page)
    }

    /// Instructions for a page, or for each time.
    fn each(&self) -> Option<f64> {
        let times = self.pages().or(self.op.times)?;
        Some(self.op.time?.best as f64 / times as f64)
    }

    /// The cost above the fixed build's, in percent.
    fn over_fixed(&self) -> Option<f64> {
        over(self.op.time?.best, self.fixed?.time?.best)
    }

    /// The cost above that of a program alone, in percent.
    fn over_alone(&self) -> Option<f64> {
        over(self.op.time?.best, self.alone?)
    }
}

fn over(own: u64, other: u64) -> Option<f64> {
    (other > 0).then(|| 100.0 * (own as f64 / other as f64 - 1.0))
}

fn rows(done: &Done) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for ran in &done.rows {
        let Some(measured) = &ran.figures else {
            continue;
        };
        let fixed = done.rows.iter().find(|other| {
            ran.cell.build == Build::Boot
                && other.cell.build == Build::Fixed
                && other.cell.page_size == ran.cell.page_size
        });
        let fixed = fixed.and_then(|ran| ran.figures.as_ref());
        // What they are for stands beside those of the programs together.
        if let Programs::Alone(_) = ran.cell.programs {
            continue;
        }
        rows.extend(measured.ops.iter().map(|op| Row {
            ran,
            measured,
            op,
            alone: together::alone(done, ran, op),
            fixed: fixed.and_then(|fixed| fixed.ops.iter().find(|other| op.is_same_work(other))),
        }));
    }
    rows
}

/// The JSON object.
pub fn json(bench: &Bench, done: &Done) -> Value {
    let boot = |ran: &Ran| BootObject {
        build: ran.cell.build(),
        page_size: ran.cell.page_size.bytes(),
        programs: ran.cell.programs(),
        image: ImageObject::of(&ran.boot),
        ended: Ended::of(&ran.boot),
        peak_resident_bytes: ran.boot.peak_resident_bytes,
    };
    let row = |row: &Row<'_>| {
        let (time, counts) = (row.op.time, row.op.counts);
        let percent = |percent: Option<f64>| percent.map(|percent| rounded(percent, 4));
        RowObject {
            build: row.ran.cell.build(),
            page_size: row.page_size(),
            other_page_size: row.op.other,
            kernel_page_size: row.ran.cell.page_size.bytes(),
            large_leaves: bench.large_leaves,
            op: row.op.name.clone(),
            pages: row.pages(),
            times: row.op.times.unwrap_or(1),
            instructions: time.map(|time| time.best),
            median_instructions: time.map(|time| time.median),
            worst_instructions: time.map(|time| time.worst),
            instructions_per_page: row.pages().and(row.each()).map(|each| rounded(each, 3)),
            tlbi: counts.map(|counts| counts.tlbi),
            dsb: counts.map(|counts| counts.dsb),
            bytes: row.op.bytes,
            over_fixed_percent: percent(row.over_fixed()),
            alone_instructions: row.alone,
            over_alone_percent: percent(row.over_alone()),
        }
    };
    value(Object {
        schema: Version,
        qemu: Qemu::of(&done.rows, &bench.cpu),
        memory: bench.memory,
        bytes: bench.bytes,
        rounds: bench.rounds,
        interrupted: done.interrupted,
        boots: done.rows.iter().map(boot).collect(),
        rows: rows(done).iter().map(row).collect(),
    })
}

/// The table, in Markdown.
pub(super) fn table(bench: &Bench, done: &Done) -> String {
    let beside = if bench.together { "alone" } else { "fixed" };
    let mut text = format!(
        "| build | pages | op | instructions | each | over {beside} | TLBI | DSB | bytes |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), grouped);
    for row in rows(done) {
        let over = row
            .over_fixed()
            .or(row.over_alone())
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.3} %"));
        let each = row
            .each()
            .map_or_else(|| "-".to_owned(), |each| format!("{each:.1}"));
        let other = match row.op.other.or(row.op.page) {
            Some(other) => format!(", {}", show_size(other)),
            None => String::new(),
        };
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {}{other} | {} | {each} | {over} | {} | {} | {} |",
            row.ran.cell.build(),
            row.ran.cell.page_size.word(),
            row.op.name,
            number(row.op.time.map(|time| time.best)),
            number(row.op.counts.map(|counts| counts.tlbi)),
            number(row.op.counts.map(|counts| counts.dsb)),
            number(row.op.bytes),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{bench, console, ran};
    use super::*;
    use crate::bench::series::{self, Benchmark};
    use crate::schema::assert_matches;
    use granule_testing::text::assert_contains;

    fn done(bench: &Bench) -> Done {
        let cells = bench.cells();
        let ops = |fork| [("touch", 16_384_000), ("fork", fork)];
        let row = |place: usize, fork| {
            let cell: super::super::Cell = cells[place];
            ran(bench, &cell, &console(bench, &cell, &ops(fork)))
        };
        let cut = ran(bench, &cells[3], "bench begin");
        Done {
            rows: vec![row(0, 1_010_000), row(1, 1_000_000), row(2, 5), cut],
            interrupted: true,
        }
    }

    #[test]
    fn rows_have_instructions_a_page_and_what_the_choice_at_boot_costs() {
        let bench = bench();
        let object = bench.json(&done(&bench));
        assert_matches("bench user", &object);
        assert_eq!(
            (&object["schema"], &object["bytes"]),
            (&json!(1), &json!(1 << 30))
        );
        assert_eq!(object["interrupted"], true);
        assert_eq!(object["qemu"]["cpu"], "neoverse-n1");
        let rows = object["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[0]["build"], "boot");
        assert_eq!(rows[0]["op"], "touch");
        assert_eq!(rows[0]["instructions"], 262_144_000);
        assert_eq!(rows[0]["instructions_per_page"], 1000.0);
        assert_eq!(rows[0]["over_fixed_percent"], 0.0);
        assert_eq!(rows[1]["over_fixed_percent"], 1.0);
        assert_eq!(rows[2]["build"], "fixed-4k");
        assert_eq!(rows[2]["over_fixed_percent"], Value::Null);
        // There is no fixed build to compare with.
        assert_eq!(rows[5]["page_size"], 65536);
        assert_eq!(rows[5]["over_fixed_percent"], Value::Null);
        assert_eq!(object["boots"][3]["outcome"], "refused");
    }

    #[test]
    fn the_table_leaves_out_what_failed_and_notes_it() {
        let bench = bench();
        let text = series::table(&bench, &done(&bench));
        assert_contains(
            &text,
            "| boot | 4k | fork | 16,160,000 | 61.6 | +1.000 % | - | - | - |",
        );
        assert!(!text.contains("| fixed-64k |"), "{text}");
        assert_contains(
            &text,
            "granule: fixed-64k, 64k pages, one: granule: refused:",
        );
        assert!(text.contains("interrupted after 4 of 4 boots"), "{text}");
    }
}
