//! `granule check` as a person or a script meets it: handmade traces, the output for them, and the
//! exit code. No QEMU.

#![allow(clippy::unwrap_used)]

use granule_testing::text::{assert_contains, assert_starts_with};
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// One CPU that makes a table with the MMU off, turns the MMU on, and maps a second block.
const GOOD: &[&str] = &[
    "# a table of 1 GiB blocks",
    "obtain cpu0 0x1000 0x1000",
    "fill cpu0 0x1000 512 0 0",
    "store cpu0 0x1000 0x701",
    "dmb cpu0 sy",
    "dc cpu0 ivac 0x1000 0x1000",
    "dsb cpu0 sy",
    "tlbi cpu0 vmalle1",
    "dsb cpu0 nsh",
    "msr cpu0 mair_el1 0xff",
    "msr cpu0 tcr_el1 0x200803519",
    "msr cpu0 ttbr0_el1 0x1000",
    "isb cpu0",
    "msr cpu0 sctlr_el1 0x30d0180d",
    "isb cpu0",
    "# and one more",
    "store cpu0 0x1008 0x40000701",
    "dsb cpu0 ishst",
    "isb cpu0",
    "assume-visible cpu0 0x40000000 0x1000",
];

/// Another output address, valid to valid, without break-before-make.
const CHANGED: &[&str] = &[
    "store cpu0 0x1008 0x80000701",
    "dsb cpu0 ishst",
    "tlbi cpu0 vaae1is 0x40000",
    "dsb cpu0 ish",
    "isb cpu0",
];

/// The file of these lines.
fn file(lines: &[&str], cpus: u32) -> String {
    let events = lines.iter().filter(|line| !line.starts_with('#')).count();
    let header = format!("granule-trace 1 page=4k cpus={cpus} bbm=0 complete=yes events={events}");
    format!("{header}\n{}\n", lines.join("\n"))
}

fn good_and(more: &[&str]) -> String {
    file(&[GOOD, more].concat(), 1)
}

