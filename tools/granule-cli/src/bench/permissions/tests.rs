//! Tests that turn a boot's figures into rows, a table and JSON.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::bench::args::ImageArgs;
use crate::bench::progress::Bar;
use crate::boot;
use crate::request::Rodata;
use crate::result::Outcome;
use crate::schema::assert_matches;
use granule_testing::text::assert_contains;

fn bench() -> Bench {
    Bench {
        page_size: vec![PageSize::K4, PageSize::K64],
        memory: 64 << 30,
        changes: 100,
        rodata: Rodata::Noalias,
        cpu: "max".into(),
        on: ImageArgs::nowhere(),
    }
}

/// A boot whose kernel reported every figure of one size.
fn measured(bench: &Bench) -> Ran {
    let page_size = PageSize::K4;
    let mut boot = boot::run(&bench.request(&page_size));
    boot.outcome = Outcome::Ok;
    boot.reason = None;
    boot.record.line("page_size=4096");
    boot.record.line("bench.changes=100");
    boot.record.line("bench.blocks=62");
    boot.record.line("bench.page.bytes=4096");
    for (place, kind) in KINDS.iter().enumerate() {
        let names = [
            "leaves_split",
            "tables",
            "stores",
            "tlbi",
            "dsb",
            "isb",
            "instructions",
            "locks",
        ];
        for (figure, name) in names.iter().enumerate() {
            let line = format!("bench.page.{kind}.{name}={}", 1000 * place + figure);
            boot.record.line(&line);
        }
    }
    Ran {
        cell: page_size,
        boot,
        figures: None,
    }
}

#[test]
fn rows_are_what_the_kernel_reported_in_order() {
    let bench = bench();
    let one = measured(&bench);
    assert_eq!(bench.figures(&one.cell, &(), &one.boot), Ok(()));
    let rows = rows(one.cell, &one.boot);
    let kinds: Vec<_> = rows.iter().map(|row| row.kind.as_str()).collect();
    assert_eq!(kinds, ["single", "single-merge", "random", "random-merge"]);
    assert_eq!(rows[2].figures.tlbi, 2003);
    assert_eq!(rows[0].figures.locks, 7);
    let done = Done {
        rows: vec![one],
        interrupted: true,
    };
    assert!(!done.is_ok());
    let object = bench.json(&done);
    assert_matches("bench permissions", &object);
    assert_eq!(object["rows"][2]["tlbi"], 2003);
    let text = series::table(&bench, &done);
    assert_contains(&text, "| 4K | 4K | random | 2,000 | 2,001 |");
    assert!(text.contains("interrupted after 1 of 2 boots"), "{text}");
}

#[test]
fn a_record_with_a_hole_or_of_something_else_is_not_a_result() {
    let bench = bench();
    let mut hole = measured(&bench);
    hole.boot.record.line("bench.m2.bytes=2097152");
    let line = bench.figures(&hole.cell, &(), &hole.boot).unwrap_err();
    assert!(line.contains("4 rows, expected 8"), "{line}");
    let mut less = measured(&bench);
    less.boot.record.line("bench.changes=99");
    let line = bench.figures(&less.cell, &(), &less.boot).unwrap_err();
    assert!(line.contains("100 random changes"), "{line}");
    let mut other = measured(&bench);
    other.cell = PageSize::K16;
    let line = bench.figures(&other.cell, &(), &other.boot).unwrap_err();
    assert!(line.contains("16384"), "{line}");
}

#[test]
fn bad_usage_ends_it_and_an_interrupted_boot_is_not_a_row() {
    let bench = bench();
    let run = |interrupt| {
        let bar = &mut Bar::of(&bench);
        series::run(&bench, (), bar, &AtomicBool::new(interrupt)).unwrap()
    };
    let done = run(false);
    assert!(done.rows.len() == 1 && !done.is_ok() && done.rows[0].boot.bad_usage);
    let done = run(true);
    assert!(done.interrupted && done.rows.is_empty());
}
