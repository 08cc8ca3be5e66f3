//! The cost of user memory as a table for people and as JSON (schema 1, docs/bench-json.md).

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::lines::{Measured, Op};
use super::{Bench, Build, Done, Programs, Ran, together};
use crate::bench::text::{SCHEMA, grouped};
use crate::sizes::show_size;

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

fn rounded(number: f64, places: i32) -> f64 {
    let power = 10_f64.powi(places);
    (number * power).round() / power
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
#[must_use]
pub fn json(bench: &Bench, done: &Done) -> Value {
    let first = done.rows.first().map(|ran| ran.boot.json());
    let version = first.map_or(Value::Null, |boot| boot["qemu"]["version"].clone());
    let boots: Vec<Value> = done
        .rows
        .iter()
        .map(|ran| {
            let boot = ran.boot.json();
            json!({
                "build": ran.cell.build(),
                "page_size": ran.cell.page_size.bytes(),
                "programs": ran.cell.programs(),
                "image": boot["image"],
                "outcome": boot["outcome"],
                "reason": boot["reason"],
                "peak_resident_bytes": boot["qemu"]["peak_resident_bytes"],
            })
        })
        .collect();
    let rows: Vec<Value> = rows(done)
        .iter()
        .map(|row| {
            json!({
                "build": row.ran.cell.build(),
                "page_size": row.page_size(),
                "other_page_size": row.op.other,
                "kernel_page_size": row.ran.cell.page_size.bytes(),
                "large_leaves": bench.large_leaves,
                "op": row.op.name,
                "pages": row.pages(),
                "times": row.op.times.unwrap_or(1),
                "instructions": row.op.time.map(|time| time.best),
                "median_instructions": row.op.time.map(|time| time.median),
                "worst_instructions": row.op.time.map(|time| time.worst),
                "instructions_per_page": row.pages().and(row.each()).map(|each| rounded(each, 3)),
                "tlbi": row.op.counts.map(|counts| counts.tlbi),
                "dsb": row.op.counts.map(|counts| counts.dsb),
                "bytes": row.op.bytes,
                "over_fixed_percent": row.over_fixed().map(|percent| rounded(percent, 4)),
                "alone_instructions": row.alone,
                "over_alone_percent": row.over_alone().map(|percent| rounded(percent, 4)),
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "qemu": {
            "version": version,
            "cpu": bench.cpu,
        },
        "memory": bench.memory,
        "bytes": bench.bytes,
        "rounds": bench.rounds,
        "interrupted": done.interrupted,
        "boots": boots,
        "rows": rows,
    })
}

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
    use super::super::tests::{bench, console, ran};
    use super::*;
    use crate::bench::series::{self, Benchmark};

    fn done(bench: &Bench) -> Done {
        let cells = bench.cells();
        let ops = |fork| [("touch", 16_384_000), ("fork", fork)];
        let said = |place: usize, fork| {
            let cell: super::super::Cell = cells[place];
            ran(bench, &cell, &console(bench, &cell, &ops(fork)))
        };
        let cut = ran(bench, &cells[3], "bench begin");
        Done {
            rows: vec![said(0, 1_010_000), said(1, 1_000_000), said(2, 5), cut],
            interrupted: true,
        }
    }

    #[test]
    fn rows_have_instructions_a_page_and_what_the_choice_at_boot_costs() {
        let bench = bench();
        let object = bench.json(&done(&bench));
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
    fn the_table_leaves_out_what_failed_and_says_so() {
        let bench = bench();
        let text = series::table(&bench, &done(&bench));
        assert!(
            text.contains("| boot | 4k | fork | 16,160,000 | 61.6 | +1.000 % | - | - | - |"),
            "{text}"
        );
        assert!(!text.contains("| fixed-64k |"), "{text}");
        assert!(
            text.contains("granule: fixed-64k, 64k pages, one: granule: refused:"),
            "{text}"
        );
        assert!(text.contains("interrupted after 4 of 4 boots"), "{text}");
    }

    #[test]
    fn every_key_is_documented() {
        let bench = bench();
        let object = bench.json(&done(&bench));
        let document = include_str!("../../../../../docs/bench-json.md");
        let section = document
            .split("\n## ")
            .find(|section| section.starts_with("`granule bench user`"))
            .unwrap_or_default();
        let keys = |value: &Value, path: &str| -> Vec<String> {
            let object = value.as_object().unwrap();
            object.keys().map(|key| format!("`{path}{key}`")).collect()
        };
        let mut found = keys(&object["rows"][0], "rows[].");
        found.extend(keys(&object["boots"][0], "boots[]."));
        found.extend(keys(&object["qemu"], "qemu."));
        found.extend(keys(&object, "").into_iter().filter(|key| key != "`qemu`"));
        for key in found {
            assert!(section.contains(&key), "docs/bench-json.md lacks {key}");
        }
    }
}
