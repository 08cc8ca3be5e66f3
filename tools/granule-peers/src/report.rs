//! Debian's kernels in the page of `granule report`, beside ours: reads running machines.

use anyhow::Result;
use xtask::machine::{self, Machine};
use xtask::workspace::run as run_command;

use crate::machine::{LIMIT, archive};
use crate::parts::chore;
use crate::peers::Peers;

/// The same as the memory of our machines there.
const MEMORY: &str = "2G";
const WORDS: &str = "console=ttyAMA0 loglevel=1";
/// The line that the first process prints when the machine can be read. Then it waits forever.
const READY: &str = "ready to be read";
const SCRIPT: &str =
    "#!/bin/busybox sh\necho ready to be read\nwhile :; do /bin/busybox sleep 1000; done\n";

/// Makes the page with our kernel of each page size, and the newest of Debian's kernels of each
/// page size.
pub(crate) fn make(peers: &Peers<'_>) -> Result<()> {
    peers.add("report", page(peers));
    Ok(())
}

fn page(peers: &Peers<'_>) -> Result<String> {
    let archive = archive(&peers.busybox, "/bin", "").program("/init", SCRIPT.as_bytes());
    let initramfs = peers.files.initramfs("report.cpio", archive)?;
    let mut guests = Vec::new();
    let mut command = chore(&["report", "--"]);
    for (at, kernel) in peers.linuxes.iter().enumerate() {
        let mut newer = peers.linuxes.iter().skip(at + 1);
        if newer.any(|other| other.page_size == kernel.page_size) {
            continue;
        }
        let name = format!("{} (Debian), {} pages", kernel.name, kernel.size());
        let folder = peers.files.path();
        let mut qemu = machine::virt();
        qemu.args(["-cpu", "max", "-seed", "1", "-m", MEMORY, "-append", WORDS]);
        qemu.arg("-kernel").arg(&kernel.image);
        qemu.arg("-initrd").arg(&initramfs);
        let mut guest = Machine::start(qemu, &format!("linux-{at}"), folder, LIMIT)?;
        guest.until(READY)?;
        command.arg(guest.source());
        command.args(["--name", &name]);
        guests.push(guest);
    }
    run_command(command)?;
    Ok(format!("beside {} of Debian's kernels", guests.len()))
}
