//! Tests that turn a boot's figures into rows, a table and JSON.

use super::report::{json, table};
use super::*;
use crate::result::Outcome;

fn bench() -> Bench {
    Bench {
        page_size: vec![PageSize::K4, PageSize::K64],
        memory: 64 << 30,
        changes: 100,
        rodata: Rodata::Noalias,
        cpu: "max".into(),
        qemu: "/nonexistent/qemu".into(),
        image: Some("/nonexistent/Image".into()),
        timeout: Duration::from_secs(1),
    }
}

/// A boot whose kernel reported every figure of one size.
fn measured(bench: &Bench) -> Measured {
    let page_size = PageSize::K4;
    let mut boot = boot::run(&bench.request(page_size));
    boot.outcome = Outcome::Ok;
    boot.reason = None;
    boot.record.line("page_size=4096");
    boot.record.line("bench.changes=100");
    boot.record.line("bench.blocks=62");
    boot.record.line("bench.page.bytes=4096");
    for (place, kind) in KINDS.iter().enumerate() {
        for (figure, name) in FIGURES.iter().enumerate() {
            let line = format!("bench.page.{kind}.{name}={}", 1000 * place + figure);
            boot.record.line(&line);
        }
    }
    Measured { page_size, boot }
}

#[test]
fn rows_are_what_the_kernel_said_in_order() {
    let bench = bench();
    let one = measured(&bench);
    assert_eq!(one.other_than_asked(&bench), None);
    let rows = one.rows();
    let kinds: Vec<_> = rows.iter().map(|row| row.kind.as_str()).collect();
    assert_eq!(kinds, ["single", "single-merge", "random", "random-merge"]);
    assert_eq!(rows[2].figure("tlbi"), Some(2003));
    assert_eq!(rows[0].figure("locks"), Some(7));
    assert_eq!(rows[0].figure("none"), None);
    let done = Done {
        boots: vec![one],
        interrupted: true,
    };
    assert!(!done.is_ok());
    let text = table(&bench, &done);
    assert!(
        text.contains("| 4K | 4K | random | 2,000 | 2,001 |"),
        "{text}"
    );
    assert!(text.contains("interrupted after 1 of 2 boots"), "{text}");
}

#[test]
fn a_record_with_a_hole_or_of_something_else_is_no_result() {
    let bench = bench();
    let mut hole = measured(&bench);
    hole.boot.record.line("bench.m2.bytes=2097152");
    let told = hole.other_than_asked(&bench).unwrap();
    assert!(told.contains("4 rows, expected 8"), "{told}");
    let mut less = measured(&bench);
    less.boot.record.line("bench.changes=99");
    let told = less.other_than_asked(&bench).unwrap();
    assert!(told.contains("100 random changes"), "{told}");
    let mut other = measured(&bench);
    other.page_size = PageSize::K16;
    assert!(other.other_than_asked(&bench).unwrap().contains("16384"));
}

#[test]
fn bad_usage_ends_it_and_an_interrupted_boot_is_no_row() {
    let bench = bench();
    let mut listener = Listener::new(&bench);
    let done = run(&bench, &mut listener, &AtomicBool::new(false));
    assert!(done.boots.len() == 1 && !done.is_ok() && done.boots[0].boot.bad_usage);
    let done = run(&bench, &mut listener, &AtomicBool::new(true));
    assert!(done.interrupted && done.boots.is_empty());
}

#[test]
fn the_bar_moves_when_a_size_is_done() {
    let mut listener = Listener::new(&bench());
    let said = "x\n@granule bench.page.random.locks=1\n@granule bench.page.random_merge.lo";
    listener.write_all(said.as_bytes()).unwrap();
    assert_eq!(listener.bar.position(), 0);
    listener.write_all(b"cks=1\r\n").unwrap();
    assert_eq!(listener.bar.position(), 1);
}

#[test]
fn every_key_is_documented() {
    let bench = bench();
    let done = Done {
        boots: vec![measured(&bench)],
        interrupted: false,
    };
    let object = json(&bench, &done);
    let document = include_str!("../../../../../docs/bench-json.md");
    let mut keys: Vec<String> = object.as_object().unwrap().keys().cloned().collect();
    for list in ["boots", "rows"] {
        let one = object[list][0].as_object().unwrap();
        keys.extend(one.keys().map(|key| format!("{list}[].{key}")));
    }
    let (_, part) = document
        .split_once("## `granule bench permissions`")
        .unwrap();
    for key in keys {
        let known = part.contains(&format!("`{key}`")) || part.contains(&format!("`{key}."));
        assert!(known, "docs/bench-json.md lacks {key}");
    }
}
