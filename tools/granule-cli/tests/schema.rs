//! Compares the output of commands with `granule schema`: no key that is missing, none that
//! is not described, none of another type. No QEMU. What needs a guest is checked where it is run.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use granule_testing::schema::assert_matches;
use serde_json::Value;

fn granule(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(words)
        .output()
        .unwrap()
}

fn schema(command: &str) -> Value {
    let output = granule(&["schema", command]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs `command` with `--json` and `options`, and compares what it prints with its schema.
#[track_caller]
fn described(command: &str, options: &[&str]) -> Value {
    let words: Vec<&str> = command.split(' ').chain(["--json"]).collect();
    let output = granule(&[&words, options].concat());
    let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_matches(&schema(command), &object);
    object
}

/// An image whose header is right and which no machine runs, beside a first process.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut image = vec![0; 64];
    image[16..24].copy_from_slice(&0x10000_u64.to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    for name in ["Image", "Image-4k", "Image-16k", "Image-64k"] {
        std::fs::write(folder.path().join(name), &image).unwrap();
    }
    for name in ["granule-kexec", "granule-user-bench"] {
        std::fs::write(folder.path().join(name), "program").unwrap();
    }
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn boots_and_benchmarks_without_a_guest() {
    let folder = folder();
    let image = folder.path().join("Image");
    let qemu = ["--qemu", "/nonexistent/qemu"];
    let of_image = [&qemu[..], &["--image", text(&image)]].concat();
    let of_folder = [&qemu[..], &["--folder", text(folder.path())]].concat();
    let object = described("boot", &of_image);
    assert_eq!(object["image"]["bytes"], 64);
    described("boot", &["--image", "/nonexistent/Image"]);
    described("bench linear-map", &of_image);
    described("bench permissions", &of_image);
    described("bench kexec", &of_image);
    described("bench user", &of_folder);
    let object = described("bench user", &[&of_folder[..], &["--together"]].concat());
    assert_eq!(object["boots"][0]["outcome"], "refused");
}

#[test]
fn plans() {
    described("plan", &["--memory", "4G"]);
    let machine = [
        "--memory",
        "64G",
        "--rodata",
        "noalias",
        "--machine",
        "altra",
    ];
    let object = described("plan", &machine);
    assert_eq!(object["machine"]["has_page_size"], true);
}

#[test]
fn tables() {
    // A root of level 1 with blocks, of which one is writable and executable and one lies in the other file alone.
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    let mut root = vec![0; 4096];
    root[..8].copy_from_slice(&0x4000_0701_u64.to_le_bytes());
    std::fs::write(&old, &root).unwrap();
    root[8..16].copy_from_slice(&0x8000_0705_u64.to_le_bytes());
    std::fs::write(&new, &root).unwrap();
    let tables = [
        text(&old),
        "--base=0x40000000",
        "--ttbr1=0x40000000",
        "--tcr=0x280190080",
        "--mair=0x4ff",
    ];
    let with = |more: &[&'static str]| [&tables[..], more].concat();
    let object = described("dump", &with(&[]));
    assert_eq!(object["ranges"].as_array().unwrap().len(), 1);
    let object = described("dump", &with(&["--explain=0xffffff8000000000"]));
    assert_eq!(object["explained"][0]["steps"].as_array().unwrap().len(), 1);
    let other = format!("--diff={}", text(&new));
    let object = described("dump", &[&tables[..], &[other.as_str()]].concat());
    assert_eq!(object["differences"].as_array().unwrap().len(), 1);
    let object = described("lint", &with(&["--tlb=48"]));
    assert_eq!(object["findings"][0]["rule"], "writable-executable");
    let object = described("lint", &with(&["--most=0"]));
    assert_eq!(object["not_listed"][0]["findings"], 1);
}

#[test]
fn traces() {
    let corpus = Path::new("../granule-fuzz/corpus/trace/example.trace");
    described("check", &[text(corpus)]);
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.trace");
    let lines = "granule-trace 2 page=4k cpus=1 bbm=0 complete=yes events=11\n\
        obtain cpu0 0x1000 0x1000\n\
        fill cpu0 0x1000 512 0 0\n\
        store cpu0 0x1000 0x701\n\
        dsb cpu0 sy\n\
        msr cpu0 mair_el1 0xff\n\
        msr cpu0 tcr_el1 0x200803519\n\
        msr cpu0 ttbr0_el1 0x1000\n\
        msr cpu0 sctlr_el1 0x30d0180d\n\
        isb cpu0\n\
        store cpu0 0x1000 0x80000701\n\
        missing cpu0 something\n";
    std::fs::write(&broken, lines).unwrap();
    let object = described("check", &[text(&broken)]);
    assert!(object["violations"][0].is_object(), "{object:#}");
    assert!(object["missing"][0].is_object(), "{object:#}");
    assert!(object["findings"][0]["steps"][0].is_object(), "{object:#}");
}

#[test]
fn the_commands_are_listed_and_another_one_is_bad_usage() {
    let output = granule(&["schema"]);
    let listed = String::from_utf8(output.stdout).unwrap();
    for command in listed.lines() {
        // One word or several.
        let words: Vec<&str> = ["schema"].into_iter().chain(command.split(' ')).collect();
        let output = granule(&words);
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["title"], format!("granule {command} --json"));
    }
    let output = granule(&["schema", "report"]);
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("granule: report: "), "{line}");
    assert_eq!(line.lines().count(), 1);
}
