//! `granule bench tlb`: a run that ends in any way is a line or a report, and what was counted is kept.

use granule_cli::schema;
use granule_plugin::accesses::{AccessKind, Block, Collector};
use granule_plugin::track::Memory;
use granule_testing::schema::assert_matches;
use granule_testing::text::{assert_contains, assert_starts_with};
use granule_trace::System;
use serde_json::Value;
use std::io::Write;
use std::process::{Child, Output};

use super::{Fake, WAIT, output, text};

fn bench(fake: &Fake, options: &[&str]) -> Child {
    fake.run_by(&["env"], &["bench", "tlb", "--json"], options)
}

#[derive(Debug)]
struct Nothing;

impl Memory for Nothing {
    fn load(&self, _: u64, _: &mut [u64]) -> bool {
        false
    }
}

/// A program that writes to so many pages, one after the other.
fn collector(pages: u64) -> Collector<Nothing> {
    let mut collector = Collector::new(Nothing);
    collector.register(System::TCR_EL1, 16 | 16 << 16 | 2 << 30);
    collector.register(System::SCTLR_EL1, 1);
    let block = Block {
        first: 0x40_0000,
        last: 0x40_0004,
        instructions: 10,
        el: 0,
    };
    for page in 0..pages {
        collector.block(&block);
        collector.access(AccessKind::Data, 0, 0x1000_0000 + (page << 12));
    }
    collector
}

/// The result for a stream if the program then ends in some way.
fn run(stream: &[u8], then: &str, options: &[&str]) -> (Output, Option<Value>) {
    let fake = Fake::new("11.1.3", &format!("{WAIT}\n{then}"));
    let child = bench(&fake, options);
    assert!(fake.arguments().contains(",accesses=on"));
    let mut socket = fake.connect();
    // The reader may have had enough.
    let _ = socket.write_all(stream);
    drop(socket);
    fake.go();
    let output = output(child);
    let json = serde_json::from_slice(&output.stdout).ok();
    if let Some(json) = &json {
        assert_matches(&schema::of("bench tlb").unwrap(), json);
    }
    (output, json)
}

fn last_line(output: &Output) -> String {
    let text = text(&output.stderr);
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_whole_run_is_counted() {
    let mut whole = collector(4096);
    whole.finish();
    let (output, json) = run(whole.out(), "exit 0", &[]);
    let json = json.unwrap_or_else(|| panic!("{}", last_line(&output)));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        (&json["outcome"], &json["instructions"]),
        (&"ended".into(), &40_960.into())
    );
    assert_eq!(json["larger_missed_more"], Value::Null);
    let misses = |page_size: u64, map: &str| {
        let mut rows = json["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| {
            row["cpu"] == "cortex-a76" && row["page_size"] == page_size && row["map"] == map
        });
        row.unwrap()["misses"].as_u64().unwrap()
    };
    // Each page, group and block once, and one for the code, which shares the block of 512 MiB.
    for (page_size, map, expected) in [
        (4096, "pages", 4097),
        (4096, "contiguous", 257),
        (4096, "blocks", 9),
        (4096, "linear-blocks", 4097),
        (4096, "guest", 4097),
        (16384, "pages", 1025),
        (65536, "blocks", 1),
    ] {
        assert_eq!(misses(page_size, map), expected, "{page_size} {map}");
    }
    let table = text(&output.stderr);
    assert!(table.contains("Modelled TLB misses"), "{table}");
    assert!(table.contains("added: "), "{table}");
}

#[test]
fn counts_before_the_death_of_qemu_are_kept() {
    let mut cut = collector(100);
    cut.out().push(1);
    let (output, json) = run(cut.out(), "kill -9 $$", &[]);
    let json = json.unwrap();
    assert_eq!(
        (&json["outcome"], output.status.code()),
        (&"died".into(), Some(1))
    );
    assert_eq!(json["reason"], "signal: 9 (SIGKILL)");
    assert!(json["instructions"].as_u64().unwrap() > 900);
    // A QEMU that ends well without the plugin's end has lost something too.
    let (output, json) = run(collector(100).out(), "exit 0", &[]);
    assert_eq!(json.unwrap()["outcome"], "died");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_limit_of_instructions_ends_a_guest_that_goes_on() {
    let (output, json) = run(collector(5000).out(), "exec sleep 60", &["--most", "20K"]);
    let json = json.unwrap();
    assert_eq!(
        (&json["reached_most"], output.status.code()),
        (&true.into(), Some(0))
    );
    assert_eq!(json["outcome"], "ended");
    let instructions = json["instructions"].as_u64().unwrap();
    assert!((20_000..20_100).contains(&instructions), "{instructions}");
    assert_eq!(last_line(&output), "granule: ended by --most");
}

#[test]
fn a_run_that_cannot_be_counted_is_one_line() {
    // No program, a stream of another version, one that is none.
    let mut empty = Collector::new(Nothing);
    empty.finish();
    let mut damaged = collector(1);
    damaged.out().extend([0xff; 24]);
    for (stream, part) in [
        (
            &empty.out()[..],
            "the machine ended before a program ran at EL0",
        ),
        (&[7; 48], "another version"),
        (&damaged.out()[..], "an unknown kind"),
    ] {
        let (output, json) = run(stream, "exit 0", &[]);
        assert!(json.is_none());
        let line = last_line(&output);
        assert_starts_with(&line, "granule: ");
        assert_contains(&line, part);
        assert_eq!(output.status.code(), Some(2));
    }
    for (version, then, part) in [
        ("7.2.22", "exit 0", "bookworm-backports"),
        (
            "11.1.3",
            "echo 'qemu: it has 2 CPUs' >&2; exit 1",
            "it has 2 CPUs",
        ),
    ] {
        let output = output(bench(&Fake::new(version, then), &[]));
        let line = last_line(&output);
        assert_starts_with(&line, "granule: ");
        assert_contains(&line, part);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
}
