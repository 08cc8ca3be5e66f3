//! Tests of the benchmark without QEMU: its boots, and the results that it accepts.

use super::*;
use crate::boot;
use crate::result::Outcome;
use granule_testing::text::assert_starts_with;

pub(super) fn bench() -> Bench {
    Bench {
        build: vec![Build::Boot, Build::Fixed],
        page_size: vec![PageSize::K4, PageSize::K64],
        large_leaves: true,
        memory: 4 << 30,
        bytes: 1 << 30,
        rounds: 3,
        programs: 1000,
        areas: Vec::new(),
        together: false,
        cpu: "neoverse-n1".into(),
        folder: Some("/nonexistent".into()),
        run: RunArgs::nowhere(),
    }
}

/// A boot that ended well, with this output on its console.
pub(super) fn ran(bench: &Bench, cell: &Cell, console: &str) -> Ran {
    let mut boot = boot::run(&bench.request(cell).image("/nonexistent/file"));
    (boot.outcome, boot.reason, boot.bad_usage) = (Outcome::Ok, None, false);
    boot.console = console.as_bytes().to_vec();
    let files = Files {
        folder: "/nonexistent".into(),
        archive: NamedTempFile::new().unwrap(),
        counter: None,
    };
    series::judged(bench, &files, *cell, boot)
}

/// The program's output if each operation takes this many ticks.
pub(super) fn console(bench: &Bench, cell: &Cell, ops: &[(&str, u64)]) -> String {
    let page = cell.page_size.bytes();
    let mut text = format!(
        "bench begin page={page} bytes={} pages={} rounds={} frequency=62500000\n",
        bench.bytes,
        bench.bytes / page,
        bench.rounds
    );
    for (name, ticks) in ops {
        text += &format!("bench op={name} best={ticks} median={ticks} worst={ticks} at=0\n");
    }
    text + &format!("bench end ops={} timed=1\n", ops.len())
}

#[test]
fn kernel_and_program_have_the_word_of_the_leaves() {
    assert_eq!(
        bench().words(&bench().cells()[0]),
        "-- 1073741824 3 large calls switches programs=1000"
    );
    let off = Bench {
        large_leaves: false,
        ..bench()
    };
    assert_eq!(
        off.words(&off.cells()[0]),
        "user_large_leaves=off -- 1073741824 3 calls switches programs=1000"
    );
}

#[test]
fn numbers_of_areas_are_words_of_the_program() {
    let bench = Bench {
        areas: vec![256, 65_530],
        ..bench()
    };
    let words = bench.words(&bench.cells()[0]);
    assert!(words.ends_with(" programs=1000 areas=256,65530"), "{words}");
}

#[test]
fn programs_of_all_sizes_are_beside_each_alone() {
    let bench = Bench {
        together: true,
        ..bench()
    };
    let cells = bench.cells();
    assert_eq!(cells.len(), 8);
    let words: Vec<_> = cells.iter().map(|cell| bench.words(cell)).collect();
    let expected = "user_pagesize=16k -- 1073741824 3 large together=16384";
    assert_eq!(words[1], expected);
    let expected = "-- 1073741824 3 large together=4096,16384,65536";
    assert_eq!((words[3].as_str(), words[7].as_str()), (expected, expected));
    let error = Bench {
        bytes: 3 << 29,
        ..bench
    }
    .check()
    .unwrap_err();
    assert!(error.contains("more than thrice"), "{error}");
}

#[test]
fn builds_of_a_page_size_are_neighbours() {
    let names: Vec<_> = bench().cells().iter().map(Cell::build).collect();
    assert_eq!(names, ["boot", "fixed-4k", "boot", "fixed-64k"]);
}

#[test]
fn the_first_file_that_is_missing_is_named_with_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench {
        folder: Some(folder.path().to_owned()),
        ..bench()
    };
    for (file, command) in [
        ("Image", "`cargo xtask image`"),
        ("Image-4k", "`cargo xtask image --fixed 4k`"),
        ("Image-64k", "`cargo xtask image --fixed 64k`"),
        ("granule-user-bench", "`cargo xtask user`"),
    ] {
        let path = folder.path().join(file);
        let line = bench.check().unwrap_err();
        let expected = format!("{} is not there: build it with {command}", path.display());
        assert_eq!(line, expected);
        std::fs::write(path, b"something").unwrap();
    }
    assert!(bench.check().is_ok());
}

#[test]
fn an_impossible_measurement_is_refused_before_the_first_boot() {
    let with = |bytes| Bench { bytes, ..bench() }.check().unwrap_err();
    assert!(with(0).contains("whole pages"));
    assert!(with(4096).contains("a multiple of 64K"), "{}", with(4096));
    assert!(with(2 << 30).contains("more than twice"));
    assert!(with(1 << 63).contains("more than twice"));
}

#[test]
fn a_program_that_did_something_else_is_not_a_result() {
    let (bench, cell) = (bench(), &bench().cells()[0]);
    let good = console(&bench, cell, &[("fork", 7)]);
    assert!(ran(&bench, cell, &good).figures.is_some());
    for (change, to, expected) in [
        (
            "rounds=3",
            "rounds=2",
            "rounds: 3 was requested, the benchmark had 2",
        ),
        ("bench end", "bench", "the benchmark's line"),
        ("bench", "Bench", "no line `bench begin`"),
    ] {
        let ran = ran(&bench, cell, &good.replace(change, to));
        assert_eq!((ran.boot.outcome, ran.figures), (Outcome::Refused, None));
        let reason = ran.boot.reason.unwrap_or_default();
        assert!(reason.contains(expected), "{reason}");
    }
    let other = console(&bench, &bench.cells()[2], &[("fork", 7)]);
    let ran = ran(&bench, cell, &other);
    let reason = ran.boot.reason.unwrap_or_default();
    assert_starts_with(&reason, "page size: 4096 was requested");
}
