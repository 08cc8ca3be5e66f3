//! The report of `granule bench permissions`: a table, and JSON.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Bench, Done, Ran, Row, number};
use crate::bench::text::{Ended, Head, grouped};
use crate::json::value;
use crate::result::guest::BbmLevel;
use crate::sizes::show_size;

/// Result of `granule bench permissions --json`. The table for people goes to standard error. The exit code is 0
/// only if every boot was `ok` and none is missing. For a command line that cannot be understood or carried out
/// there is no object, but a line on standard error, and the exit code is 2.
///
/// After each merge the kernel compares every leaf of the map, and the free pages, with those before the
/// changes. A boot in which they differ is not `ok`. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule bench permissions --json")]
pub(crate) struct Object {
    #[serde(flatten)]
    head: Head,
    /// RAM of the machine.
    memory: u64,
    /// Requested protection.
    rodata: &'static str,
    /// Random changes of each size.
    changes: u64,
    /// Whether it was interrupted; the lists then have what was finished before.
    interrupted: bool,
    /// One object for each page size.
    boots: Vec<BootObject>,
    /// One object for each page size, size of change and kind, in this order.
    rows: Vec<Row>,
}

/// A boot.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Boot")]
struct BootObject {
    /// Requested page size.
    page_size: u64,
    #[serde(flatten)]
    ended: Ended,
    #[schemars(with = "BbmLevel")]
    bbm_level: Value,
    /// Whether every CPU that is up has TLB invalidation by range; null if the kernel did not print it.
    #[schemars(with = "Option<bool>")]
    tlbi_range: Value,
    /// GiB in which random changes are made; the boot and the tables keep the rest of RAM. Null if the kernel did
    /// not print it.
    blocks: Option<u64>,
    /// Peak of QEMU's resident host memory; null where the host does not count it.
    peak_resident_bytes: Option<u64>,
}

/// The JSON object.
pub fn json(bench: &Bench, done: &Done) -> Value {
    let boot = |ran: &Ran| {
        let mut boot = ran.boot.json();
        BootObject {
            page_size: ran.cell.bytes(),
            ended: Ended::of(&ran.boot),
            bbm_level: boot["bbm_level"].take(),
            tlbi_range: boot["tlbi_range"].take(),
            blocks: number(&ran.boot, "blocks"),
            peak_resident_bytes: ran.boot.peak_resident_bytes,
        }
    };
    value(Object {
        head: Head::of(&done.rows, &bench.cpu),
        memory: bench.memory,
        rodata: bench.rodata.word(),
        changes: bench.changes,
        interrupted: done.interrupted,
        boots: done.rows.iter().map(boot).collect(),
        rows: done.lines(),
    })
}

/// The table, in Markdown.
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
        for figure in row.figures.all() {
            let _ = write!(text, " {} |", grouped(figure));
        }
        text.push('\n');
    }
    text
}
