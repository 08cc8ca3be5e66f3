//! `granule dump` and `granule lint` as a person or a script meets them: raw images of handwritten
//! tables, the output for them, and the exit code. No QEMU.

#![allow(clippy::unwrap_used)]

mod sources;

use granule_testing::text::{assert_contains, assert_starts_with};
use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::NamedTempFile;

/// TCR_EL1: no TTBR0, 39 bits and 4K pages in TTBR1, 40 bits of physical address.
const TCR: &str = "0x280190080";
/// Index 0 is Normal write-back, index 1 Device-nGnRE.
const MAIR: &str = "0x4ff";
const BASE: u64 = 0x4000_0000;
/// A page: valid, accessed, inner shareable, read-only, PXN and UXN.
const READ: u64 = 0x60_0000_0000_0783;
const WRITE: u64 = 0x60_0000_0000_0703;

/// A root of level 1, a table of level 2, a table of level 3 with 32 pages: 16 to write, 16 to read;
/// and a block of 2 MiB of device registers.
fn words() -> Vec<u64> {
    let mut words = vec![0; 3 * 512];
    words[0] = (BASE + 0x1000) | 0b11;
    words[512] = (BASE + 0x2000) | 0b11;
    words[513] = 0x0900_0000 | 0x60_0000_0000_0605;
    for page in 0..32 {
        let bits = if page < 16 { WRITE } else { READ };
        words[1024 + page as usize] = (0x8000_0000 + page * 0x1000) | bits | 1 << 52;
    }
    words
}

fn file(words: &[u64]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all(&bytes).unwrap();
    file
}

fn granule(command: &str, file: &NamedTempFile, options: &[&str]) -> Output {
    let registers = [
        "--base",
        "0x40000000",
        "--ttbr1",
        "0x40000000",
        "--tcr",
        TCR,
        "--mair",
        MAIR,
    ];
    Command::new(env!("CARGO_BIN_EXE_granule"))
        .arg(command)
        .arg(file.path())
        .args(registers)
        .args(options)
        .output()
        .unwrap()
}

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn object(output: &Output, code: i32) -> Value {
    serde_json::from_str(&text(output, code)).unwrap()
}

#[test]
fn a_dump_in_words() {
    let image = file(&words());
    let expected = "\
kernel: stage 1, 4K pages, 39 bits of address, root table at 0x40000000 of level 1, from options
0xffffff8000000000-0xffffff800000ffff      64K  0x000080000000  4K page    contiguous  RW PXN UXN      AF    ISH        normal-WB
0xffffff8000010000-0xffffff800001ffff      64K  0x000080010000  4K page    contiguous  ro PXN UXN      AF    ISH        normal-WB
0xffffff8000200000-0xffffff80003fffff       2M  0x000009000000  2M block               RW PXN UXN      AF    OSH        device-nGnRE
mapped 2176K by
             1 leaves of   2M                  2M
            32 leaves of   4K contiguous     128K
             3 tables, 12K
             3 TLB entries would cover it (33 without the contiguous hint)
";
    assert_eq!(text(&granule("dump", &image, &[]), 0), expected);
}

