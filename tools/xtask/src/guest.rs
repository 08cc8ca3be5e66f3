//! Boots a program other than our kernel on QEMU, and returns its console.
//!
//! The expected output belongs to the callers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use xtask::deadline;
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
        .arg(program);
    let text = show(&command);
    let guest = deadline::run_for(command, limit)?;
    eprint!("{}", guest.stderr);
    let console = guest.stdout.replace('\r', "");
    match guest.status {
        Some(status) if status.success() => Ok(console),
        Some(status) => bail!("`{text}` ended with {status}; the console is\n{console}"),
        None => bail!("`{text}` hung; the console is\n{console}"),
    }
}
