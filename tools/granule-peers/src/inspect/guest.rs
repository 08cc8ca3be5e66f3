//! Runs a Debian kernel until its first process has printed its output, and then stops it: QEMU,
//! its monitor, and dumps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use granule_cli::Initramfs;
use granule_inspect::Options;
use granule_inspect::source::qmp::Qmp;
use granule_inspect::source::{self, Registers, Source};
use serde_json::{Value, json};
use xtask::machine::Machine;

use super::output::{self, Output};
use crate::machine::{self, CPU, Kernel, LIMIT};

/// The memory: enough for a kernel and a shell, and quickly dumped.
pub(super) const MEMORY: &str = "256M";
/// QEMU's options for a kernel that leaves for the next one. With LPIs on, and without EFI to reserve their tables, the
/// next Linux would fill memory of its own image with their priorities.
pub(super) const TWICE: [&str; 4] = ["-m", "1G", "-machine", "its=off"];
/// The seed of the random addresses of Linux (KASLR), so that two runs have the same.
pub(super) const SEED: &str = "1";
/// Only emergency messages on the console, and page-table isolation.
pub(super) const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 kpti=on";
/// The root table in TTBR: the bits below an ASID, without CnP.
const ROOT: u64 = (1 << 48) - 2;
/// The time limit of QEMU's command that writes a dump.
const DUMP: Duration = Duration::from_secs(120);
/// The first process. The inspected process loops forever and never waits, so a CPU has its tables.
/// `stat_refresh` makes the kernel sum up the counters of its CPUs. `read` waits for two seconds;
/// another process, such as `sleep`, would have tables of its own.
pub(crate) const SCRIPT: &str = "#!/bin/busybox sh
count() {
  echo > /proc/sys/vm/stat_refresh
  while read key value rest; do
    case $key in VmPTE:) init=$value;; esac
  done < /proc/1/status
  while read key value rest; do
    case $key in PageTables:) echo $1 $value $init;; esac
  done < /proc/meminfo
}
mount -t proc proc /proc
mount -t devtmpfs dev /dev
count nothing > /dev/null
read -t 2 nothing
echo inspect begins
count before
sh -c 'while :; do :; done' &
pid=$!
read -t 2 nothing
count with
echo process $pid
while read range rest; do
  first=${range%-*} last=${range#*-}
  count=$(( (0x$last - 0x$first) / $1 ))
  echo area $first $count
  dd if=/proc/$pid/pagemap bs=8 skip=$(( 0x$first / $1 )) count=$count 2>/dev/null | od -A n -v -t x8 -w8
done < /proc/$pid/maps
for one in /proc/[0-9]*; do
  while read key value rest; do
    case $key in VmPTE:) echo tables ${one#/proc/} $value;; esac
  done < $one/status
done
echo inspect ends
wait
";

pub(crate) const APPLETS: &str = "sh mount dd od";

/// The first process of a kernel that leaves for itself. The next one gets the same words, and another first process.
pub(crate) const LEAVE: &str = "#!/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
read -r words < /proc/cmdline
kexec -c -i -l /boot/Image --initrd=/boot/initrd --command-line=\"$words\" && kexec -e
poweroff -f
";

pub(super) fn archive(busybox: &[u8]) -> Initramfs {
    let archive = machine::archive(busybox, "/proc /dev /bin", APPLETS);
    archive.program("/init", SCRIPT.as_bytes())
}

/// Dumps the machine of a monitor in a format, into a file of that name.
pub(super) fn dump(qmp: &mut Qmp, folder: &Path, format: &str) -> Result<PathBuf> {
    let path = folder.join(format);
    let arguments = json!({
        "paging": false,
        "protocol": format!("file:{}", path.display()),
        "format": format,
    });
    let done = qmp.run_for("dump-guest-memory", arguments, DUMP);
    done.map_err(anyhow::Error::msg)?;
    Ok(path)
}

pub(super) struct Guest {
    machine: Machine,
    qmp: Qmp,
    folder: tempfile::TempDir,
    pub(super) output: Output,
    pub(super) cpus: Vec<Registers>,
}

impl Guest {
    /// Boots, waits for the end of the script's output, and stops the machine while one CPU is in
    /// the inspected process and another has the kernel's tables.
    pub(super) fn stopped(
        kernel: &Kernel,
        rodata: &str,
        initramfs: &Path,
        options: &[&str],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let page_bytes = kernel.page_size.bytes();
        let words = format!("{WORDS} rodata={rodata} -- {page_bytes}");
        let mut qemu = xtask::machine::virt();
        qemu.args(["-cpu", CPU, "-seed", SEED, "-append", &words])
            .args(options);
        qemu.arg("-kernel").arg(&kernel.image);
        qemu.arg("-initrd").arg(initramfs);
        let mut machine = Machine::start(qemu, "linux", folder.path(), LIMIT)?;
        let qmp = machine.qmp()?;
        let output = loop {
            if let Some(output) = output::read(&machine.said(), page_bytes)? {
                break output;
            }
            machine.wait()?;
        };
        let mut guest = Self {
            machine,
            qmp,
            folder,
            output,
            cpus: Vec::new(),
        };
        loop {
            guest.run("stop", json!({}))?;
            guest.cpus = source::open(&guest.live()?, None)?.1.cpus;
            if guest.in_process().is_some() && guest.in_kernel().is_some() {
                return Ok(guest);
            }
            guest.run("cont", json!({}))?;
            let waited = guest.machine.wait();
            waited.context("no CPU was in the process and another in the kernel")?;
        }
    }

    /// Finds the first CPU that is in a process.
    pub(super) fn in_process(&self) -> Option<usize> {
        let is_it = |cpu: &Registers| cpu.get("pc").is_some_and(|pc| pc >> 63 == 0);
        self.cpus.iter().position(is_it)
    }

    /// Finds the first CPU that has the kernel's tables. A CPU in the kernel's vectors still has
    /// those of the process, without nearly all of the kernel.
    pub(super) fn in_kernel(&self) -> Option<usize> {
        let root = |cpu: &Registers| cpu.get("ttbr1_el1").map(|ttbr| ttbr & ROOT);
        let hidden = root(self.cpus.get(self.in_process()?)?);
        self.cpus.iter().position(|cpu| root(cpu) != hidden)
    }

    pub(super) fn live(&self) -> Result<Source> {
        Ok(self.machine.source().parse()?)
    }

    /// Returns options with the register values that a dump lacks.
    pub(super) fn options(&self) -> Options {
        Options {
            mair: self.cpus.first().and_then(|cpu| cpu.get("mair_el1")),
            ..Options::default()
        }
    }

    pub(super) fn dump(&mut self, format: &str) -> Result<PathBuf> {
        dump(&mut self.qmp, self.folder.path(), format)
    }

    /// Translates a virtual address by QEMU, with the tables of a CPU.
    pub(super) fn translated(&mut self, cpu: usize, address: u64) -> Result<Option<u64>> {
        let arguments =
            json!({ "command-line": format!("gva2gpa {address:#x}"), "cpu-index": cpu });
        let answer = self.run("human-monitor-command", arguments)?;
        let text = answer.as_str().unwrap_or_default().trim();
        if text == "Unmapped" {
            return Ok(None);
        }
        let address = text.strip_prefix("gpa: 0x");
        let address = address.and_then(|address| u64::from_str_radix(address, 16).ok());
        address
            .map(Some)
            .with_context(|| format!("QEMU's gva2gpa returned {text:?}"))
    }

    fn run(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.run(command, arguments).map_err(anyhow::Error::msg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_of_the_output_are_printed_once() {
        for line in [output::BEGIN, output::END] {
            assert_eq!(SCRIPT.matches(&format!("echo {line}\n")).count(), 1);
        }
    }
}
