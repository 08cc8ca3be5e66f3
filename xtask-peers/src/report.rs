//! Debian's kernels in the page of `granule report`, beside ours: machines that run while they are read.

use anyhow::{Context, Result};
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, PageSize};
use xtask::machine::Machine;
use xtask::workspace::{cargo, run as run_command};

use crate::machine::{Files, Kernel, LIMIT};

/// As much as ours has there.
const MEMORY: &str = "2G";
const WORDS: &str = "console=ttyAMA0 loglevel=1";
/// What the first process says when the machine can be read. Then it waits for ever.
const READY: &str = "ready to be read";
const SCRIPT: &str =
    "#!/bin/busybox sh\necho ready to be read\nwhile :; do /bin/busybox sleep 1000; done\n";

/// Makes the page: our kernel with each page size, and of Debian's kernels the newest of each page size.
pub(crate) fn make(
    linuxes: &[(Kernel, PageSize)],
    busybox: &[u8],
    files: &Files,
) -> Result<String> {
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/busybox", busybox)
        .program("/init", SCRIPT.as_bytes());
    let initramfs = files.initramfs("report.cpio", archive)?;
    let folder = initramfs
        .parent()
        .context("the initramfs is in no folder")?;
    let mut guests = Vec::new();
    let mut command = cargo(&["xtask", "report", "--"]);
    for (at, (kernel, page_size)) in linuxes.iter().enumerate() {
        let newer = linuxes
            .iter()
            .skip(at + 1)
            .any(|other| other.1 == *page_size);
        let Kernel::Linux { image, name } = kernel else {
            continue;
        };
        if newer {
            continue;
        }
        let name = format!("{name} (Debian), {} pages", size(page_size.bytes()));
        let mut guest = Machine::start(&format!("linux-{at}"), folder, LIMIT, |qemu| {
            qemu.args(["-cpu", "max", "-seed", "1", "-m", MEMORY, "-append", WORDS]);
            qemu.arg("-kernel")
                .arg(image)
                .arg("-initrd")
                .arg(&initramfs);
        })?;
        while !guest.said().contains(READY) {
            guest.wait()?;
        }
        command.arg(guest.source());
        command.args(["--name", &name]);
        guests.push(guest);
    }
    let number = guests.len();
    run_command(command)?;
    Ok(format!("beside {number} of Debian's kernels"))
}
