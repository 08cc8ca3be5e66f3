//! The report of `granule bench permissions`: a table, and JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Bench, Done, FIGURES, Row, number};
use crate::bench::text::{SCHEMA, grouped};
use crate::sizes::show_size;

/// The JSON object (schema 1, docs/bench-json.md).
#[must_use]
pub fn json(bench: &Bench, done: &Done) -> Value {
    let first = done.rows.first().map(|ran| ran.boot.json());
    let of_first = |key: &str| first.as_ref().map_or(Value::Null, |boot| boot[key].clone());
    let boots: Vec<Value> = done
        .rows
        .iter()
        .map(|ran| {
            let boot = ran.boot.json();
            json!({
                "page_size": ran.cell.bytes(),
                "outcome": boot["outcome"],
                "reason": boot["reason"],
                "bbm_level": boot["bbm_level"],
                "tlbi_range": boot["tlbi_range"],
                "blocks": number(&ran.boot, "blocks"),
                "peak_resident_bytes": boot["qemu"]["peak_resident_bytes"],
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
        "memory": bench.memory,
        "rodata": bench.rodata.word(),
        "changes": bench.changes,
        "interrupted": done.interrupted,
        "boots": boots,
        "rows": done.lines().iter().map(line).collect::<Vec<_>>(),
    })
}

pub(super) fn table(done: &Done) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "| pages | change | kind | leaves split | tables | stores | TLBI | DSB | ISB | instructions | locks |\n\
         | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for row in done.lines() {
        let _ = write!(
            text,
            "| {} | {} | {} |",
            show_size(row.page_size),
            show_size(row.bytes),
            row.kind
        );
        for figure in row.figures {
            let _ = write!(text, " {} |", grouped(figure));
        }
        text.push('\n');
    }
    text
}

/// One line of the results.
fn line(row: &Row) -> Value {
    let mut line = Map::new();
    line.insert("page_size".into(), row.page_size.into());
    line.insert("bytes".into(), row.bytes.into());
    line.insert("kind".into(), row.kind.as_str().into());
    for (name, value) in FIGURES.iter().zip(row.figures) {
        line.insert((*name).into(), value.into());
    }
    Value::Object(line)
}
