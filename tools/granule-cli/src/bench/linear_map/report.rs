//! The rows of a benchmark as a table for people and as JSON.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Bench, Done, Row};
use crate::bench::series::Benchmark;
use crate::bench::text::{Ended, Head, grouped};
use crate::json::{rounded, value};
use crate::result::guest::LinearMap;
use crate::sizes::show_size;

/// Result of `granule bench linear-map --json`. The table for people goes to standard error. The exit code is 0
/// only if every boot was `ok` and none is missing. For a command line that cannot be understood or carried out
/// (41 bits of virtual address, a missing image) there is no object, but a line on standard error, and the exit
/// code is 2.
///
/// Every boot runs under `-icount`, so all counts repeat exactly. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule bench linear-map --json")]
pub(crate) struct Object {
    #[serde(flatten)]
    head: Head,
    /// Number of requested boots.
    cells: usize,
    /// Whether the command was interrupted; `rows` then has the boots that were finished.
    interrupted: bool,
    /// One object for each boot, in their order: page sizes, in each the protections, in each RAM, in each the
    /// strategies.
    rows: Vec<RowObject>,
}

/// A boot.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Row")]
struct RowObject {
    /// Requested page size.
    page_size: u64,
    /// RAM of the machine.
    memory: u64,
    /// Requested protection: `off`, `noalias`, `on`, `full`.
    rodata: &'static str,
    /// `base`, `no-cont-remap`, `batch-barriers`, `no-alloc-remap`, `lazy-unmap`, `direct`.
    strategy: &'static str,
    /// Whether a published way issues barriers for each page `entry` or each `table`; `table` for `direct`.
    barriers: &'static str,
    #[serde(flatten)]
    ended: Ended,
    /// Bits of virtual address; null if the kernel did not print it.
    #[schemars(with = "Option<u64>")]
    va_bits: Value,
    /// Whether the 52-bit descriptor format is in use; null likewise.
    #[schemars(with = "Option<bool>")]
    lpa2: Value,
    /// Peak of QEMU's resident host memory; null where the host does not count it.
    peak_resident_bytes: Option<u64>,
    /// Linear map as of `granule boot`; if `instructions` is null in a row that is `ok`, `not_counted` is why.
    #[schemars(with = "LinearMap")]
    linear_map: Value,
    ratio_to_base: Ratios,
}

/// Figures of `linear_map` divided by those of the first row with strategy `base` and the same page size, RAM
/// and protection, to six places; null if there is none.
#[derive(Serialize, JsonSchema)]
struct Ratios {
    /// Instructions.
    instructions: Option<f64>,
    /// TLBIs.
    tlbi: Option<f64>,
    /// DSBs.
    dsb: Option<f64>,
    /// ISBs.
    isb: Option<f64>,
    /// Descriptors written.
    descriptor_stores: Option<f64>,
    /// Tables.
    tables: Option<f64>,
}

/// The row of the first form of `base` with the same page size, memory and protection, if that boot
/// was ok.
fn base<'a>(rows: &'a [Row], row: &Row) -> Option<&'a Row> {
    rows.iter().find(|other| {
        let (a, b) = (&other.cell, &row.cell);
        other.boot.is_ok()
            && a.form.strategy == crate::request::LinearMap::Base
            && (a.page_size, a.memory, a.rodata) == (b.page_size, b.memory, b.rodata)
    })
}

/// A figure as a ratio to `base`'s.
fn ratio(row: &Row, base: Option<&Row>, figure: &str) -> Option<f64> {
    let (own, base) = (row.figure(figure)?, base?.figure(figure)?);
    // A millionth is finer than any figure needs.
    (base > 0).then(|| rounded(own as f64 / base as f64, 6))
}

/// The JSON object.
pub fn json(bench: &Bench, done: &Done) -> Value {
    let row = |row: &Row| {
        let base = base(&done.rows, row);
        let ratio = |figure| ratio(row, base, figure);
        let mut boot = row.boot.json();
        RowObject {
            page_size: row.cell.page_size.bytes(),
            memory: row.cell.memory,
            rodata: row.cell.rodata.word(),
            strategy: row.cell.form.strategy.word(),
            barriers: row.cell.form.barriers(),
            ended: Ended::of(&row.boot),
            va_bits: boot["va_bits"].take(),
            lpa2: boot["lpa2"].take(),
            peak_resident_bytes: row.boot.peak_resident_bytes,
            linear_map: boot["linear_map"].take(),
            ratio_to_base: Ratios {
                instructions: ratio("instructions"),
                tlbi: ratio("tlbi"),
                dsb: ratio("dsb"),
                isb: ratio("isb"),
                descriptor_stores: ratio("descriptor_stores"),
                tables: ratio("tables"),
            },
        }
    };
    value(Object {
        head: Head::of(&done.rows, &bench.cpu),
        cells: bench.cells().len(),
        interrupted: done.interrupted,
        rows: done.rows.iter().map(row).collect(),
    })
}

