//! This kernel crashes into each of Debian's kernels, which copies `/proc/vmcore` to a disk: with Debian's `dd`, and with
//! the program `kexec` of this project. The copy must have the page tables that the record of the dead kernel counts.
//!
//! Debian's makedumpfile refuses such a core even for all pages (`-d 0`): on arm64 it needs Linux's `struct page`.

use anyhow::{Context, Result, ensure};
use granule::arch::PhysicalAddress;
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Crash, PageSize, Request, boot};
use granule_inspect::source::Source;
use granule_inspect::{Options, open};
use serde_json::{Value, json};
use xtask::boot::require;
use xtask::files;
use xtask::workspace::image_path;

use crate::inspect::of_kernel;
use crate::machine::{self, Kernel, ending, items, marked, program, request};
use crate::peers::Peers;
use crate::store::hash;

/// The beginning of the script's one line.
const MARK: &str = "crash kernel:";

/// The first process. A kernel that lacks a module has it built in.
pub(crate) const SCRIPT: &str = "#!/bin/busybox sh
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in virtio_mmio virtio_blk; do
  [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko || poweroff -f
done
case $copy in
  dd) dd if=/proc/vmcore of=/dev/vda bs=1M conv=fsync 2> /dev/null ;;
  kexec) granule-kexec core /proc/vmcore /dev/vda --zeroed ;;
esac
echo \"crash kernel: copied=$? sha256=$(sha256sum < /proc/vmcore) \\
linux=$(uname -v | sed 's/.*Debian \\([^-]*\\).*/\\1/')\"
stty opost && poweroff -f
";

pub(crate) const APPLETS: &str = "sh dd echo insmod mount poweroff sed sha256sum stty uname";
const MODULES: [&str; 2] = ["virtio_mmio", "virtio_blk"];

const RAM: u64 = 0x4000_0000;
const MEMORY: u64 = 512 << 20;
const RESERVED: u64 = 256 << 20;

/// The program that copies, and the number of the dead kernel's CPUs.
const COPIES: [(&str, u32); 2] = [("dd", 4), ("kexec", 1)];

/// A Debian kernel by its index, and the page size of the kernel that crashes.
struct CrashBoot {
    kernel: usize,
    from: PageSize,
    copy: &'static str,
    cpus: u32,
}

/// Crashes into each of Debian's kernels, and adds a check for each.
pub(crate) fn entered(peers: &Peers<'_>) -> Result<()> {
    let cases = (0..peers.linuxes.len()).map(|kernel| {
        let (copy, cpus) = COPIES[kernel % COPIES.len()];
        CrashBoot {
            kernel,
            // The oldest kernel is in every run.
            from: [PageSize::K16, PageSize::K64, PageSize::K4][kernel % 3],
            copy,
            cpus,
        }
    });
    peers.each(
        &cases.collect::<Vec<_>>(),
        |case| {
            let next = &peers.linuxes[case.kernel];
            format!(
                "crash from {} to {}, {}, CPUs: {}, copied by {}",
                size(case.from.bytes()),
                next.name,
                next.size(),
                case.cpus,
                case.copy
            )
        },
        |case| crash(peers, case),
    );
    Ok(())
}

fn crash(peers: &Peers<'_>, case: &CrashBoot) -> Result<String> {
    let next = &peers.linuxes[case.kernel];
    let folder = peers.files.new_folder()?;
    let archive = machine::archive(&peers.busybox, "/proc /dev /bin /modules", APPLETS)
        .program("/bin/granule-kexec", &program("granule-kexec")?)
        .program("/init", SCRIPT.as_bytes());
    let modules = peers.modules(case.kernel, &MODULES)?;
    let archive = modules.iter().fold(archive, |archive, (name, bytes)| {
        archive.file(&format!("/modules/{name}.ko"), bytes)
    });
    let initrd = folder.path().join("initrd");
    files::write(&initrd, archive.bytes())?;
    let words = format!(
        "{} maxcpus=1 PATH=/bin copy={}",
        machine::LINUX_WORDS,
        case.copy
    );
    let booted = boot::run(&Request {
        image: Some(image_path()),
        page_size: Some(case.from),
        append: Some(format!("crashkernel={}M", RESERVED >> 20)),
        crash: Some(Crash {
            crash: true,
            kernel: Some(next.image.clone()),
            initrd: Some(initrd),
            append: Some(words),
            output: Some(folder.path().join("core")),
            ..Crash::default()
        }),
        ..request(MEMORY, case.cpus)
    });
    ensure!(booted.is_ok(), "{}", ending(&booted));
    judge(&booted, case.from, next).with_context(|| ending(&booted))
}

/// Checks the line of the crash kernel, and the copy by the record of the dead kernel.
fn judge(booted: &Boot, from: PageSize, next: &Kernel) -> Result<String> {
    let record = booted.json();
    let core = booted.crash.as_ref().and_then(|it| it.core.as_ref());
    let core = core.context("it has no core")?;
    let sum = hash(&files::read(&core.output)?);
    let expected = format!(" copied=0 sha256={sum}  - linux={}", next.version());
    let console = booted.console_text();
    let line = marked(&console, MARK)?;
    ensure!(line == expected, "it printed{line:?}, expected{expected:?}");
    let dead = &record["boots"][0];
    require(
        &record,
        [
            ("boots.0.outcome", json!("panic")),
            ("boots.0.linear_map.ram_bytes", json!(MEMORY)),
            ("crash.core.ram_bytes", json!(MEMORY - RESERVED)),
            ("crash.core.page_size", json!(from.bytes())),
            ("crash.core.va_bits", dead["va_bits"].clone()),
        ],
    )?;

    let opened = open(&Source::File(core.output.clone()), &Options::default())?;
    let kernel = of_kernel(&opened)?;
    let distance = dead["linear_map"]["distance"].as_u64();
    let start = RAM.wrapping_add(distance.context("the record has no distance")?);
    let inside = |address: u64| (start..start + MEMORY).contains(&address);
    let of_ram = || kernel.ranges.iter().filter(|it| inside(it.start));
    ensure!(
        of_ram().all(|it| it.output == it.start - start + RAM),
        "a page of the linear map is not where it was"
    );
    let leaves = items(&dead["linear_map"]["leaves"]);
    ensure!(!leaves.is_empty(), "the record has no leaves");
    let mut mapped = 0;
    for leaf in leaves {
        let [bytes, count] = ["size", "count"].map(|key| leaf[key].as_u64().unwrap_or_default());
        let alike = of_ram().filter(|it| {
            (it.leaf_bytes, Value::from(it.contiguous)) == (bytes, leaf["contiguous"].clone())
        });
        let found: u64 = alike.map(|it| it.bytes / it.leaf_bytes).sum();
        ensure!(
            found == count,
            "{found} leaves of {bytes} bytes, expected {count}"
        );
        mapped += count * bytes;
    }
    let all: u64 = of_ram().map(|it| it.bytes).sum();
    ensure!(
        (mapped, all) == (MEMORY, MEMORY),
        "the linear map has {all} bytes, {mapped} in leaves of the record, expected {MEMORY}"
    );

    // The image that crashed is where QEMU had put it.
    let mut found = vec![0; 4096];
    let place = PhysicalAddress(RAM + (2 << 20));
    opened.memory.read(place, &mut found)?;
    ensure!(
        files::read(&image_path())?.starts_with(&found),
        "the image is not in the core"
    );
    Ok(format!(
        "{} bytes, {} ranges, {} tables",
        core.bytes,
        kernel.ranges.len(),
        kernel.tables.values().sum::<u64>()
    ))
}
