//! Debian's Linux, started by EDK2, leaves for our kernel with Debian's `kexec`. Our kernel must
//! find firmware's tables by the data from Linux, and every CPU that Linux has switched off.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Firmware, Initramfs, PageSize, Request, boot};
use serde_json::json;
use xtask::boot::require;
use xtask::files;
use xtask::workspace::image_path;

use crate::apt::{ARM64, Program};
use crate::machine::{self, ending, request};
use crate::peers::Peers;

const KEXEC: Program<'_> = Program {
    package: "kexec-tools",
    path: "sbin/kexec",
    suites: &["bookworm"],
};
/// The folders of libraries in its packages, which include the program loader.
const LIBRARIES: [&str; 2] = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

pub(crate) const APPLETS: &str = "mount poweroff sh";
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 PATH=/bin";

const MEMORY: u64 = 1 << 30;
const CPUS: u32 = 4;

/// Whether ACPI describes the machine, the page size of our kernel, and the level at which Linux
/// was entered.
const CASES: [(bool, PageSize, u8); 2] = [(true, PageSize::K64, 2), (false, PageSize::K16, 1)];

/// Adds a check for each machine, with the first of Debian's kernels.
pub(crate) fn left(peers: &Peers<'_>) -> Result<()> {
    let tools = tools(peers)?;
    let linux = peers.linux(0)?;
    let our_image = files::read(&image_path())?;
    peers.each(
        &CASES,
        |&(acpi, page_size, el)| {
            let what = if acpi { "ACPI" } else { "a device tree" };
            let (name, to) = (&linux.name, size(page_size.bytes()));
            format!("kexec by EFI with {what} from {name} to Granule, {to}, EL{el}")
        },
        |&(acpi, page_size, el)| {
            let archive = archive(&peers.busybox, &tools, &our_image, &script(page_size))?;
            let name = format!("kexec-tools-{el}");
            let booted = boot::run(&Request {
                firmware: Firmware::Uefi,
                acpi,
                el,
                image: Some(linux.image.clone()),
                initrd: Some(peers.files.initramfs(&name, archive)?),
                append: Some(WORDS.to_owned()),
                ..request(MEMORY, CPUS)
            });
            judge(&booted, acpi, page_size, el)
        },
    );
    Ok(())
}

/// Unpacks Debian's `kexec` with its libraries. Returns the folder.
pub(crate) fn tools(peers: &Peers<'_>) -> Result<PathBuf> {
    let folder = peers.folder.join(KEXEC.package);
    KEXEC.unpacked(ARM64, &folder, peers.fresh)
}

/// Makes the initramfs of a Linux that leaves for an image by a script. Each library has the name that programs refer
/// to, which is a link in its package.
pub(crate) fn archive(
    busybox: &[u8],
    tools: &Path,
    image: &[u8],
    script: &str,
) -> Result<Initramfs> {
    let mut archive = machine::archive(busybox, "/proc /sys /bin /boot /lib", APPLETS)
        .program("/bin/kexec", &files::read(&tools.join(KEXEC.path))?)
        .file("/boot/Image", image);
    for folder in LIBRARIES.map(|folder| tools.join(folder)) {
        let libraries =
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for library in libraries.filter_map(Result::ok) {
            let name = library.file_name().to_string_lossy().into_owned();
            if name.contains(".so.") && library.path().is_file() {
                archive = archive.program(&format!("/lib/{name}"), &files::read(&library.path())?);
            }
        }
    }
    Ok(archive.program("/init", script.as_bytes()))
}

/// Makes the script of the first process. `kexec -e` does not return if it succeeds.
pub(crate) fn script(page_size: PageSize) -> String {
    format!(
        "#!/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
kexec -c -l /boot/Image --command-line=arm64.pagesize={} && kexec -e
poweroff -f
",
        page_size.word()
    )
}

/// Checks that our kernel booted as if firmware had started it, by its console alone.
fn judge(booted: &Boot, acpi: bool, page_size: PageSize, el: u8) -> Result<String> {
    ensure!(booted.is_ok(), "{}", ending(booted));
    let record = booted.json();
    let described_by = if acpi { "acpi" } else { "device-tree" };
    require(
        &record,
        [
            ("firmware", json!("efi")),
            ("described_by", json!(described_by)),
            ("page_size", json!(page_size.bytes())),
            ("page_size_source", json!("command-line")),
            ("entry_el", json!(el)),
            ("cpus", json!(CPUS)),
            ("cpu_mismatch", json!([])),
        ],
    )?;
    let map = xtask::boot::text(&record, "efi.map")?;
    let console = booted.console_text();
    for words in ["EFI memory map:", "ACPI:", "EFI system table", "EFI list"] {
        let mut lines = console.lines().filter(|line| line.starts_with("granule: "));
        if let Some(line) = lines.find(|line| line.contains(words)) {
            bail!("our kernel printed {:?}", line.trim_end());
        }
    }
    Ok(format!("{CPUS} CPUs, the memory map at {map}"))
}
