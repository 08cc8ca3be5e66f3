//! The `granule` program as a person or a script meets it: the contents of each stream, the exit
//! code, the last line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use granule_cli::schema;
use granule_testing::schema::assert_matches;
use serde_json::Value;
use tempfile::TempDir;

use crate::boot::guests;
use crate::hooked;

pub(super) fn granule(dir: &Path, words: &[&str]) -> Command {
    let mut command = hooked::granule();
    command
        .current_dir(dir)
        .arg("boot")
        .args(words)
        .stdin(Stdio::null());
    command
}

pub(super) fn with_image(image: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target/granule/Image");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, image).unwrap();
    (dir, path)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(super) fn last_line(output: &Output) -> &str {
    text(&output.stderr).lines().last().unwrap()
}

const OK: &str = "console\n@granule page_size=65536\n@granule outcome=ok\n@granule end\n";

#[test]
fn the_console_goes_to_standard_output_and_the_outcome_to_standard_error() {
    let (dir, _) = with_image(&guests::prints(OK, 2));
    let below = dir.path().join("target");
    let output = granule(&below, &["--memory", "256M"]).output().unwrap();
    assert_eq!(text(&output.stdout), "console\n");
    assert_eq!(last_line(&output), "granule: ok");
    assert!(text(&output.stderr).contains("64K"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn with_json_there_is_one_object_on_standard_output() {
    let (dir, _) = with_image(&guests::prints(OK, 2));
    let output = granule(dir.path(), &["--memory", "256M", "--json"])
        .output()
        .unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_matches(&schema::of("boot").unwrap(), &object);
    assert_eq!(
        (object["page_size"].as_u64(), object["outcome"].as_str()),
        (Some(65536), Some("ok"))
    );
    assert!(text(&output.stderr).starts_with("console\n"));
    assert_eq!(
        (last_line(&output), output.status.code()),
        ("granule: ok", Some(0))
    );
}

#[test]
fn with_json_there_is_one_object_also_on_failure() {
    let (dir, _) = with_image(&guests::prints_and_spins("never ends"));
    for (words, outcome, code) in [
        (&["--timeout", "1"][..], "timeout", 1),
        (&["--cpu", "z80"], "refused", 1),
        (&["--image", "absent"], "refused", 2),
        (&["--el", "3"], "refused", 2),
        (&["--dtb", "absent"], "refused", 2),
        (&["--qemu", "./absent"], "refused", 1),
    ] {
        let output = granule(dir.path(), &[words, &["--json"]].concat())
            .output()
            .unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_matches(&schema::of("boot").unwrap(), &object);
        assert_matches(&schema::of("boot").unwrap(), &object);
        assert_eq!(object["outcome"], outcome, "{words:?}");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let line = format!("granule: {outcome}: {}", object["reason"].as_str().unwrap());
        assert_eq!(last_line(&output), line);
    }
}

#[test]
fn bad_usage_exits_with_2_and_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (&["--memory", "4096"][..], "no unit"),
        (&["--page-size", "5k"], "16k"),
        (&["--va-bits", "40"], "36, 39, 42, 47, 48, 52"),
        (&["--nonsense"], "--nonsense"),
        (&["--el", "0"], "EL1 or EL2"),
        (&["--smp", "0"], "--smp 0"),
        (&["--dtb", "x", "--rodata", "off"], "exactly that tree"),
        (&["--load-address", "0x40200002"], "4-byte"),
        (&[], "cargo xtask image"),
    ] {
        let output = granule(dir.path(), words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(
            text(&output.stderr).contains(expected),
            "{words:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty());
        let printed = text(&output.stderr);
        assert!(
            printed.starts_with("granule: ") && printed.lines().count() == 1,
            "{printed}"
        );
    }
}

#[test]
fn addresses_and_trees_that_cannot_be_are_bad_usage() {
    let (dir, _) = with_image(&guests::prints("", 2));
    std::fs::write(dir.path().join("dtb"), b"junk").unwrap();
    std::fs::write(dir.path().join("empty"), b"").unwrap();
    for (words, expected) in [
        (&["--load-address", "0x1000"][..], "does not lie in RAM"),
        (&["--load-address", "0x40000000"], "does not lie in RAM"),
        (
            &["--memory", "256M", "--load-address", "0x140000000"],
            "more --memory",
        ),
        (
            &["--dtb", "dtb", "--dtb-address", "0x40200000"],
            "overlaps the image",
        ),
        (&["--dtb", "dtb", "--icount"], "granule.count=instructions"),
        (&["--dtb", "dtb", "--initrd", "dtb"], "linux,initrd-start"),
        (&["--initrd", "absent"], "--initrd absent"),
        (&["--initrd", "target"], "not a regular file"),
        (&["--initrd", "empty"], "has no bytes"),
    ] {
        let output = granule(dir.path(), words).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {}",
            text(&output.stderr)
        );
        assert!(
            last_line(&output).contains(expected),
            "{words:?}: {}",
            last_line(&output)
        );
    }
}

#[test]
fn help_teaches_by_example() {
    let output = granule(Path::new("/"), &["--help"]).output().unwrap();
    let help = text(&output.stdout);
    for word in [
        "Examples:",
        "granule boot --page-size 16k",
        "--icount",
        "exit code",
        "granule schema boot",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert_eq!(output.status.code(), Some(0));
}
