//! Tests of the benchmark without QEMU: its requests, the results that it accepts, and its reports.

use super::*;
use crate::bench::args::ImageArgs;
use crate::boot;
use crate::result::{self, Outcome};
use crate::schema::assert_matches;
use granule_testing::text::{assert_contains, assert_starts_with};

fn bench() -> Bench {
    Bench {
        payload: vec![25 << 20, 84 << 20],
        mmu: vec![Mmu::Off, Mmu::On],
        place: vec![PayloadPlace::Copied, PayloadPlace::InPlace],
        page_size: vec![PageSize::K4, PageSize::K64],
        memory: 4 << 30,
        cpu: "neoverse-n1".into(),
        on: ImageArgs::nowhere(),
    }
}

const FIRST: [&str; 4] = [
    "page_size=4096",
    "bench.copy.bytes=1024",
    "bench.copy.instructions=136",
    "kexec.leaving.dsb=5",
];

/// The next kernel's lines for a copied payload of 25 MiB with the MMU off.
const NEXT: [&str; 15] = [
    "page_size=4096",
    "kexec.from_page_size=4096",
    "kexec.to_page_size=4096",
    "kexec.bytes_total=26300000",
    "kexec.bytes_copied=26304512",
    "kexec.lines_cleaned=1000",
    "kexec.dsb=5",
    "kexec.tlbi=3",
    "kexec.uncached=true",
    "kexec.count.hz=62500000",
    "kexec.count.call=1000",
    "kexec.count.leave=2000",
    "kexec.count.entry=250000",
    "kexec.count.console=260000",
    "kexec.count.up=300000",
];

fn record(lines: &[String]) -> RecordLines {
    let mut record = RecordLines::default();
    lines.iter().for_each(|line| record.line(line));
    record
}

fn judged(cell: Cell, boot: Boot) -> Row {
    series::judged(&bench(), &files(Vec::new()), cell, boot)
}

fn files(program: Vec<u8>) -> Files {
    Files {
        image_bytes: 1_000_003,
        program,
        archive: None,
    }
}

fn ran(first: &[String], next: &[String]) -> Row {
    let bench = bench();
    let cell = bench.cells()[0];
    let mut boot = boot::run(&bench.request(&cell));
    (boot.outcome, boot.reason, boot.bad_usage) = (Outcome::Ok, None, false);
    boot.boots = vec![record(first), record(next)];
    boot.record = record(next);
    boot.kexec = Some(result::Figures {
        digest_ok: Some(true),
        ..result::Figures::default()
    });
    judged(cell, boot)
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn ways_of_a_payload_are_neighbours() {
    let cells = bench().cells();
    assert_eq!(cells.len(), 16);
    let words: Vec<_> = cells[..4]
        .iter()
        .map(|cell| (cell.payload >> 20, cell.place.word(), cell.mmu.word()))
        .collect();
    assert_eq!(
        words,
        [
            (25, "copied", "off"),
            (25, "copied", "on"),
            (25, "in-place", "off"),
            (25, "in-place", "on")
        ]
    );
}

#[test]
fn image_and_archive_have_the_payloads_bytes() {
    let files = files(vec![7; 5000]);
    for payload in [1_100_000_u64, 1_234_567, 4 << 20] {
        let archive = files.filled(payload).unwrap();
        let all = files.image_bytes + archive.len() as u64;
        assert!(all <= payload && payload - all < 4, "{payload}: {all}");
        // No two pages of the filler are alike.
        let pages: std::collections::BTreeSet<_> = archive.chunks(4096).collect();
        assert_eq!(pages.len(), archive.chunks(4096).len());
    }
    let error = files.filled(1_005_000).unwrap_err();
    assert_starts_with(&error, "--payload ");
    assert_contains(&error, "take more");
}

#[test]
fn missing_files_are_named_with_their_command() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = bench();
    let image = folder.path().join("Image");
    assert!(bench.check().unwrap_err().contains("/nonexistent/Image"));
    let mut header = vec![0; 64];
    header[16..24].copy_from_slice(&0x10000_u64.to_le_bytes());
    header[56..60].copy_from_slice(b"ARM\x64");
    std::fs::write(&image, header).unwrap();
    bench.on.image = Some(image);
    assert!(bench.check().unwrap_err().contains("`cargo xtask user`"));
    std::fs::write(folder.path().join(PROGRAM), b"program").unwrap();
    bench.check().unwrap();
    bench.memory = 300 << 20;
    let error = bench.check().unwrap_err();
    assert!(error.contains("--payload 84M needs 336M"), "{error}");
    bench.payload = vec![4];
    assert!(bench.check().unwrap_err().contains("--payload 4"));
}

