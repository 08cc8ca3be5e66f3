//! `granule boot --crash` with a script in place of QEMU, which prints what kernels would and writes to the disk what a
//! crash kernel would: the core that is kept, and each way in which there is none. No QEMU.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use granule_testing::dumps::{elf_core, note};
use granule_testing::schema::assert_matches;
use serde_json::Value;
use tempfile::TempDir;

const DEAD: &str = "@granule page_size=4096\n@granule outcome=panic\n@granule reason=x.rs:1: sysrq\n\
                    @granule crash.entered=true\n@granule end\n";
const SAVED: &str =
    "@granule page_size=65536\n@granule crash.core_bytes=7\n@granule outcome=ok\n@granule end\n";

/// A core of 64 KiB of RAM, whose root maps a block and leads to the table at `next`.
fn core(next: u64) -> Vec<u8> {
    let mut ram = vec![0; 64 << 10];
    ram[0x1000..0x1008].copy_from_slice(&0x4000_0701_u64.to_le_bytes());
    ram[0x1008..0x1010].copy_from_slice(&(next | 3).to_le_bytes());
    ram[0x2000..0x2008].copy_from_slice(&0x8000_0701_u64.to_le_bytes());
    let info = "OSRELEASE=granule\nGRANULE(table_root)=0x40001000\nGRANULE(mair)=0xff\n\
                GRANULE(tcr)=0x580190010\n";
    elf_core(
        &[(0x4000_0000, ram)],
        &note("VMCOREINFO", 0, info.as_bytes()),
    )
}

/// A folder with an image, the program and the script.
fn folder(console: &str, core: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut image = vec![0; 64];
    image[16..24].copy_from_slice(&0x10000_u64.to_le_bytes());
    image[56..60].copy_from_slice(b"ARM\x64");
    fs::write(at("Image"), image).unwrap();
    fs::write(at("granule-kexec"), "program").unwrap();
    fs::write(at("console"), console).unwrap();
    fs::write(at("saved"), core).unwrap();
    let here = folder.path().display();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'QEMU emulator version 10.0.0' && exit\n\
         for word; do case $word in *id=vda*) disk=${{word##*file=}};; esac; done\n\
         cat {here}/console\ndd conv=notrunc,sparse if={here}/saved of=\"$disk\" 2>/dev/null\n"
    );
    fs::write(at("qemu"), script).unwrap();
    fs::set_permissions(at("qemu"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(at("out")).unwrap();
    folder
}

fn boot(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(["boot", "--crash", "--memory", "1M", "--qemu"])
        .arg(folder.join("qemu"))
        .arg("--image")
        .arg(folder.join("Image"))
        .arg("--crash-output")
        .arg(folder.join("out/core"))
        .args(words)
        .output()
        .unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("out")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_whole_core_is_kept_and_described() {
    let core = core(0x4000_2000);
    let folder = folder(&format!("dead\n{DEAD}{SAVED}"), &core);
    let at = folder.path();
    fs::write(at.join("out/core"), "an older one").unwrap();
    let done = boot(at, &["--json"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let object: Value = serde_json::from_slice(&done.stdout).unwrap();
    let schema = Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(["schema", "boot"])
        .output()
        .unwrap();
    assert_matches(&serde_json::from_slice(&schema.stdout).unwrap(), &object);
    let crash = &object["crash"];
    assert_eq!(crash["reason"], "x.rs:1: sysrq");
    assert_eq!(crash["core_bytes"], 7);
    assert_eq!(object["boots"][0]["crash"]["entered"], true);
    let found = &crash["core"];
    assert_eq!(found["bytes"], core.len());
    assert_eq!(found["output"], at.join("out/core").to_str().unwrap());
    assert_eq!(
        (&found["page_size"], &found["va_bits"]),
        (&4096.into(), &39.into())
    );
    assert_eq!(
        (&found["ram_bytes"], &found["ranges"]),
        (&65536.into(), &2.into())
    );
    assert_eq!(found["totals"]["tables"], 2);
    assert_eq!(files(at), [at.join("out/core")]);
    assert!(fs::read(at.join("out/core")).unwrap() == core);
}

#[test]
fn without_a_whole_core_the_boot_fails_in_one_line_and_leaves_no_file() {
    let whole = core(0x4000_2000);
    let well = format!("{DEAD}{SAVED}");
    // More than the disk has.
    let mut long = whole.clone();
    long[64 + 56 + 32..][..8].copy_from_slice(&(1_u64 << 30).to_le_bytes());
    for (console, core, words) in [
        (
            &well[..],
            &[0; 8192][..],
            "panic: the crash kernel wrote no core to its disk; ",
        ),
        (&well, &whole[..100], "is not a whole core: "),
        (&well, b"not a core", "is not a whole core: "),
        (
            &well,
            &long,
            "and the disk 17825792; the kernel had crashed: x.rs:1: sysrq",
        ),
        // A table that is not in it.
        (&well, &self::core(0x4800_0000), "is not a whole core: "),
        (SAVED, &whole, "guest-exit: "),
        (
            "@granule kexec.refused=no room\n@granule outcome=guest-exit\n@granule end\n",
            &whole,
            "refused: no room",
        ),
    ] {
        let folder = folder(console, core);
        let done = boot(folder.path(), &[]);
        let printed = String::from_utf8_lossy(&done.stderr).into_owned();
        let last = printed.lines().last().unwrap_or_default();
        assert!(last.contains(words), "{words:?} in {last:?}");
        assert_eq!(done.status.code(), Some(1), "{last}");
        assert_eq!(files(folder.path()), [""; 0].map(PathBuf::from), "{last}");
    }
}

#[test]
fn a_folder_for_the_core_that_is_not_there_is_bad_usage() {
    let folder = folder("", b"");
    fs::remove_dir(folder.path().join("out")).unwrap();
    let done = boot(folder.path(), &[]);
    assert_eq!(done.status.code(), Some(2));
    let printed = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        printed.contains("refused: --crash-output: a file in "),
        "{printed}"
    );
}
