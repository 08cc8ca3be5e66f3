//! Boots Debian's kernels and ours on the same machine by the same code: a kernel, an initramfs,
//! and the console's output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size;
use granule_cli::{Boot, Initramfs, Outcome, PageSize, Request, boot};
use serde_json::Value;
use xtask::deadline::{Finished, run_for};
use xtask::files;
use xtask::workspace::{image_path, target_dir};

/// A kernel to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// Its name in tables and checks: a kernel of Debian's is `Linux VERSION`.
    pub(crate) name: String,
    /// The page size that it has, or that ours is started with.
    pub(crate) page_size: PageSize,
    pub(crate) is_ours: bool,
}

/// A CPU with all three page sizes, and without newer features that only one kernel would use.
pub(crate) const CPU: &str = "neoverse-n1";

/// Only emergency messages on the console, and an exit when the first process has ended.
pub(crate) const LINUX_WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1";

/// The time limit of a guest; the longest takes about a minute on an idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

pub(crate) fn request(memory: u64, cpus: u32) -> Request {
    Request::default()
        .memory(memory)
        .smp(cpus)
        .cpu(CPU)
        .timeout(LIMIT)
}

pub(crate) fn granules() -> [Kernel; 3] {
    PageSize::ALL.map(|page_size| Kernel {
        image: image_path(),
        name: "Granule".to_owned(),
        page_size,
        is_ours: true,
    })
}

impl Kernel {
    /// Reads the version in the name of a kernel of Debian's.
    pub(crate) fn version(&self) -> &str {
        self.name.rsplit(' ').next().unwrap_or_default()
    }

    pub(crate) fn size(&self) -> String {
        show_size(self.page_size.bytes())
    }

    /// Boots with words for the kernel and arguments for its first process. Returns the console's
    /// output if the process ended with 0.
    pub(crate) fn run(&self, machine: Request, words: &str, arguments: &str) -> Result<String> {
        let first = if self.is_ours { "" } else { LINUX_WORDS };
        let booted = boot::run(&Request {
            image: Some(self.image.clone()),
            page_size: self.is_ours.then_some(self.page_size),
            append: Some(format!("{first} {words} -- {arguments}")),
            // QEMU's default entry level.
            el: 1,
            ..machine
        });
        let console = booted.console_text();
        if self.is_ours {
            // Our kernel has counted its frames and reported the first process's end.
            ensure!(booted.is_ok(), "{}", ending(&booted));
        } else {
            // Linux does not print our record, so its end is recognised by its messages.
            ensure!(booted.outcome == Outcome::GuestExit, "{}", ending(&booted));
            linux_ended_well(&console)?;
        }
        Ok(console)
    }
}

/// Checks that Linux ended well. It panics when its first process ends, unless that process powers
/// the machine off. Then the output before the panic has the result.
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

pub(crate) fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().find(|line| !line.trim().is_empty())
}

/// Describes the end of a boot in one line, with the last line of the console.
pub(crate) fn ending(booted: &Boot) -> String {
    let end = booted.last_line();
    match last_line(&booted.console_text()) {
        Some(last) => format!("{end}; the last line was {:?}", last.trim()),
        None => end,
    }
}

/// Finds the rest of the first line with a mark, which a script prints at its end.
pub(crate) fn marked<'a>(console: &'a str, mark: &str) -> Result<&'a str> {
    let mut lines = console.lines().map(str::trim_end);
    let found = lines.find_map(|line| Some(line.split_once(mark)?.1));
    found.context("it did not come to its first process")
}

/// Makes an initramfs with folders, and Debian's busybox by the names of its programs.
pub(crate) fn archive(busybox: &[u8], folders: &str, programs: &str) -> Initramfs {
    let folders = folders.split_whitespace();
    let archive = folders.fold(Initramfs::new(), |all, folder| all.directory(folder));
    let archive = archive.program("/bin/busybox", busybox);
    programs.split_whitespace().fold(archive, |all, program| {
        all.link(&format!("/bin/{program}"), "busybox")
    })
}

/// Reads a program of ours, which runs on the guest.
pub(crate) fn program(name: &str) -> Result<Vec<u8>> {
    files::read(&target_dir().join("granule").join(name))
}

/// Prepares a call of `granule` with a command that prints JSON.
pub(crate) fn granule(arguments: &[&str]) -> Command {
    let mut command = Command::new(target_dir().join("debug").join("granule"));
    command.args(arguments);
    command
}

/// Runs a command of `granule`, and reads the JSON that it prints.
pub(crate) fn json(command: Command, limit: Duration) -> Result<(Value, Finished)> {
    parse(run_for(command, limit)?)
}

/// Reads the JSON that a command of `granule` has printed.
pub(crate) fn parse(finished: Finished) -> Result<(Value, Finished)> {
    let report = serde_json::from_str(&finished.stdout).with_context(|| {
        let last = finished.stderr.lines().last().unwrap_or("nothing");
        format!("granule printed no JSON; its last line is {last:?}")
    })?;
    Ok((report, finished))
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A folder with files for boots, removed with its owner.
#[derive(Debug)]
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.path().join(name);
        files::write(&path, bytes)?;
        Ok(path)
    }

    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        files::folder(&path)?;
        Ok(path)
    }

    pub(crate) fn new_folder(&self) -> Result<tempfile::TempDir> {
        let made = tempfile::tempdir_in(self.path());
        made.context("cannot make a folder for a boot's files")
    }

    pub(crate) fn initramfs(&self, name: &str, archive: Initramfs) -> Result<PathBuf> {
        self.put(name, &archive.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_ends_well_only_if_its_first_process_does() {
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

    /// The scripts of first processes, with the programs in their initramfs.
    #[test]
    fn scripts_use_every_program_of_their_initramfs() {
        use crate::{disk, inspect, kexec, watch};
        let from_linux = kexec::from_linux::script(PageSize::K16);
        assert!(from_linux.contains("arm64.pagesize=16k && kexec -e"));
        let workload = str::from_utf8(watch::workload::SCRIPT).unwrap();
        for (script, programs) in [
            (disk::SCRIPT, disk::APPLETS),
            (inspect::guest::SCRIPT, inspect::guest::APPLETS),
            (inspect::guest::LEAVE, kexec::from_linux::APPLETS),
            (kexec::SCRIPT, kexec::APPLETS),
            (kexec::crash::SCRIPT, kexec::crash::APPLETS),
            (kexec::efi::SCRIPT, kexec::efi::APPLETS),
            (&from_linux, kexec::from_linux::APPLETS),
            (workload, watch::workload::APPLETS),
        ] {
            assert!(script.starts_with("#!/bin/busybox sh\n"), "{script}");
            for program in programs.split_whitespace() {
                // The shell has its own `test` and `true`.
                let is_used = script.contains(program) || ["test", "true"].contains(&program);
                assert!(is_used, "{program} in {script}");
            }
        }
    }
}
