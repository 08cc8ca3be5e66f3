//! A QEMU whose memory is read from outside, while its guest runs or after its end: its sockets,
//! its console and its time. The guest is the caller's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use granule_cli::boot::clock::{ProcessClock, TICK};
use granule_inspect::source::Endpoint;
use granule_inspect::source::qmp::Qmp;

use crate::workspace::show;

/// A QEMU, which ends with this value.
#[derive(Debug)]
pub struct Machine {
    qemu: Child,
    clock: ProcessClock,
    limit: Duration,
    name: String,
    /// A socket serves one client at a time: one for us, one for the program that reads the memory.
    ours: PathBuf,
    theirs: PathBuf,
    console: PathBuf,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A call of QEMU with two CPUs, without anything that it has by default. It stays once the guest has ended.
#[must_use]
pub fn virt() -> Command {
    let mut qemu = Command::new("qemu-system-aarch64");
    qemu.args("-no-user-config -nodefaults -no-shutdown".split(' '));
    qemu.args("-machine virt,gic-version=3,acpi=off -smp 2".split(' '));
    qemu
}

impl Machine {
    /// Starts QEMU. Its sockets and its console, which is the last serial line, are files of `folder`, whose names
    /// begin with `name`. It may take the time `limit`, by its own clock. Fails if QEMU cannot be started.
    pub fn start(mut qemu: Command, name: &str, folder: &Path, limit: Duration) -> Result<Self> {
        let [ours, theirs, console] =
            ["ours", "theirs", "console"].map(|end| folder.join(format!("{name}.{end}")));
        let socket = |path: &Path| format!("unix:{},server=on,wait=off", path.display());
        qemu.args(["-display", "none", "-no-reboot"]);
        qemu.args(["-qmp", &socket(&ours), "-qmp", &socket(&theirs)]);
        qemu.args(["-serial", &format!("file:{}", console.display())]);
        let text = show(&qemu);
        let qemu = qemu.stdin(Stdio::null()).spawn();
        let qemu = qemu.with_context(|| format!("cannot start `{text}`"))?;
        Ok(Self {
            clock: ProcessClock::start(qemu.id()),
            qemu,
            limit,
            name: name.to_owned(),
            ours,
            theirs,
            console,
        })
    }

    /// Waits until the guest has printed this text, and returns all that it printed. Fails if QEMU ends before, or
    /// the time is over.
    pub fn until(&mut self, text: &str) -> Result<String> {
        loop {
            let waited = self.wait();
            // What it printed at its end counts.
            let said = self.said();
            if said.contains(text) {
                return Ok(said);
            }
            waited?;
        }
    }

    /// The machine as a source of memory, for an argument of `granule`.
    #[must_use]
    pub fn source(&self) -> String {
        format!("qmp:{}", self.theirs.display())
    }

    /// Our socket, once it answers. Fails if QEMU ends before, or the time is over.
    pub fn qmp(&mut self) -> Result<Qmp> {
        let ours = Endpoint::Unix(self.ours.clone());
        loop {
            // The socket is there a moment before it answers.
            match Qmp::connect(&ours) {
                Ok(qmp) => return Ok(qmp),
                Err(why) => self.wait().with_context(|| why.to_string())?,
            }
        }
    }

    /// The console output of the guest so far.
    #[must_use]
    pub fn said(&self) -> String {
        let said = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Waits for a moment. Fails if QEMU has ended, or the time is over.
    pub fn wait(&mut self) -> Result<()> {
        let end = match self.qemu.try_wait()? {
            Some(status) => format!("QEMU ended with {status}"),
            None if self.clock.look() > self.limit => format!("no end after {:?}", self.limit),
            None => {
                thread::sleep(TICK);
                return Ok(());
            }
        };
        let said = self.said();
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.unwrap_or_default();
        bail!("{}: {end}; the last line was {last:?}", self.name)
    }
}
