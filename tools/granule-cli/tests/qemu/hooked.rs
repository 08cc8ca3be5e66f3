//! Starts every guest of these tests: chooses the QEMU, and the image with or without the hooks for tests.
//!
//! A boot repeats bit for bit, by the options in `exact/qemu-system-aarch64`, unless its test is in a module named
//! `live`: only there a guest has the host's clock and a host thread for each CPU.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use granule_cli::{Boot, Initramfs, Outcome, Request, boot};

use crate::booted::Booted;
use crate::image::{built, image};

/// The image with the hooks for tests.
pub(crate) fn test_image() -> PathBuf {
    built("Image-test", "cargo xtask image --test")
}

/// The folder with the QEMU of exact tests.
const EXACT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/qemu/exact");

/// Nanoseconds that an instruction takes, as powers of two, with which races are hunted: the CPUs of an exact
/// boot change over elsewhere with each.
pub(crate) const SHIFTS: [u32; 3] = [0, 3, 7];

/// The request, for a boot that is exact wherever its test stands, with one of [`SHIFTS`].
pub(crate) fn shifted(request: &Request, shift: u32) -> Request {
    Request {
        qemu: Path::new(EXACT).join(format!("shift-{shift}")),
        ..request.clone()
    }
}

/// Whether the thread is that of a live test, after which the test runner has named it.
fn is_live() -> bool {
    let thread = std::thread::current();
    thread
        .name()
        .is_some_and(|name| name.split("::").any(|module| module == "live"))
}

/// The QEMU for the test that calls.
pub(crate) fn qemu() -> PathBuf {
    let folder = if is_live() { "" } else { EXACT };
    Path::new(folder).join("qemu-system-aarch64")
}

/// The `granule` program, which finds the QEMU for the test that calls.
pub(crate) fn granule() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_granule"));
    if !is_live() {
        let usual = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{EXACT}:{usual}"));
    }
    command
}

/// The request, for [`qemu`] unless it names another one, and on the test image if one of its words is that image's.
/// A word counts for the next kernel too, which is the same image unless the request names another.
pub(crate) fn hooked(request: &Request) -> Request {
    let next = request
        .kexec
        .as_ref()
        .and_then(|kexec| kexec.append.as_ref());
    let words = [request.append.as_ref(), next];
    let mut words = words.into_iter().flatten();
    let hooks = [
        "granule.test=",
        "granule.crash=",
        "arm64.fake_cpu=",
        "arm64.inject_conflict=",
    ];
    let mut request = request.clone();
    if request.qemu == Request::default().qemu {
        request.qemu = qemu();
    }
    if request.image == Some(image())
        && words.any(|line| hooks.iter().any(|hook| line.contains(hook)))
    {
        request.image = Some(test_image());
    }
    request
}

/// Boots with the QEMU and on the image that the request belongs to, as [`boot::boot`].
pub(crate) fn boot(request: &Request, console: &mut dyn Write, interrupt: &AtomicBool) -> Boot {
    boot::boot(&hooked(request), console, interrupt)
}

/// The same with the console in the result only.
pub(crate) fn run(request: &Request) -> Boot {
    boot::run(&hooked(request))
}

/// The same for what must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, outcome: Outcome) -> Booted {
    let booted = Booted::by(request);
    booted.ended(outcome);
    assert_eq!(booted.last_line().lines().count(), 1);
    booted
}

/// The same with this archive for an initramfs.
#[track_caller]
pub(crate) fn ends_with(request: &Request, archive: Initramfs, outcome: Outcome) -> Booted {
    let file = tempfile::NamedTempFile::new().unwrap();
    archive.write(file.path()).unwrap();
    let request = request.clone().initrd(file.path().to_owned());
    ends(&request, outcome)
}

/// A boot past this file would not repeat, and nobody would see it.
#[test]
fn no_other_file_starts_a_guest() {
    let starts = [
        "boot::run(",
        "boot::boot(",
        "\"qemu-system-",
        "CARGO_BIN_EXE_",
    ];
    let mut folders = vec![Path::new(EXACT).with_file_name("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("hooked.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                for (line, text) in text.lines().enumerate() {
                    let found = starts.iter().find(|start| text.contains(**start));
                    let place = format!("{}:{}", path.display(), line + 1);
                    assert_eq!(found, None, "{place} starts a guest: let hooked.rs do it");
                }
            }
        }
    }
}
