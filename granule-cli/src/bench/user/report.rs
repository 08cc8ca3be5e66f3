//! The cost of user memory as a table for people and as JSON (schema 1, docs/bench-json.md).

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::lines::{Measured, Op};
use super::{Bench, Build, Done, Ran};
use crate::bench::text::{SCHEMA, grouped};

/// One operation of one boot.
struct Row<'a> {
    ran: &'a Ran,
    measured: &'a Measured,
    op: &'a Op,
    /// The same operation on the kernel built for the page size.
    fixed: Option<&'a Op>,
}

impl Row<'_> {
    fn per_page(&self) -> f64 {
        self.op.best as f64 / self.measured.pages as f64
    }

    /// The cost above the fixed build's, in percent.
    fn over_fixed(&self) -> Option<f64> {
        let fixed = self.fixed?.best;
        (fixed > 0).then(|| 100.0 * (self.op.best as f64 / fixed as f64 - 1.0))
    }
}

fn rounded(number: f64, places: i32) -> f64 {
    let power = 10_f64.powi(places);
    (number * power).round() / power
}

fn rows(done: &Done) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for ran in &done.boots {
        let Some(measured) = &ran.measured else {
            continue;
        };
        let fixed = done.boots.iter().find(|other| {
            ran.cell.build == Build::Boot
                && other.cell.build == Build::Fixed
                && other.cell.page_size == ran.cell.page_size
        });
        let fixed = fixed.and_then(|ran| ran.measured.as_ref());
        rows.extend(measured.ops.iter().map(|op| Row {
            ran,
            measured,
            op,
            fixed: fixed.and_then(|fixed| fixed.ops.iter().find(|other| other.name == op.name)),
        }));
    }
    rows
}

/// The JSON object.
#[must_use]
pub fn json(bench: &Bench, done: &Done) -> Value {
    let first = done.boots.first().map(|ran| ran.boot.json());
    let version = first.map_or(Value::Null, |boot| boot["qemu"]["version"].clone());
    let boots: Vec<Value> = done
        .boots
        .iter()
        .map(|ran| {
            let boot = ran.boot.json();
            json!({
                "build": ran.cell.build(),
                "page_size": ran.cell.page_size.bytes(),
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
                "page_size": row.measured.page,
                "kernel_page_size": row.ran.cell.page_size.bytes(),
                "large_leaves": bench.large_leaves,
                "op": row.op.name,
                "pages": row.measured.pages,
                "instructions": row.op.best,
                "median_instructions": row.op.median,
                "worst_instructions": row.op.worst,
                "instructions_per_page": rounded(row.per_page(), 3),
                "over_fixed_percent": row.over_fixed().map(|percent| rounded(percent, 4)),
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

/// The table, in Markdown; boots that were not ok are listed below it.
#[must_use]
pub fn table(bench: &Bench, done: &Done) -> String {
    let mut text = String::from(
        "| build | pages | op | instructions | per page | over fixed |\n\
         | --- | --- | --- | ---: | ---: | ---: |\n",
    );
    for row in rows(done) {
        let over = row
            .over_fixed()
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.3} %"));
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} | {over} |",
            row.ran.cell.build(),
            row.ran.cell.page_size.word(),
            row.op.name,
            grouped(row.op.best),
            row.per_page(),
        );
    }
    for ran in done.boots.iter().filter(|ran| !ran.boot.is_ok()) {
        let _ = writeln!(
            text,
            "granule: {}, {} pages: {}",
            ran.cell.build(),
            ran.cell.page_size.word(),
            ran.boot.last_line()
        );
    }
    if done.interrupted {
        let _ = writeln!(
            text,
            "granule: interrupted after {} of {} boots",
            done.boots.len(),
            bench.cells().len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bench, console, ran};
    use super::*;

    fn done(bench: &Bench) -> Done {
        let cells = bench.cells();
        let ops = |fork| [("touch", 16_384_000), ("fork", fork)];
        let said = |place: usize, fork| {
            let cell: super::super::Cell = cells[place];
            ran(bench, cell, &console(bench, cell, &ops(fork)))
        };
        let cut = ran(bench, cells[3], "bench begin");
        Done {
            boots: vec![said(0, 1_010_000), said(1, 1_000_000), said(2, 5), cut],
            interrupted: true,
        }
    }

    #[test]
    fn rows_have_instructions_a_page_and_what_the_choice_at_boot_costs() {
        let bench = bench();
        let object = json(&bench, &done(&bench));
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
        let text = table(&bench, &done(&bench));
        assert!(
            text.contains("| boot | 4k | fork | 16,160,000 | 61.6 | +1.000 % |"),
            "{text}"
        );
        assert!(!text.contains("| fixed-64k |"), "{text}");
        assert!(
            text.contains("granule: fixed-64k, 64k pages: granule: refused:"),
            "{text}"
        );
        assert!(text.contains("interrupted after 4 of 4 boots"), "{text}");
    }

    #[test]
    fn every_key_is_documented() {
        let bench = bench();
        let object = json(&bench, &done(&bench));
        let document = include_str!("../../../../docs/bench-json.md");
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
