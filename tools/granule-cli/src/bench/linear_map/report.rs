//! The rows of a benchmark as a table for people and as JSON (schema 1, docs/bench-json.md).

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Bench, Done, Row};
use crate::bench::series::Benchmark;
use crate::bench::text::{SCHEMA, grouped};
use crate::sizes::show_size;

/// The figures that are compared with `base`.
const FIGURES: [&str; 6] = [
    "instructions",
    "tlbi",
    "dsb",
    "isb",
    "descriptor_stores",
    "tables",
];

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
    (base > 0).then(|| (own as f64 / base as f64 * 1e6).round() / 1e6)
}

/// The JSON object.
#[must_use]
pub fn json(bench: &Bench, done: &Done) -> Value {
    let first = done.rows.first().map(|row| row.boot.json());
    let of_first = |key: &str| first.as_ref().map_or(Value::Null, |boot| boot[key].clone());
    let rows: Vec<Value> = done
        .rows
        .iter()
        .map(|row| {
            let base = base(&done.rows, row);
            let boot = row.boot.json();
            let ratios: Map<String, Value> = FIGURES
                .iter()
                .map(|figure| ((*figure).to_owned(), json!(ratio(row, base, figure))))
                .collect();
            json!({
                "page_size": row.cell.page_size.bytes(),
                "memory": row.cell.memory,
                "rodata": row.cell.rodata.word(),
                "strategy": row.cell.form.strategy.word(),
                "barriers": row.cell.form.barriers(),
                "outcome": boot["outcome"],
                "reason": boot["reason"],
                "va_bits": boot["va_bits"],
                "lpa2": boot["lpa2"],
                "peak_resident_bytes": boot["qemu"]["peak_resident_bytes"],
                "linear_map": boot["linear_map"],
                "ratio_to_base": ratios,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "image": of_first("image"),
        "qemu": {
            "version": of_first("qemu")["version"],
            "cpu": bench.cpu,
        },
        "cells": bench.cells().len(),
        "interrupted": done.interrupted,
        "rows": rows,
    })
}

pub(super) fn table(done: &Done) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "| pages | RAM | rodata | strategy | barriers | instructions | TLBI | DSB | ISB | stores | tables | instructions / base | TLBI / base | DSB / base |\n\
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

    fn row(strategy: LinearMap, outcome: Outcome, lines: &[&str]) -> Row {
        let mut boot = boot::run(&Request {
            image: Some("/nonexistent".into()),
            ..Request::default()
        });
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
    fn the_table_leaves_out_what_failed_and_says_so() {
        let text = series::table(&bench(), &done());
        assert!(
            text.contains("| 4k | 4G | full | base | entry | 1,234,560 | 400 |"),
            "{text}"
        );
        assert!(text.contains("| 0.1000 | 0.2500 | - |"), "{text}");
        assert!(!text.contains("| direct |"), "{text}");
        assert!(text.contains("direct: granule: timeout"), "{text}");
        assert!(text.contains("interrupted after 3 of 6 boots"), "{text}");
    }

    #[test]
    fn instructions_that_were_not_counted_are_told_with_the_reason() {
        let lines = ["linear_map.tlbi=400", "linear_map.not_counted=too many"];
        let done = Done {
            rows: vec![row(LinearMap::Base, Outcome::Ok, &lines)],
            interrupted: false,
        };
        let text = series::table(&bench(), &done);
        assert!(text.contains("| base | entry | - | 400 |"), "{text}");
        assert!(
            text.contains("base: instructions not counted: too many"),
            "{text}"
        );
        let object = bench().json(&done);
        let map = &object["rows"][0]["linear_map"];
        assert_eq!(map["instructions"], Value::Null);
        assert_eq!(map["not_counted"], "too many");
    }

    #[test]
    fn every_key_is_documented() {
        fn keys(value: &Value, path: &str, into: &mut Vec<String>) {
            for (key, value) in value.as_object().unwrap() {
                let path = format!("{path}{key}");
                match value {
                    // The other keys of a boot are documented with the boot.
                    Value::Object(_) if key != "linear_map" && key != "image" => {
                        keys(value, &format!("{path}."), into);
                    }
                    _ => into.push(path),
                }
            }
        }
        let object = bench().json(&done());
        let mut found = Vec::new();
        keys(&object, "", &mut found);
        keys(&object["rows"][0], "rows[].", &mut found);
        let document = include_str!("../../../../../docs/bench-json.md");
        for key in found {
            assert!(
                document.contains(&format!("`{key}`")),
                "docs/bench-json.md lacks {key}"
            );
        }
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_719_085), "1,719,085");
    }
}
