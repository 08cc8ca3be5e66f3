//! The boot disk with another kernel on it: each boot loader starts Debian's unmodified Linux from a disk that
//! `granule boot` makes. It must reach its first process with the command line and the initramfs that it was
//! given, so a failure with our kernel on the same disk is one of our kernel. Then ours, and the disk of `make disk`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use granule_cli::loader::Loader;
use granule_cli::{Boot, Firmware, Initramfs, Outcome, PageSize, Request, boot};
use xtask::graph;
use xtask::workspace::{cargo, image_path, run as run_command, target_dir};

use crate::check::Check;
use crate::loaders;
use crate::machine::{CPU, Files, Kernel, told};
use crate::peers::Peers;
use crate::store::hash;

/// The beginning of the script's one line.
const MARK: &str = "from the disk:";

/// The first process: reports what it was given and powers off, when its output is written.
const SCRIPT: &str = "#!/bin/busybox sh
mount -t proc proc /proc
echo \"from the disk: sha256=$(sha256sum < /payload) cmdline=$(cat /proc/cmdline)\"
stty opost && poweroff -f
";

const APPLETS: [&str; 6] = ["cat", "echo", "mount", "poweroff", "sha256sum", "stty"];

/// Words that each boot loader must hand over as they are.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 granule.test=a=b,c;d PATH=/bin";

/// Firmware, boot loader and Linux take ten seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A boot from the disk.
struct Case {
    name: String,
    request: Request,
    judge: fn(&Boot) -> Result<String>,
}

/// Boots the first of Debian's kernels and ours by each boot loader, and the disk of `make disk` as it is.
pub(crate) fn booted(
    peers: &Peers<'_>,
    files: &Files,
    folder: &Path,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let loaders = loaders::fetch(folder, fresh)?;
    let Some((Kernel::Linux { image, name }, _)) = peers.linuxes.first() else {
        bail!("no kernel of Debian's was fetched");
    };
    let made = files.folder("made")?.join("disk.img");
    let mut make = cargo(&["xtask", "disk", "--output"]);
    make.arg(&made);
    run_command(make)?;
    let machine = Request {
        memory: 1 << 30,
        cpu: CPU.to_owned(),
        timeout: LIMIT,
        ..Request::default()
    };
    let mut cases = vec![Case {
        name: "Granule, as `make disk` wrote it".to_owned(),
        request: Request {
            firmware: Firmware::Uefi,
            disk: Some(made),
            ..machine.clone()
        },
        judge: greeted,
    }];
    let linux_s = files.initramfs("linux.cpio", archive(&peers.busybox))?;
    let program = std::fs::read(target_dir().join("granule").join("granule-user"))?;
    let ours = files.initramfs("granule.cpio", greeter(&program))?;
    for ((loader, program), page_size) in loaders.into_iter().zip(PAGE_SIZES) {
        let by_loader = Request {
            firmware: match loader {
                Loader::Grub | Loader::OlderGrub => Firmware::Grub,
                Loader::SystemdBoot => Firmware::SystemdBoot,
            },
            loader: Some(program),
            ..machine.clone()
        };
        cases.push(Case {
            name: format!("{name} by {loader:?}"),
            request: Request {
                image: Some(image.clone()),
                initrd: Some(linux_s.clone()),
                append: Some(WORDS.to_owned()),
                ..by_loader.clone()
            },
            judge,
        });
        cases.push(Case {
            name: format!("Granule by {loader:?}, {}", page_size.word()),
            request: Request {
                image: Some(image_path()),
                initrd: Some(ours.clone()),
                page_size: Some(page_size),
                ..by_loader
            },
            judge: greeted,
        });
    }
    graph::all(
        cases.len(),
        |at| (cases[at].judge)(&boot::run(&cases[at].request)),
        |done| {
            let name = format!("disk: {}", cases[done.job].name);
            add(Check::new(name, done.result));
        },
    );
    Ok(())
}

const PAGE_SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// An initramfs whose first process greets, for our kernel.
fn greeter(program: &[u8]) -> Initramfs {
    Initramfs::new()
        .directory("/bin")
        .program("/bin/granule-user", program)
        .program("/init", b"#!/bin/granule-user hello\n")
}

/// Our kernel has ended well, and its first process has greeted with the page size that the kernel reports.
fn greeted(booted: &Boot) -> Result<String> {
    ensure!(booted.is_ok(), "{}", told(booted));
    let json = booted.json();
    let bytes = json["page_size"].as_u64().context("it has no page size")?;
    let line = format!("page size {bytes}");
    let console = booted.console_text();
    let has_line = console.lines().any(|said| said.trim_end() == line);
    ensure!(has_line, "its first process did not say {line:?}");
    Ok(line)
}

fn archive(busybox: &[u8]) -> Initramfs {
    let archive = Initramfs::new()
        .directory("/proc")
        .directory("/bin")
        .program("/bin/busybox", busybox)
        .link("/bin/sh", "busybox");
    let archive = APPLETS.into_iter().fold(archive, |archive, applet| {
        archive.link(&format!("/bin/{applet}"), "busybox")
    });
    archive
        .file("/payload", PAYLOAD)
        .program("/init", SCRIPT.as_bytes())
}

const PAYLOAD: &[u8] = b"arrived as it was sent";

fn judge(booted: &Boot) -> Result<String> {
    // Linux prints no record of ours.
    ensure!(booted.outcome == Outcome::GuestExit, "{}", told(booted));
    line(&booted.console_text()).with_context(|| told(booted))
}

fn line(console: &str) -> Result<String> {
    let mut lines = console.lines().map(str::trim_end);
    let line = lines
        .find_map(|line| Some(line.split_once(MARK)?.1))
        .context("it did not come to its first process")?;
    let sum = format!("sha256={} ", hash(PAYLOAD));
    ensure!(line.contains(&sum), "it said{line:?}, expected {sum:?}");
    // Boot loaders add words of their own, in front or behind.
    let has_words = line.contains(&format!("={WORDS}")) || line.contains(&format!(" {WORDS}"));
    ensure!(has_words, "it said{line:?}, expected {WORDS:?}");
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_must_have_the_sum_and_all_words() {
        let good = format!(
            "menu\r\n{MARK} sha256={}  - cmdline=BOOT_IMAGE=/x {WORDS} initrd=y\r\n",
            hash(PAYLOAD)
        );
        assert!(line(&good).is_ok());
        assert!(line(&good.replace("BOOT_IMAGE=/x ", "")).is_ok());
        for (part, other) in [(MARK, "x"), ("sha256=", "sha256=1"), ("a=b,c;d", "a=b,c")] {
            assert!(good.contains(part), "{part}");
            assert!(line(&good.replace(part, other)).is_err(), "{part}");
        }
    }
}
