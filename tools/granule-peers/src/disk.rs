//! The boot disk with another kernel on it: each boot loader starts Debian's unmodified Linux from
//! a disk that `granule boot` makes. Linux must reach its first process with its command line and
//! its initramfs, so a failure with our kernel on the same disk is due to our kernel. Our kernel
//! and the disk of `make disk` follow.

use anyhow::{Context, Result, ensure};
use granule_cli::loader::Loader;
use granule_cli::{Boot, Firmware, Initramfs, Outcome, PageSize, Request, boot};
use xtask::workspace::{image_path, run as run_command};

use crate::loaders;
use crate::machine::{archive, ending, marked, program, request};
use crate::parts::chore;
use crate::peers::Peers;
use crate::store::hash;

/// The beginning of the script's one line.
const MARK: &str = "from the disk:";

/// The first process: reports its initramfs and command line, and powers off when its output is
/// written.
pub(crate) const SCRIPT: &str = "#!/bin/busybox sh
mount -t proc proc /proc
echo \"from the disk: sha256=$(sha256sum < /payload) cmdline=$(cat /proc/cmdline)\"
stty opost && poweroff -f
";

pub(crate) const APPLETS: &str = "sh cat echo mount poweroff sha256sum stty";

/// Words that each boot loader must pass on unchanged.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 granule.test=a=b,c;d PATH=/bin";

struct DiskBoot {
    name: String,
    request: Request,
    judge: fn(&Boot) -> Result<String>,
}

/// Boots the first of Debian's kernels and ours by each boot loader, and the disk of `make disk` as
/// it is.
pub(crate) fn booted(peers: &Peers<'_>) -> Result<()> {
    let loaders = loaders::fetch(&peers.folder, peers.fresh)?;
    let linux = peers.linux(0)?;
    let files = &peers.files;
    let made = files.folder("made")?.join("disk.img");
    let mut make = chore(&["disk", "--output"]);
    make.arg(&made);
    run_command(make)?;
    let machine = request(1 << 30, 1);
    let mut cases = vec![DiskBoot {
        name: "Granule, as `make disk` wrote it".to_owned(),
        request: Request {
            firmware: Firmware::Uefi,
            disk: Some(made),
            ..machine.clone()
        },
        judge: greeted,
    }];
    let archive = archive(&peers.busybox, "/proc /bin", APPLETS)
        .file("/payload", PAYLOAD)
        .program("/init", SCRIPT.as_bytes());
    let linux_s = files.initramfs("linux.cpio", archive)?;
    // Its first process greets.
    let greeter = Initramfs::new()
        .directory("/bin")
        .program("/bin/granule-user", &program("granule-user")?)
        .program("/init", b"#!/bin/granule-user hello\n");
    let ours = files.initramfs("granule.cpio", greeter)?;
    for ((loader, program), page_size) in loaders.into_iter().zip(PageSize::ALL) {
        let by_loader = Request {
            firmware: match loader {
                Loader::Grub | Loader::OlderGrub => Firmware::Grub,
                Loader::SystemdBoot => Firmware::SystemdBoot,
            },
            loader: Some(program),
            ..machine.clone()
        };
        cases.push(DiskBoot {
            name: format!("{} by {loader:?}", linux.name),
            request: by_loader
                .clone()
                .image(linux.image.clone())
                .initrd(linux_s.clone())
                .append(WORDS),
            judge,
        });
        cases.push(DiskBoot {
            name: format!("Granule by {loader:?}, {}", page_size.word()),
            request: by_loader
                .image(image_path())
                .initrd(ours.clone())
                .page_size(page_size),
            judge: greeted,
        });
    }
    peers.each(
        &cases,
        |case| format!("disk: {}", case.name),
        |case| (case.judge)(&boot::run(&case.request)),
    );
    Ok(())
}

/// Checks that our kernel ended well, and that its first process printed the page size that the
/// kernel reports.
fn greeted(booted: &Boot) -> Result<String> {
    ensure!(booted.is_ok(), "{}", ending(booted));
    let json = booted.json();
    let bytes = json["page_size"].as_u64().context("it has no page size")?;
    let line = format!("page size {bytes}");
    let console = booted.console_text();
    let has_line = console.lines().any(|printed| printed.trim_end() == line);
    ensure!(has_line, "its first process did not print {line:?}");
    Ok(line)
}

const PAYLOAD: &[u8] = b"arrived as it was sent";

fn judge(booted: &Boot) -> Result<String> {
    // Linux does not print our record.
    ensure!(booted.outcome == Outcome::GuestExit, "{}", ending(booted));
    line(&booted.console_text()).with_context(|| ending(booted))
}

fn line(console: &str) -> Result<String> {
    let line = marked(console, MARK)?;
    let sum = format!("sha256={} ", hash(PAYLOAD));
    ensure!(line.contains(&sum), "it printed{line:?}, expected {sum:?}");
    // Boot loaders add words of their own, in front or behind.
    let has_words = line.contains(&format!("={WORDS}")) || line.contains(&format!(" {WORDS}"));
    ensure!(has_words, "it printed{line:?}, expected {WORDS:?}");
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
