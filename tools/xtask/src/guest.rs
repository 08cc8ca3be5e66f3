//! Boots a program other than our kernel on QEMU, and returns its console.
//!
//! The expected output belongs to the callers.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use granule_cli::boot::clock::{ProcessClock, TICK};

use xtask::workspace::show;

/// The time after which a guest hangs. It stands still while the host has no core for the guest.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Boots a program and returns the console's text. A guest that does not end QEMU by itself, with status 0,
/// within `limit` is an error.
pub(crate) fn console(program: &Path, options: &[&str], limit: Duration) -> Result<String> {
    let mut command = Command::new("qemu-system-aarch64");
    command
        .args(["-m", "1G", "-nographic", "-nic", "none", "-semihosting"])
        .args(options)
        .arg("-kernel")
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let text = show(&command);
    let mut guest = command
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let mut out = guest.stdout.take().context("no console")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        out.read_to_end(&mut bytes).map(|_| bytes)
    });
    let mut clock = ProcessClock::start(guest.id());
    let status = loop {
        if let Some(status) = guest.try_wait()? {
            break Some(status);
        }
        if clock.look() > limit {
            guest.kill()?;
            guest.wait()?;
            break None;
        }
        std::thread::sleep(TICK);
    };
    let Ok(bytes) = reader.join() else {
        bail!("the reader of the console failed");
    };
    let console = String::from_utf8_lossy(&bytes?).replace('\r', "");
    match status {
        Some(status) if status.success() => Ok(console),
        Some(status) => bail!("`{text}` ended with {status}; the console is\n{console}"),
        None => bail!("`{text}` hung; the console is\n{console}"),
    }
}
