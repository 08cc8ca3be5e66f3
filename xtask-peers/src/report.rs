//! Debian's kernels in the page of `granule report`, beside ours: machines that run while they are read.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use granule_cli::boot::clock::{ProcessClock, TICK};
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, PageSize};
use xtask::workspace::{cargo, run as run_command};

use crate::machine::{Files, Kernel, LIMIT};

/// As much as ours has there.
const MEMORY: &str = "2G";
/// What the first process says when the machine can be read. Then it waits for ever.
const READY: &str = "ready to be read";
const SCRIPT: &str =
    "#!/bin/busybox sh\necho ready to be read\nwhile :; do /bin/busybox sleep 1000; done\n";

/// A machine that runs Linux.
struct Guest {
    qemu: Child,
    socket: PathBuf,
    console: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that QEMU has ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Boots until the first process runs.
    fn boot(image: &Path, initramfs: &Path, folder: &Path, name: &str) -> Result<Self> {
        let socket = folder.join(format!("{name}.qmp"));
        let console = folder.join(format!("{name}.console"));
        let mut qemu = Command::new("qemu-system-aarch64");
        qemu.args("-no-user-config -nodefaults -display none -no-reboot".split(' '));
        qemu.args("-machine virt,gic-version=3,acpi=off -cpu max -smp 2 -seed 1".split(' '));
        qemu.args([
            "-m",
            MEMORY,
            "-append",
            "console=ttyAMA0 loglevel=1",
            "-kernel",
        ]);
        qemu.arg(image).arg("-initrd").arg(initramfs);
        qemu.arg("-serial")
            .arg(format!("file:{}", console.display()));
        qemu.arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()));
        let qemu = qemu.stdin(Stdio::null()).spawn();
        let qemu = qemu.context("cannot start qemu-system-aarch64")?;
        let mut clock = ProcessClock::start(qemu.id());
        let mut guest = Self {
            qemu,
            socket,
            console,
        };
        loop {
            let said = std::fs::read(&guest.console).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains(READY) {
                return Ok(guest);
            }
            if let Some(status) = guest.qemu.try_wait()? {
                bail!("QEMU with {name} ended with {status}");
            }
            if clock.look() > LIMIT {
                bail!("{name} does not reach its first process");
            }
            thread::sleep(TICK);
        }
    }
}

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
        let guest = Guest::boot(image, &initramfs, folder, &format!("linux-{at}"))?;
        command.arg(format!("qmp:{}", guest.socket.display()));
        command.args(["--name", &name]);
        guests.push(guest);
    }
    let number = guests.len();
    run_command(command)?;
    Ok(format!("beside {number} of Debian's kernels"))
}