#[test]
fn a_dump_in_json_has_the_documented_keys() {
    let image = file(&words());
    let object = object(&granule("dump", &image, &["--json"]), 0);
    assert_eq!(object["page_size"], 4096);
    assert_eq!(object["trees"][0]["pa_bits"], 40);
    assert_eq!(object["va_bits"], 39);
    let ranges = object["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 3);
    let first = &ranges[0];
    assert_eq!(first["start"], "0xffffff8000000000");
    assert_eq!(first["bytes"], 0x1_0000);
    assert_eq!(first["output"], "0x80000000");
    assert_eq!(first["leaf_bytes"], 4096);
    assert_eq!(first["contiguous"], true);
    let words = ["RW", "PXN", "UXN", "AF", "ISH", "normal-WB"];
    assert_eq!(first["attributes"], serde_json::json!(words));
    let totals = &object["totals"];
    assert_eq!(totals["mapped_bytes"], 0x22_0000);
    assert_eq!(
        (&totals["tables"], &totals["table_bytes"]),
        (&3.into(), &12288.into())
    );
    assert_eq!(
        (&totals["tlb_entries"], &totals["tlb_entries_without_hint"]),
        (&3.into(), &33.into())
    );
}

#[test]
fn a_guess_claims_no_more_than_it_knows() {
    let mut words = words();
    // A root is worth a guess if it maps memory of the source.
    words[1024 + 40] = BASE | READ;
    let image = file(&words);
    let guessed = |command: &str, options: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_granule"))
            .args([
                command,
                image.path().to_str().unwrap(),
                "--base",
                "0x40000000",
            ])
            .args(options)
            .output()
            .unwrap()
    };
    let output = guessed("dump", &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_starts_with(&stderr, "granule: guessed: ");
    assert_contains(
        &stderr,
        "shareability (TCR.DS) and the size of output addresses (TCR.IPS)",
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    let ranges = stdout.lines().filter(|line| line.starts_with("0x"));
    assert!(ranges.clone().count() == 4, "{stdout}");
    for range in ranges {
        assert_contains(range, " SH-unknown ");
        assert_contains(range, " index-");
    }
    let object: Value = serde_json::from_slice(&guessed("dump", &["--json"]).stdout).unwrap();
    let tree = &object["trees"][0];
    assert_eq!(
        (&tree["origin"], &tree["pa_bits"]),
        (&"a guess".into(), &Value::Null)
    );
    let words = &object["ranges"][0]["attributes"];
    assert!(
        words.as_array().unwrap().contains(&"SH-unknown".into()),
        "{words}"
    );
    // The block of registers is outer shareable and the rest is not, and none of that is known.
    let found = guessed("lint", &[]);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
}

#[test]
fn filters_by_address_and_by_words() {
    let image = file(&words());
    let lines = |options: &[&str]| {
        let text = text(&granule("dump", &image, options), 0);
        let lines = text.lines().filter(|line| line.starts_with("0x"));
        lines.map(|line| line[..18].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(lines(&["--with", "ro"]), ["0xffffff8000010000"]);
    assert_eq!(lines(&["--with", "rw,normal-wb"]), ["0xffffff8000000000"]);
    assert_eq!(lines(&["--without", "contiguous"]), ["0xffffff8000200000"]);
    assert_eq!(
        lines(&["--with", "block", "--with", "NX"]),
        ["0xffffff8000200000"]
    );
    let part = ["--from", "0xffffff800000e001", "--to", "0xffffff8000010000"];
    assert_eq!(lines(&part), ["0xffffff800000e000", "0xffffff8000010000"]);
    // Nothing would be listed, as if nothing were mapped.
    let output = granule("dump", &image, &["--from", "0x2", "--to", "0x1"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert_contains(&stderr, "--from 0x2 lies above --to 0x1");
}

#[test]
fn a_word_that_no_range_can_have_is_refused() {
    let image = file(&words());
    for option in ["--with", "--without"] {
        let output = granule("dump", &image, &[option, "ro,PNX"]);
        assert_eq!(output.status.code(), Some(3));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_contains(&stderr, "\"PNX\"; expected one of block page");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for word in [
        "CONTIGUOUS",
        "nx",
        "index-7",
        "reserved-0x04",
        "as-stage-1",
        "normal-outer-nc-inner-wb",
    ] {
        text(&granule("dump", &image, &["--with", word]), 0);
    }
    // Every printed word can be used as a filter.
    let object = object(&granule("dump", &image, &["--json"]), 0);
    for range in object["ranges"].as_array().unwrap() {
        for word in range["attributes"].as_array().unwrap() {
            text(
                &granule("dump", &image, &["--with", word.as_str().unwrap()]),
                0,
            );
        }
    }
}

#[test]
fn one_address_explained() {
    let image = file(&words());
    let explain = |address: &str| text(&granule("dump", &image, &["--explain", address]), 0);
    let stdout = explain("0xffffff8000010123");
    assert_contains(&stdout, "level  3  table 0x40002000  entry 16");
    assert_contains(
        &stdout,
        "translated to 0x80010123; permission fault for: stores, loads",
    );
    let stdout = explain("0xffffff8000020000");
    assert_contains(&stdout, "translation fault, level 3: bit 0");
    let outside = "outside: these tables translate 0xffffff8000000000 to 0xffffffffffffffff";
    assert!(explain("0x1000").contains(outside));
    // The CPU ignores a tag in the address, but it is none of the tables.
    assert!(explain("0x7fffff8000010123").contains("without a tag"));
    let options = ["--explain", "0xffffff8000020000", "--json"];
    let object = object(&granule("dump", &image, &options), 0);
    let steps = object["explained"][0]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    assert_eq!(steps[2]["index"], 32);
}

#[test]
fn two_dumps_compared() {
    let (old, mut changed) = (file(&words()), words());
    let same = file(&changed);
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_owned();
    let output = granule("dump", &old, &["--diff", &path(&same)]);
    assert_eq!(text(&output, 0), "no differences\n");
    changed[1024 + 20] |= 1 << 11;
    changed[513] = 0;
    let new = file(&changed);
    let stdout = text(&granule("dump", &old, &["--diff", &path(&new)]), 1);
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert_contains(
        &stdout,
        "0xffffff8000014000 - 0xffffff8000014fff       4K  changed: ",
    );
    assert_contains(&stdout, "2M  only in the first: 2M block at 0x9000000");
    let object = object(
        &granule("dump", &old, &["--diff", &path(&new), "--json"]),
        1,
    );
    assert_eq!(object["differences"][1]["new"], Value::Null);
}

#[test]
fn missing_parts_of_a_comparison_are_in_its_object() {
    let mut cut = words();
    cut[514] = (BASE + 0x10_0000) | 0b11;
    let (old, new) = (file(&words()), file(&cut));
    let output = granule(
        "dump",
        &old,
        &["--json", "--diff", new.path().to_str().unwrap()],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_contains(&stderr, "is left out: the table of level 3 at 0x40100000");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = object["notes"].as_array().unwrap();
    assert_eq!(notes.len(), stderr.lines().count(), "{notes:?}");
}

/// A damaged dump may lack more tables than anybody reads of.
#[test]
fn tables_that_are_left_out_are_all_counted() {
    let mut cut = words();
    let missing = (BASE + 0x10_0000) | 0b11;
    cut[1..4].fill((BASE + 0x1000) | 0b11);
    cut[516..1024].fill(missing);
    let image = file(&cut);
    let stdout = text(&granule("dump", &image, &[]), 0);
    let lines = stdout
        .lines()
        .filter(|line| line.contains("is left out: "))
        .count();
    assert_eq!(lines, 1000);
    assert_contains(
        &stdout,
        &format!("{} more tables are left out", 4 * 508 - 1000),
    );
}

#[test]
fn clean_tables_have_no_findings() {
    let image = file(&words());
    let output = granule("lint", &image, &["--tlb", "1,2"]);
    let expected = "\
modelled: 1 TLB entries hold 94.1 % of the 2176K of kernel (2M), 94.1 % (2M) without the contiguous hint
modelled: 2 TLB entries hold 97.1 % of the 2176K of kernel (2112K), 94.3 % (2052K) without the contiguous hint
errors: 0, warnings: 0, infos: 0; accepted: 0
";
    assert_eq!(text(&output, 0), expected);
}

#[test]
fn exit_codes_and_keys_of_findings() {
    // One member of a group has other attributes.
    let mut broken = words();
    broken[1024 + 3] |= 1 << 11;
    let output = granule("lint", &file(&broken), &["--json"]);
    let found = object(&output, 2);
    let first = &found["findings"][0];
    assert_eq!(first["rule"], "contiguous");
    assert_eq!(first["address"], "0xffffff8000000000");
    assert_eq!(first["bytes"], 0x1_0000);
    assert_eq!(first["severity"], "error");
    assert!(first["text"].as_str().unwrap().contains("number 3"));
    // The table of level 3 twice: a warning.
    let mut shared = words();
    shared[515] = shared[512];
    let shared = file(&shared);
    let stdout = text(&granule("lint", &shared, &[]), 1);
    assert_starts_with(
        &stdout,
        "warning shared-table 0xffffff8000600000+2M kernel: ",
    );
    let stdout = text(&granule("lint", &shared, &["--rule", "loop"]), 0);
    assert_eq!(stdout, "errors: 0, warnings: 0, infos: 0; accepted: 0\n");
    // No root.
    let output = granule("lint", &file(&[]), &[]);
    assert_eq!(output.status.code(), Some(3));
    let options = ["--explain", "0xffffff8000000000"];
    assert_eq!(granule("dump", &file(&[]), &options).status.code(), Some(3));
    assert_eq!(granule("dump", &file(&[]), &[]).status.code(), Some(3));
}

#[test]
fn accepted_findings_and_lines_that_are_none() {
    let mut shared = words();
    shared[515] = shared[512];
    let mut accept = NamedTempFile::new().unwrap();
    let lines =
        "shared-table 0xffffff8000600000-0xffffff80007fffff on purpose\nnonsense\nloop 0-1 never\n";
    accept.write_all(lines.as_bytes()).unwrap();
    let path = accept.path().to_str().unwrap();
    let output = granule("lint", &file(&shared), &["--accept", path]);
    assert_eq!(output.status.code(), Some(0));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "errors: 0, warnings: 0, infos: 0; accepted: 1\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_contains(&stderr, "line 2: no rule is called \"nonsense\"");
    assert_contains(
        &stderr,
        "line 3: no loop from 0x0 to 0x1 (never): remove the line",
    );
}

#[test]
fn an_unreadable_source_is_one_line_and_code_3() {
    let missing = Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(["dump", "/nonexistent/vmcore"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&missing.stderr);
    assert_starts_with(&stderr, "granule: /nonexistent/vmcore: ");
    assert_eq!(stderr.lines().count(), 1);
    let image = file(&words());
    let output = granule("lint", &image, &["--accept", "/nonexistent/accepted"]);
    assert_eq!(output.status.code(), Some(3));
    // 2 would mean that the tables are wrong.
    let output = granule("lint", &image, &["--rule", "nonsense"]);
    assert_eq!(output.status.code(), Some(3));
}