/// The table, in Markdown.
pub(super) fn table(done: &Done) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "| pages | RAM | rodata | strategy | barriers | instructions | TLBI | DSB | ISB | stores | \
         tables | instructions / base | TLBI / base | DSB / base |\n\
         | --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for row in done.rows.iter().filter(|row| row.boot.is_ok()) {
        let cell = &row.cell;
        let base = base(&done.rows, row);
        let figure = |name| row.figure(name).map_or_else(|| "-".into(), grouped);
        let share = |name| {
            ratio(row, base, name).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}"))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            cell.page_size.word(),
            show_size(cell.memory),
            cell.rodata.word(),
            cell.form.strategy.word(),
            cell.form.barriers(),
            figure("instructions"),
            figure("tlbi"),
            figure("dsb"),
            figure("isb"),
            figure("descriptor_stores"),
            figure("tables"),
            share("instructions"),
            share("tlbi"),
            share("dsb"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::linear_map::{Cell, Form};
    use crate::bench::series;
    use crate::boot;
    use crate::request::{LinearMap, PageSize, Request, Rodata};
    use crate::result::Outcome;
    use crate::schema::assert_matches;
    use granule_testing::text::assert_contains;

    fn row(strategy: LinearMap, outcome: Outcome, lines: &[&str]) -> Row {
        let mut boot = boot::run(&Request::default().image("/nonexistent"));
        boot.outcome = outcome;
        if outcome == Outcome::Ok {
            boot.reason = None;
        }
        for line in lines {
            boot.record.line(line);
        }
        let form = Form {
            strategy,
            barriers: None,
        };
        let cell = Cell {
            page_size: PageSize::K4,
            memory: 4 << 30,
            rodata: Rodata::Full,
            form,
        };
        Row {
            cell,
            boot,
            figures: None,
        }
    }

    fn bench() -> Bench {
        Bench {
            memory: vec![4 << 30],
            page_size: vec![PageSize::K4],
            ..super::super::tests::bench()
        }
    }

    fn done() -> Done {
        Done {
            rows: vec![
                row(
                    LinearMap::Base,
                    Outcome::Ok,
                    &["linear_map.tlbi=400", "linear_map.instructions=1234560"],
                ),
                row(
                    LinearMap::LazyUnmap,
                    Outcome::Ok,
                    &["linear_map.tlbi=100", "linear_map.instructions=123456"],
                ),
                row(LinearMap::Direct, Outcome::Timeout, &["linear_map.tlbi=1"]),
            ],
            interrupted: true,
        }
    }

    #[test]
    fn rows_have_their_figures_and_the_ratio_to_base() {
        let object = bench().json(&done());
        assert_matches("bench linear-map", &object);
        assert_eq!(object["schema"], 1);
        assert_eq!(object["interrupted"], true);
        assert_eq!(object["cells"], 6);
        assert_eq!(object["qemu"]["cpu"], "neoverse-n1");
        let rows = object["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0]["strategy"], "base");
        assert_eq!(rows[0]["barriers"], "entry");
        assert_eq!(rows[1]["barriers"], "table");
        assert_eq!(rows[1]["memory"], 4_u64 << 30);
        assert_eq!(rows[1]["linear_map"]["tlbi"], 100);
        assert_eq!(rows[1]["ratio_to_base"]["tlbi"], 0.25);
        assert_eq!(rows[1]["ratio_to_base"]["instructions"], 0.1);
        assert_eq!(rows[1]["ratio_to_base"]["dsb"], Value::Null);
        assert_eq!(rows[2]["outcome"], "timeout");
    }

    #[test]
    fn without_base_there_is_no_ratio() {
        let mut done = done();
        done.rows.remove(0);
        let object = bench().json(&done);
        assert_eq!(object["rows"][0]["ratio_to_base"]["tlbi"], Value::Null);
        assert!(series::table(&bench(), &done).contains("| - | - | - |"));
    }

    #[test]
    fn the_table_leaves_out_what_failed_and_notes_it() {
        let text = series::table(&bench(), &done());
        assert_contains(&text, "| 4k | 4G | full | base | entry | 1,234,560 | 400 |");
        assert!(text.contains("| 0.1000 | 0.2500 | - |"), "{text}");
        assert!(!text.contains("| direct |"), "{text}");
        assert!(text.contains("direct: granule: timeout"), "{text}");
        assert!(text.contains("interrupted after 3 of 6 boots"), "{text}");
    }

    #[test]
    fn instructions_that_were_not_counted_are_null_with_the_reason() {
        let lines = ["linear_map.tlbi=400", "linear_map.not_counted=too many"];
        let done = Done {
            rows: vec![row(LinearMap::Base, Outcome::Ok, &lines)],
            interrupted: false,
        };
        let text = series::table(&bench(), &done);
        assert!(text.contains("| base | entry | - | 400 |"), "{text}");
        assert_contains(&text, "base: instructions not counted: too many");
        let object = bench().json(&done);
        let map = &object["rows"][0]["linear_map"];
        assert_eq!(map["instructions"], Value::Null);
        assert_eq!(map["not_counted"], "too many");
    }
}
