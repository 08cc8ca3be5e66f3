//! Debian's kernels and ours on the same machine, booted by the same code: a kernel, an initramfs, and the
//! console's output.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use granule_cli::{Boot, Initramfs, Outcome, PageSize, Request, boot};

/// A kernel to boot.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// Our one image, with this page size.
    Granule { image: PathBuf, page_size: PageSize },
    /// A Debian kernel, with its name in this program.
    Linux { image: PathBuf, name: String },
}

/// The machine, with its initramfs and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) memory: u64,
    pub(crate) cpus: u32,
    /// Let the virtual clock count instructions.
    pub(crate) icount: bool,
    /// The initramfs.
    pub(crate) initramfs: &'a Path,
    /// More words for the kernel.
    pub(crate) words: &'a str,
    /// Arguments of its first process.
    pub(crate) arguments: &'a str,
    /// A plugin for QEMU.
    pub(crate) plugin: Option<&'a OsStr>,
    pub(crate) limit: Duration,
}

/// A CPU with all three page sizes, and no newer feature that would save only one kernel work.
pub(crate) const CPU: &str = "neoverse-n1";

/// Only emergency messages on the console, and an end when the first process has ended.
const LINUX_WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1";

/// How long a guest may take; the longest takes about a minute on an idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

impl Kernel {
    /// The name in tables and checks.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Granule { .. } => "Granule".to_owned(),
            Self::Linux { name, .. } => name.clone(),
        }
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Granule { .. })
    }

    /// Boots, and returns the console's output if the first process ended with 0.
    pub(crate) fn run(&self, machine: &Guest<'_>) -> Result<String> {
        let common = Request {
            memory: machine.memory,
            smp: machine.cpus,
            cpu: CPU.to_owned(),
            // QEMU's default entry level.
            el: 1,
            icount: machine.icount,
            plugin: machine.plugin.map(OsStr::to_owned),
            initrd: Some(machine.initramfs.to_owned()),
            timeout: machine.limit,
            ..Request::default()
        };
        let (words, arguments) = (machine.words, machine.arguments);
        match self {
            Self::Granule { image, page_size } => {
                let booted = boot::run(&Request {
                    image: Some(image.clone()),
                    page_size: Some(*page_size),
                    append: Some(format!("{words} -- {arguments}")),
                    ..common
                });
                // Our kernel has counted its frames and reported the first process's end.
                ensure!(booted.is_ok(), "{}", told(&booted));
                Ok(booted.console_text())
            }
            Self::Linux { image, .. } => {
                let booted = boot::run(&Request {
                    image: Some(image.clone()),
                    append: Some(format!("{LINUX_WORDS} {words} -- {arguments}")),
                    ..common
                });
                // Linux does not print our record, so its end is recognised in this way.
                if booted.outcome != Outcome::GuestExit {
                    bail!("{}", told(&booted));
                }
                let console = booted.console_text();
                linux_ended_well(&console)?;
                Ok(console)
            }
        }
    }
}

/// Linux panics when its first process ends, unless that process powers the machine off. The panic is then
/// the end, and the output before it tells the result.
fn linux_ended_well(console: &str) -> Result<()> {
    let Some((_, panic)) = console.split_once("Kernel panic - not syncing: ") else {
        return Ok(());
    };
    let line = panic.lines().next().unwrap_or_default().trim_end();
    ensure!(
        line == "Attempted to kill init! exitcode=0x00000000",
        "Linux ended with: {line}"
    );
    Ok(())
}

/// The end of a boot, with the last printed line, on one line.
pub(crate) fn told(booted: &Boot) -> String {
    let console = booted.console_text();
    let last = console.lines().rev().find(|line| !line.trim().is_empty());
    match last {
        Some(last) => format!(
            "{}; the last line was {:?}",
            booted.last_line(),
            last.trim()
        ),
        None => booted.last_line(),
    }
}

/// A folder with files for boots, removed with its owner.
#[derive(Debug)]
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes)?;
        Ok(path)
    }

    /// A folder of its own.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    pub(crate) fn initramfs(&self, name: &str, archive: Initramfs) -> Result<PathBuf> {
        self.put(name, &archive.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_ends_well_only_by_its_first_process_ending_so() {
        let end = |line: &str| linux_ended_well(&format!("x\r\n[ 1.0] Kernel panic - {line}\r\ny"));
        assert!(end("not syncing: Attempted to kill init! exitcode=0x00000000").is_ok());
        assert!(end("not syncing: Attempted to kill init! exitcode=0x00000100").is_err());
        let error = end("not syncing: No working init found.").unwrap_err();
        assert_eq!(
            error.to_string(),
            "Linux ended with: No working init found."
        );
        assert!(linux_ended_well("powered off").is_ok());
    }
}
