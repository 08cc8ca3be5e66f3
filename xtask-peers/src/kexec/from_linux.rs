//! Debian's Linux, started by EDK2, leaves for our kernel with Debian's `kexec`: our kernel must find firmware's tables
//! by what Linux hands on, and every CPU that Linux has switched off.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Firmware, Initramfs, PageSize, Request, boot};
use serde_json::json;
use xtask::graph;

use crate::apt::{ARM64, Apt};
use crate::check::Check;
use crate::machine::{Files, Kernel, LIMIT, told};
use crate::peers::Peers;

/// The package of the program, its suite, and its path there.
const PACKAGE: &str = "kexec-tools";
const SUITE: &str = "bookworm";
const PROGRAM: &str = "sbin/kexec";
/// Where its packages have libraries. The loader of programs is among them.
const LIBRARIES: [&str; 2] = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

const APPLETS: [&str; 3] = ["mount", "poweroff", "sh"];
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 PATH=/bin";

const MEMORY: u64 = 1 << 30;
const CPUS: u32 = 4;
const CPU: &str = "neoverse-n1";

/// Whether ACPI describes the machine, the page size of our kernel, and the level at which Linux was entered.
const CASES: [(bool, PageSize, u8); 2] = [(true, PageSize::K64, 2), (false, PageSize::K16, 1)];

/// A check for each machine, from the first of Debian's kernels.
pub(crate) fn left(
    peers: &Peers<'_>,
    ours: &Path,
    files: &Files,
    folder: &Path,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let tools = tools(&folder.join(PACKAGE), fresh)?;
    let Some((Kernel::Linux { image, name }, _)) = peers.linuxes.first() else {
        anyhow::bail!("no kernel of Debian's was fetched");
    };
    let our_image = fs::read(ours).context("our image cannot be read")?;
    graph::all(
        CASES.len(),
        |at| {
            let (acpi, page_size, el) = CASES[at];
            let archive = archive(&peers.busybox, &tools, &our_image, page_size)?;
            let booted = boot::run(&Request {
                firmware: Firmware::Uefi,
                acpi,
                memory: MEMORY,
                smp: CPUS,
                cpu: CPU.to_owned(),
                el,
                timeout: LIMIT,
                image: Some(image.clone()),
                initrd: Some(files.initramfs(&format!("kexec-tools-{at}"), archive)?),
                append: Some(WORDS.to_owned()),
                ..Request::default()
            });
            judge(&booted, acpi, page_size, el)
        },
        |done| {
            let (acpi, page_size, el) = CASES[done.job];
            let what = if acpi { "ACPI" } else { "a device tree" };
            let to = size(page_size.bytes());
            let name = format!("kexec by EFI with {what} from {name} to Granule, {to}, EL{el}");
            add(Check::new(name, done.result));
        },
    );
    Ok(())
}

/// Debian's packages of the program, unpacked in a folder that is returned.
fn tools(folder: &Path, fresh: bool) -> Result<PathBuf> {
    let root = folder.join("root");
    if !fresh && root.join(PROGRAM).is_file() {
        return Ok(root);
    }
    eprintln!("granule: fetching {PACKAGE} of {SUITE}");
    let apt = Apt::new(&folder.join("apt"), ARM64)?;
    apt.update(&BTreeSet::from([SUITE]))?;
    let packages = apt.download_with_dependencies(PACKAGE, SUITE)?;
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    for package in packages {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(&package).arg(&root);
        let status = unpack.status().context("dpkg-deb cannot be started")?;
        ensure!(status.success(), "dpkg-deb -x {}", package.display());
    }
    Ok(root)
}

/// The initramfs of Linux. Each library goes by the name that programs ask for, which is a link in its package.
fn archive(busybox: &[u8], tools: &Path, ours: &[u8], page_size: PageSize) -> Result<Initramfs> {
    let program = fs::read(tools.join(PROGRAM)).context("the packages have no kexec")?;
    let mut archive = Initramfs::new();
    for folder in ["/proc", "/sys", "/bin", "/boot", "/lib"] {
        archive = archive.directory(folder);
    }
    archive = archive
        .program("/bin/busybox", busybox)
        .program("/bin/kexec", &program)
        .file("/boot/Image", ours);
    for applet in APPLETS {
        archive = archive.link(&format!("/bin/{applet}"), "busybox");
    }
    for folder in LIBRARIES.map(|folder| tools.join(folder)) {
        let libraries = fs::read_dir(&folder);
        let libraries = libraries.with_context(|| format!("cannot read {}", folder.display()))?;
        for library in libraries.filter_map(Result::ok) {
            let name = library.file_name().to_string_lossy().into_owned();
            if name.contains(".so.") && library.path().is_file() {
                let bytes = fs::read(library.path()).context("a library cannot be read")?;
                archive = archive.program(&format!("/lib/{name}"), &bytes);
            }
        }
    }
    Ok(archive.program("/init", script(page_size).as_bytes()))
}

/// The first process. Nothing comes after `kexec -e` if all is well.
fn script(page_size: PageSize) -> String {
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

/// Whether our kernel came up as it does when firmware starts it. What it prints is the only record.
fn judge(booted: &Boot, acpi: bool, page_size: PageSize, el: u8) -> Result<String> {
    ensure!(booted.is_ok(), "{}", told(booted));
    let record = booted.json();
    for (key, expected) in [
        ("firmware", json!("efi")),
        (
            "described_by",
            json!(if acpi { "acpi" } else { "device-tree" }),
        ),
        ("page_size", json!(page_size.bytes())),
        ("page_size_source", json!("command-line")),
        ("entry_el", json!(el)),
        ("cpus", json!(CPUS)),
        ("cpu_mismatch", json!([])),
    ] {
        let found = &record[key];
        ensure!(*found == expected, "{key} is {found}, expected {expected}");
    }
    let map = xtask::boot::text(&record, "efi.map")?;
    let console = booted.console_text();
    for words in ["EFI memory map:", "ACPI:", "EFI system table", "EFI list"] {
        let mut lines = console.lines().filter(|line| line.starts_with("granule: "));
        if let Some(line) = lines.find(|line| line.contains(words)) {
            anyhow::bail!("our kernel said {:?}", line.trim_end());
        }
    }
    Ok(format!("{CPUS} CPUs, the memory map at {map}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_every_program_it_calls() {
        let script = script(PageSize::K16);
        assert!(script.starts_with("#!/bin/busybox sh\n"));
        assert!(APPLETS.iter().all(|applet| script.contains(applet)));
        assert!(script.contains("arm64.pagesize=16k && kexec -e"));
    }
}