#[test]
fn figures_are_what_the_two_kernels_reported() {
    let row = ran(&lines(&FIRST), &lines(&NEXT));
    assert_eq!(row.boot.reason, None);
    let figures = row.figures.unwrap();
    assert_eq!(figures.shutdown, 16_000);
    assert_eq!(figures.relocation, 248_000 * 16);
    assert_eq!((figures.to_console, figures.to_up), (160_000, 800_000));
    assert_eq!(figures.yardstick_per_line(), 8.5);
    let bound = 1.1 * (26_304_512.0 / 64.0 * 8.5 + 1000.0);
    assert!((figures.bound() - bound).abs() < 1e-6);
    assert_eq!(figures.accesses(), 26_304_512 / 8);
}

#[test]
fn missing_or_foreign_figures_are_not_a_result() {
    for (at, line) in NEXT.iter().enumerate().skip(1) {
        let mut less = lines(&NEXT);
        less.remove(at);
        let row = ran(&lines(&FIRST), &less);
        assert_eq!(
            (row.boot.outcome, row.figures),
            (Outcome::Refused, None),
            "{line}"
        );
    }
    let with = |key: &str, value: &str| {
        let mut other = lines(&NEXT);
        other.push(format!("kexec.{key}={value}"));
        ran(&lines(&FIRST), &other).boot.reason.unwrap_or_default()
    };
    assert!(with("to_page_size", "65536").contains("page size: 4096 was requested"));
    assert!(with("uncached", "false").contains("MMU off was requested"));
    assert!(with("bytes_copied", "4096").contains("all was to be copied"));
    assert!(with("count.entry", "3").contains("the count at entry is before that at leave"));
    assert!(ran(&lines(&FIRST[..2]), &lines(&NEXT)).figures.is_none());
    let mut row = ran(&lines(&FIRST), &lines(&NEXT));
    (row.boot.outcome, row.boot.kexec) = (Outcome::Ok, None);
    assert!(judged(row.cell, row.boot).figures.is_none());
}

#[test]
fn tables_and_object_have_every_figure() {
    let bench = bench();
    let mut cut = lines(&NEXT);
    cut.truncate(3);
    let done = Done {
        rows: vec![
            ran(&lines(&FIRST), &lines(&NEXT)),
            ran(&lines(&FIRST), &cut),
        ],
        interrupted: true,
    };
    assert!(!done.is_ok());
    let table = series::table(&bench, &done);
    for part in [
        "| 4k | 25M | copied | off | 16,000 | 3,968,000 | 160,000 | 800,000 | 1.032 |",
        "| 4k | 25M | copied | off | 26,304,512 | 1,000 | 5 | 3 | 0 | 3,288,064 | \
         2236.7 Cavium ThunderX2, 442.0 Broadcom Stingray |",
        "| Broadcom Stingray | 380 | reboot | 3900.0 | 330.0 |",
        "granule: 4k pages, 25M, MMU off, copied: granule: refused: ",
        "interrupted after 2 of 16 boots",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let object = bench.json(&done);
    assert_matches("bench kexec", &object);
    assert_eq!(object["rows"][0].as_object().unwrap().len(), 8 + 17);
    assert_eq!(object["rows"][0]["accesses_device"], 3_288_064);
    assert_eq!(object["rows"][1]["outcome"], "refused");
    assert_eq!(
        object["published"].as_array().unwrap().len(),
        published::LINES.len()
    );
}
