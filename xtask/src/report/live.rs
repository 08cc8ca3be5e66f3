//! A machine that is kept after its guest has ended, to be read through its QMP socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Error, Result, bail};
use granule_cli::boot::clock::{ProcessClock, TICK};
use granule_inspect::source::Endpoint;
use granule_inspect::source::qmp::Qmp;
use serde_json::json;

use crate::guest::LIMIT;

/// A QEMU whose guest runs, or has ended.
pub(super) struct Guest {
    qemu: Child,
    clock: ProcessClock,
    /// A socket serves one client at a time: one for us, one for `granule report`.
    ours: PathBuf,
    theirs: PathBuf,
    page_size: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Boots the kernel.
    pub(super) fn boot(image: &Path, page_size: &str, folder: &Path) -> Result<Self> {
        let [ours, theirs] = ["", "-2"].map(|end| folder.join(format!("{page_size}{end}")));
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        let mut qemu = Command::new("qemu-system-aarch64");
        qemu.args("-no-user-config -nodefaults -display none -no-reboot -no-shutdown".split(' '));
        // The kernel touches all of its memory, and three machines are there at a time.
        qemu.args("-machine virt,gic-version=3,acpi=off -cpu max -smp 2 -m 2G".split(' '));
        qemu.args(["-append", &format!("arm64.pagesize={page_size}"), "-kernel"]);
        qemu.arg(image);
        qemu.args(["-qmp", &socket(&ours), "-qmp", &socket(&theirs)]);
        let qemu = qemu.stdin(Stdio::null()).spawn();
        let qemu = qemu.context("cannot start qemu-system-aarch64")?;
        Ok(Self {
            clock: ProcessClock::start(qemu.id()),
            qemu,
            ours,
            theirs,
            page_size: page_size.to_owned(),
        })
    }

    /// What `granule report` reads.
    pub(super) fn source(&self) -> String {
        format!("qmp:{}", self.theirs.display())
    }

    /// Waits until the guest has ended.
    pub(super) fn wait(&mut self) -> Result<()> {
        while !self.ours.exists() {
            self.tick()?;
        }
        let mut qmp = Qmp::connect(&Endpoint::Unix(self.ours.clone()))?;
        loop {
            let status = qmp.run("query-status", json!({})).map_err(Error::msg)?;
            if status["status"] == "shutdown" {
                return Ok(());
            }
            self.tick()?;
        }
    }

    fn tick(&mut self) -> Result<()> {
        let size = &self.page_size;
        if let Some(status) = self.qemu.try_wait()? {
            bail!("QEMU with {size} pages ended with {status}");
        }
        if self.clock.look() > LIMIT {
            bail!("the guest with {size} pages does not end");
        }
        thread::sleep(TICK);
        Ok(())
    }
}
