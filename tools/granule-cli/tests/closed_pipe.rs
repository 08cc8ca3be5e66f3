//! Standard output that nobody reads any more, as of `granule dump FILE | head -1`: the program
//! ends as other programs do, by SIGPIPE and without a message. No QEMU.

#![allow(clippy::unwrap_used)]

use granule_testing::text::assert_starts_with;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

const SIGPIPE: i32 = 13;
const TRACE: &str = "granule-trace 1 page=4k cpus=1 bbm=0 complete=yes events=1\nisb cpu0\n";

/// The program with a standard output that was closed before it begins.
fn unread(arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(arguments)
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.wait_with_output().unwrap()
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn every_command_ends_quietly() {
    // A root of level 1 with a block, which is writable and executable.
    let mut root = vec![0; 4096];
    root[..8].copy_from_slice(&0x4000_0701_u64.to_le_bytes());
    let (image, trace) = (file(&root), file(TRACE.as_bytes()));
    let [image, trace] = [&image, &trace].map(|file| file.path().to_str().unwrap());
    let tables = [
        "--base=0x40000000",
        "--ttbr1=0x40000000",
        "--tcr=0x280190080",
        "--mair=0x4ff",
    ];
    let same = format!("--diff={image}");
    let of_image: &[&[&str]] = &[
        &["dump"],
        &["dump", "--json"],
        &["dump", "--explain=0xffffff8000000000"],
        &["dump", &same],
        &["lint"],
        &["lint", "--json"],
        &["report", "--output=-"],
    ];
    let mut commands: Vec<Vec<&str>> = of_image
        .iter()
        .map(|words| [*words, &[image], &tables].concat())
        .collect();
    for words in [&["check"][..], &["check", "--json"]] {
        commands.push([words, &[trace]].concat());
    }
    commands.push(vec!["plan", "--memory=1G"]);
    for command in commands {
        let output = unread(&command);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.signal(),
            Some(SIGPIPE),
            "{command:?}: {printed}"
        );
        assert_eq!(printed, "", "{command:?}");
    }
}

/// A full disk is an error with a word.
#[test]
fn output_that_cannot_be_written_for_another_reason_is_reported() {
    let trace = file(TRACE.as_bytes());
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_granule"))
        .arg("check")
        .arg(trace.path())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert_starts_with(&printed, "granule: standard output: ");
    assert_eq!(printed.lines().count(), 1);
}
