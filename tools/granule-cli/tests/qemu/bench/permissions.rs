//! `granule bench permissions`: limits on the cost of a change, and merging, which gives all of it
//! back.

use std::process::Output;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Rodata;
use granule_cli::bench::permissions::{Bench, Row};

use crate::bench::rows;
use crate::hooked::granule;
use crate::image::image;

/// Random changes of each size: a million is for people.
const CHANGES: u64 = 2000;

fn rows(page_size: &[PageSize]) -> Vec<Row> {
    let bench = Bench {
        page_size: page_size.to_vec(),
        memory: 64 << 30,
        changes: CHANGES,
        rodata: Rodata::Noalias,
        cpu: "max".into(),
        on: rows::on_image(),
    };
    rows::measure("bench permissions", &bench).lines()
}

fn figure(row: &Row, name: &str) -> u64 {
    serde_json::to_value(row).unwrap()[name].as_u64().unwrap()
}

/// The row of a kind.
fn of<'a>(rows: &'a [Row], page_size: PageSize, bytes: u64, kind: &str) -> &'a Row {
    let found = rows
        .iter()
        .find(|row| (row.page_size, row.bytes) == (page_size.bytes(), bytes) && row.kind == kind);
    found.unwrap_or_else(|| panic!("no row {kind} of {bytes} bytes, {page_size:?}"))
}

#[test]
fn one_page_takes_three_tables_at_most_each_written_once_and_linked_by_one_store() {
    let rows = rows(&[K4]);
    let page = of(&rows, K4, 4096, "single");
    let tables = figure(page, "tables");
    assert!((1..=3).contains(&tables), "{page:?}");
    // Every entry of the tables once; the store that links the first of them; the page's own; and
    // the hint of the sixteen 1 GiB blocks that its block was a group with.
    assert_eq!(figure(page, "stores"), 512 * tables + 1 + 1 + 16);
    for name in ["leaves_split", "tlbi", "locks"] {
        assert_eq!(figure(page, name), 1, "{name} of {page:?}");
    }
    let merged = of(&rows, K4, 4096, "single-merge");
    assert_eq!(figure(merged, "tables"), tables);
    assert_eq!(figure(merged, "locks"), 1);
}

#[test]
fn merging_gives_back_what_changes_of_any_size_took() {
    let sizes = [K4, K16, K64];
    let rows = rows(&sizes);
    // 64K is a page where pages are 64K.
    assert_eq!(rows.len(), 4 * (4 + 4 + 3));
    for chunk in rows.chunks(4) {
        let [single, single_merge, random, random_merge] = chunk else {
            panic!("{chunk:?}");
        };
        for (made, merged) in [(single, single_merge), (random, random_merge)] {
            assert_eq!(merged.kind, format!("{}-merge", made.kind));
            assert_eq!(figure(made, "tables"), figure(merged, "tables"), "{made:?}");
            assert_eq!(figure(merged, "locks"), 1);
            assert!(figure(made, "instructions") > 0 && figure(merged, "instructions") > 0);
        }
        assert_eq!(figure(single, "locks"), 1);
        assert_eq!(figure(random, "locks"), CHANGES);
        // By range: one for the change of a range, or two where no single one has its length.
        assert!((1..=2).contains(&figure(single, "tlbi")), "{single:?}");
        assert!(figure(random, "tlbi") <= 2 * CHANGES, "{random:?}");
        assert!(figure(random, "leaves_split") >= figure(single, "leaves_split"));
    }
    // No table for what is a leaf, or a group of them, already.
    for size in sizes {
        assert_eq!(figure(of(&rows, size, 1 << 30, "random"), "tables"), 0);
    }
}

#[test]
fn the_command_prints_one_object_or_one_line_of_what_is_wrong() {
    let image = image();
    let bench = |words: &[&str]| {
        granule()
            .args(["bench", "permissions", "--json", "--image"])
            .arg(&image)
            .args(words)
            .output()
            .unwrap()
    };
    let words = ["--memory", "4G", "--page-size", "16k", "--changes", "10"];
    let output = bench(&words);
    assert!(output.status.success(), "{output:?}");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["changes"], 10);
    assert_eq!(object["rows"].as_array().unwrap().len(), 16);
    assert_eq!(object["rows"][2]["kind"], "random");
    assert_eq!(object["rows"][2]["locks"], 10);
    // A CPU that may not split live blocks: the kernel reports it, and there is no result.
    let words = ["--memory", "4G", "--page-size", "4k", "--cpu", "cortex-a53"];
    let output = bench(&words);
    assert_eq!(output.status.code(), Some(1));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["boots"][0]["outcome"], "panic");
    for (words, expected) in [
        (&["--memory", "0"][..], "no unit"),
        (&["--memory", "0G"], "needs RAM"),
        (&["--memory", "4097B"], "multiples of 8K"),
        (&["--changes", "0"], "--changes 0"),
        (&["--cpu", ""], "--cpu is empty"),
        (&["--rodata", "maybe"], "noalias"),
    ] {
        is_bad_usage(&bench(words), expected);
    }
    let output = granule()
        .args(["bench", "permissions", "--json", "--image", "/nonexistent"])
        .output()
        .unwrap();
    is_bad_usage(&output, "kernel image /nonexistent");
}

/// No object, but what is wrong.
fn is_bad_usage(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains(expected), "{printed}");
}