fn check(trace: &str, options: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_granule"))
        .arg("check")
        .args(options)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that gives up early reads no further.
    let _ = stdin.write_all(trace.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_clean_trace_exits_with_0_and_a_summary() {
    let output = check(&good_and(&[]), &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.ends_with("\nclean\n"), "{printed}");
    assert_contains(printed, "18 events of 1 CPU(s), 4K pages, BBM level 0");
    assert_contains(printed, "514 descriptors, 1 TLBI, 3 DSB, 3 ISB");
    assert!(!printed.contains('\x1b') && output.stderr.is_empty());
}

#[test]
fn a_violation_exits_with_1_and_names_rule_lines_cpu_and_address() {
    let output = check(&good_and(CHANGED), &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let line = printed.lines().next().unwrap();
    assert!(line.starts_with("line 22: RWHZWS: CPU 0 "), "{line}");
    assert!(line.contains("VA 0x40000000 to 0x7fffffff"), "{line}");
    assert!(printed.ends_with("\n1 violation\n"), "{printed}");
    assert!(!printed.contains('\x1b'));

    let output = check(&good_and(CHANGED), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (json["schema"].as_u64(), json["clean"].as_bool()),
        (Some(1), Some(false))
    );
    assert_eq!(json["violation_count"], 1);
    let first = &json["violations"][0];
    assert_eq!(
        (first["rule"].as_str(), first["line"].as_u64()),
        (Some("RWHZWS"), Some(22))
    );
    assert_eq!(first["first_address"], "0x40000000");
    assert_eq!(first["address_space"], "virtual");
    assert!(
        first["observation"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
}

/// The CPU goes on with tables of 64K pages under ASID 1, in the order that this takes.
const OTHER_SIZE: &[&str] = &[
    "obtain cpu0 0x20000 0x2000",
    "fill cpu0 0x20000 1024 0 0",
    "store cpu0 0x20000 0x20000f01",
    "dsb cpu0 ishst",
    "msr cpu0 tcr_el1 0x200803599",
    "isb cpu0",
    "msr cpu0 ttbr0_el1 0x1000000020000",
    "msr cpu0 tcr_el1 0x200807599",
    "isb cpu0",
    "tlbi cpu0 vmalle1",
    "dsb cpu0 nsh",
    "isb cpu0",
    "msr cpu0 tcr_el1 0x200807519",
    "isb cpu0",
    "assume-visible cpu0 0x0 0x1000",
];

#[test]
fn tables_of_two_page_sizes_are_judged_in_one_trace() {
    let trace = good_and(OTHER_SIZE);
    let output = check(&trace, &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("4K, 64K pages"), "{printed}");
    assert_contains(printed, "tables: 12 obtained, 0 freed (KiB)");
    let json: Value = serde_json::from_slice(&check(&trace, &["--json"]).stdout).unwrap();
    assert_eq!(json["page_size"], 4096);
    assert_eq!(json["page_sizes"], serde_json::json!([4096, 65536]));
    assert_eq!(json["complete"], true);
    // Each line of the switch that is left out is noticed.
    for (at, rule) in [
        (4, "field-in-use"),
        (5, "field-in-use"),
        (6, "tables-of-two-sizes"),
        (8, "RVNRFW"),
        (9, "RVNRFW"),
        (10, "RVNRFW"),
        (11, "missing-isb"),
        (13, "missing-isb"),
    ] {
        let mut lines = OTHER_SIZE.to_vec();
        lines.remove(at);
        let output = check(&good_and(&lines), &[]);
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{at}: {printed}");
        assert!(printed.contains(rule), "{at}: {printed}");
    }
}

#[test]
fn an_invalidation_in_vain_is_named() {
    // The entry is cleared, and the TLBI issued before a walker must see that.
    let more = [
        "store cpu0 0x1008 0",
        "tlbi cpu0 vaae1is 0x40000",
        "dsb cpu0 ish",
        "isb cpu0",
        "assume-visible cpu0 0x40000000 0x1000",
    ];
    let output = check(&good_and(&more), &["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{json}");
    let first = &json["violations"][0];
    assert_eq!(first["earlier_line"], 22, "{json}");
    assert_eq!(first["missed_line"], 23, "{json}");
    assert!(first["missed_because"].as_str().unwrap().contains("no DSB"));
    // With the DSB it is right.
    let mut right = more.to_vec();
    right.insert(1, "dsb cpu0 ishst");
    let output = check(&good_and(&right), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn the_end_of_a_complete_trace_relies_on_everything() {
    let more = ["store cpu0 0x1010 0x80000701"];
    let output = check(&good_and(&more), &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.starts_with("end of trace: "), "{printed}");
    assert!(printed.contains("because of line 22"), "{printed}");
    let incomplete = good_and(&more).replace("complete=yes", "complete=no");
    let output = check(&incomplete, &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.contains("the trace is not complete"), "{printed}");
}

#[test]
fn strict_and_bbm_change_the_verdict() {
    // Cleared and made valid again as it was: legal, but not what a careful kernel does.
    let more = [
        "store cpu0 0x1008 0",
        "store cpu0 0x1008 0x40000701",
        "dsb cpu0 ishst",
        "isb cpu0",
    ];
    assert_eq!(check(&good_and(&more), &[]).status.code(), Some(0));
    // Strictly, caches hold what ran before until they are maintained.
    let before = ["dc cpu0 civac 0x1000 0x1000", "dsb cpu0 sy"];
    let after = ["ic cpu0 iallu", "dsb cpu0 nsh", "isb cpu0"];
    let strict = |parts: &[&[&str]]| check(&file(&parts.concat(), 1), &["--strict"]);
    assert_eq!(strict(&[&before, GOOD, &after]).status.code(), Some(0));
    assert!(text(&strict(&[GOOD, &after]).stdout).contains("dirty-line-behind"));
    assert!(text(&strict(&[&before, GOOD]).stdout).contains("instruction-cache"));
    let strict = strict(&[&before, GOOD, &more, &after]);
    assert_eq!(strict.status.code(), Some(1));
    assert!(text(&strict.stdout).contains("IWZCBG"));
    assert!(text(&strict.stdout).ends_with("1 violation, strict\n"));

    // A block split in place.
    let more = [
        "obtain cpu0 0x2000 0x1000",
        "fill cpu0 0x2000 512 0x40000701 0x200000",
        "store cpu0 0x1008 0x2003 release",
        "dsb cpu0 ishst",
        "tlbi cpu0 vaae1is 0x40000",
        "dsb cpu0 ish",
        "isb cpu0",
    ];
    assert_eq!(check(&good_and(&more), &[]).status.code(), Some(1));
    assert_eq!(
        check(&good_and(&more), &["--bbm", "2"]).status.code(),
        Some(0)
    );
    assert_eq!(
        check(&good_and(&more), &["--bbm", "4"]).status.code(),
        Some(2)
    );
}

/// Tables all of whose entries lead to the same table below: 2^36 ways to 512 pages.
fn shared_tables() -> String {
    let lines = [
        "fill cpu0 0x1000 512 0x2003 0",
        "fill cpu0 0x2000 512 0x3003 0",
        "fill cpu0 0x3000 512 0x4003 0",
        "fill cpu0 0x4000 512 0x80000703 0x1000",
        "dc cpu0 civac 0x1000 0x4000",
        "dsb cpu0 sy",
        "msr cpu0 mair_el1 0xff",
        "msr cpu0 tcr_el1 0x5b5103510",
        "msr cpu0 ttbr1_el1 0x1000",
        "isb cpu0",
        "tlbi cpu0 vmalle1",
        "dsb cpu0 nsh",
        "msr cpu0 sctlr_el1 0x1005",
        "isb cpu0",
    ];
    file(&lines, 1)
}

/// The upper half is enabled, and TG1 names no granule.
#[test]
fn a_half_that_goes_unchecked_is_named() {
    let whole = good_and(&[]);
    let output = check(&whole, &["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["unchecked"].as_array().map(Vec::len), Some(0));
    let open = whole.replace("0x200803519", "0x200003519");
    let printed = check(&open, &[]);
    let printed = text(&printed.stdout);
    let line = "goes unchecked from line 15 on: the upper half of EL1&0 of CPU 0: \
                TG1 is 0b00, which names no granule\n";
    assert!(printed.contains(line), "{printed}");
    let output = check(&open, &["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = &json["unchecked"][0];
    assert_eq!((&one["line"], &one["cpu"]), (&15.into(), &0.into()));
    assert_eq!(one["half"], "the upper half of EL1&0");
    assert!(one["reason"].as_str().unwrap().starts_with("TG1 is 0b00"));
}

#[test]
fn the_exit_code_depends_on_whether_all_was_judged() {
    let cut = |lines: &[&str]| good_and(lines).replace("complete=yes", "complete=no");
    let part = "no violation, but a part was not judged";
    for (trace, code, last) in [
        (good_and(&[]), 0, "clean"),
        (good_and(CHANGED), 1, "1 violation"),
        (cut(CHANGED), 1, "1 violation"),
        (cut(&[]), 3, part),
        (good_and(&["missing cpu0 tcr2_el1"]), 3, part),
        (good_and(&[]).replace("0x200803519", "0x200003519"), 3, part),
        (
            file(&["isb cpu0"], 1),
            2,
            "nothing was judged: no MMU was turned on",
        ),
    ] {
        let output = check(&trace, &[]);
        let printed = text(&output.stdout);
        let mut lines = printed.lines().rev();
        assert_eq!(
            (output.status.code(), lines.next()),
            (Some(code), Some(last)),
            "{printed}"
        );
        assert!(
            lines.next().unwrap().starts_with("never checked: "),
            "{printed}"
        );
        let json: Value = serde_json::from_slice(&check(&trace, &["--json"]).stdout).unwrap();
        assert_eq!(json["clean"], code == 0, "{json:#}");
    }
    // A range for lazy unmapping is two addresses.
    assert_eq!(
        check(&good_and(&[]), &["--lazy", "0x1000-0x0"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        check(&good_and(&[]), &["--lazy", "0x0-0x1000"])
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn absurd_sizes_are_harmless() {
    let more = [
        "obtain cpu0 0x10000 0xfffffffff0000",
        "free cpu0 0x20000 0xffffffffe0000",
        "data cpu0 0x10000 0xfffffffff0000",
        "dc cpu0 civac 0x10000 0xfffffffff0000",
        "dsb cpu0 sy",
    ];
    let output = check(&good_and(&more), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn counts_do_not_depend_on_the_length_of_the_list() {
    let more = [
        "update cpu0 0x1000 2 1 0 0x4",
        "store cpu0 0x1008 0x80000701",
        "store cpu0 0x1008 0xc0000701",
    ];
    let count = |most: &str| {
        let output = check(&good_and(&more), &["--json", "--most", most]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["violation_count"].as_u64().unwrap()
    };
    let all = count("100");
    assert!(all > 1, "{all}");
    assert_eq!((count("0"), count("1")), (all, all));
}

#[test]
fn files_that_cannot_be_read_exit_with_2_and_name_line_and_column() {
    let whole = good_and(&[]);
    for (trace, place) in [
        (String::new(), "line 1, column 1: "),
        (whole[..whole.len() - 1].into(), "line 21, column 38: "),
        (
            whole.replace("dmb cpu0 sy", "dmb cpu0 yes"),
            "line 6, column 10: ",
        ),
        (
            whole.replace("fill cpu0 0x1000", "fill cpu0 0x1001"),
            "line 4, column 11: ",
        ),
        (whole.replace("isb cpu0", "isb cpu1"), "line 14, column 5: "),
        (
            whole.replace("events=18", "events=17"),
            "line 21, column 1: ",
        ),
        (
            whole.replace("events=18", "events=19"),
            "line 22, column 1: ",
        ),
        (
            whole.replace("dc cpu0 ivac 0x1000", "dc cpu0 ivac 0x10000000000000"),
            "line 7, column 14: ",
        ),
        (
            whole.replace("store cpu0 0x1008", "store cpu0 0x10000000000000"),
            "line 18, column 12: ",
        ),
        (whole.replace("# and", "# tlbi"), "line 17, column 3: "),
        (
            whole.replace("one more", "one more\r"),
            "line 17, column 15: ",
        ),
        (
            whole.replace("isb cpu0\n", "isb cpu0\r\n"),
            "line 14, column 5: ",
        ),
        // Sizes that no machine has, and checks that take too long.
        (
            whole.replace("fill cpu0 0x1000 512", "fill cpu0 0x1000 0x1ffffffffff"),
            "line 4, column 18: ",
        ),
        (shared_tables(), "line 14, column 1: "),
        (whole.replace("page=4k", "page=64k"), "line 1, column 17: "),
    ] {
        let output = check(&trace, &[]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert_starts_with(printed, &format!("granule: -: {place}"));
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert!(output.stdout.is_empty());
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(["check", "/nonexistent/trace"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).starts_with("granule: /nonexistent/trace: line 1, column 1: "));
}

#[test]
fn violations_beyond_the_limit_are_counted() {
    let mut more = Vec::new();
    for index in 2..12u64 {
        more.push(format!("store cpu0 {:#x} 0x701", 0x1000 + 8 * index));
        more.push(format!("store cpu0 {:#x} 0x40000701", 0x1000 + 8 * index));
    }
    more.push("dsb cpu0 ishst".into());
    more.push("isb cpu0".into());
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let output = check(&good_and(&more), &["--most", "3"]);
    let printed = text(&output.stdout);
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.starts_with("line "))
            .count(),
        3,
        "{printed}"
    );
    assert!(printed.contains("... and 7 more"), "{printed}");
    assert!(printed.ends_with("\n10 violations\n"), "{printed}");
}
