//! The boot disk with another kernel on it: each boot loader starts Debian's unmodified Linux from a disk that
//! `granule boot` makes. It must reach its first process with the command line and the initramfs that it was
//! given, so a failure with our kernel on the same disk is one of our kernel.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use granule_cli::loader::Loader;
use granule_cli::{Boot, Firmware, Initramfs, Outcome, Request, boot};
use xtask::pool;

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

/// Boots the first of Debian's kernels by each boot loader.
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
    let initramfs = files.initramfs("disk.cpio", archive(&peers.busybox))?;
    pool::run(
        loaders.len(),
        pool::parallel(),
        || true,
        |at| {
            let (loader, program) = &loaders[at];
            let booted = boot::run(&Request {
                image: Some(image.clone()),
                initrd: Some(initramfs.clone()),
                append: Some(WORDS.to_owned()),
                memory: 1 << 30,
                cpu: CPU.to_owned(),
                firmware: match loader {
                    Loader::Grub | Loader::OlderGrub => Firmware::Grub,
                    Loader::SystemdBoot => Firmware::SystemdBoot,
                },
                loader: Some(program.clone()),
                timeout: LIMIT,
                ..Request::default()
            });
            judge(&booted)
        },
        |done| {
            let (loader, _) = &loaders[done.job];
            add(Check::new(
                format!("disk: {name} by {loader:?}"),
                done.result,
            ));
            true
        },
    );
    Ok(())
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
