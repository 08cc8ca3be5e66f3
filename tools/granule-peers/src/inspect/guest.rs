//! A Debian kernel that runs until its first process has told what it is to tell, and then stands still:
//! QEMU, its monitor, dumps. Nothing here knows what is compared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use granule_cli::Initramfs;
use granule_inspect::Options;
use granule_inspect::source::qmp::Qmp;
use granule_inspect::source::{self, Registers, Source};
use serde_json::{Value, json};
use xtask::machine::Machine;

use super::told;
use crate::machine::{self, CPU, Kernel, LIMIT};

/// Enough for a kernel and a shell, and quickly dumped.
pub(super) const MEMORY: &str = "256M";
/// The seed of the addresses that Linux draws for itself (KASLR), so that two runs have the same.
pub(super) const SEED: &str = "1";
/// Only emergency messages on the console, and tables of the kernel that programs do not have.
pub(super) const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 kpti=on";
/// The root table in TTBR: the bits below an ASID, without CnP.
const ROOT: u64 = (1 << 48) - 2;
/// A command of QEMU's that writes a dump.
const DUMP: Duration = Duration::from_secs(120);
/// The first process. The one that is looked at does nothing for ever and never waits, so a CPU has its
/// tables. `stat_refresh` makes the kernel add up what its CPUs have counted. `read` waits for two seconds: another
/// process, such as a `sleep`, would have tables of its own.
const SCRIPT: &str = "#!/bin/busybox sh
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

const APPLETS: &str = "sh mount dd od";

/// Makes the initramfs of these guests.
pub(super) fn archive(busybox: &[u8]) -> Initramfs {
    let archive = machine::archive(busybox, "/proc /dev /bin", APPLETS);
    archive.program("/init", SCRIPT.as_bytes())
}

/// Dumps the machine behind the monitor in that format, into a file of that name.
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

/// A machine that stands still.
pub(super) struct Guest {
    machine: Machine,
    qmp: Qmp,
    folder: tempfile::TempDir,
    /// What the script said.
    pub(super) told: told::Told,
    /// The registers of its CPUs.
    pub(super) cpus: Vec<Registers>,
}

impl Guest {
    /// Boots, waits for the end of what the script says, and stops the machine while one CPU is in the
    /// process that is looked at and another has the kernel's tables.
    pub(super) fn stopped(kernel: &Kernel, rodata: &str, initramfs: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let page_bytes = kernel.page_size.bytes();
        let words = format!("{WORDS} rodata={rodata} -- {page_bytes}");
        let mut machine = Machine::start("linux", folder.path(), LIMIT, |qemu| {
            qemu.args(["-cpu", CPU, "-m", MEMORY, "-seed", SEED, "-append", &words]);
            qemu.arg("-kernel").arg(&kernel.image);
            qemu.arg("-initrd").arg(initramfs);
        })?;
        let qmp = machine.qmp()?;
        let told = loop {
            if let Some(told) = told::read(&machine.said(), page_bytes)? {
                break told;
            }
            machine.wait()?;
        };
        let mut guest = Self {
            machine,
            qmp,
            folder,
            told,
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

    /// The first CPU that is in a process.
    pub(super) fn in_process(&self) -> Option<usize> {
        let is_it = |cpu: &Registers| cpu.get("pc").is_some_and(|pc| pc >> 63 == 0);
        self.cpus.iter().position(is_it)
    }

    /// The first CPU that has the kernel's tables. A CPU in the kernel's vectors still has those of the process,
    /// which lack nearly all of the kernel.
    pub(super) fn in_kernel(&self) -> Option<usize> {
        let root = |cpu: &Registers| cpu.get("ttbr1_el1").map(|ttbr| ttbr & ROOT);
        let hidden = root(self.cpus.get(self.in_process()?)?);
        self.cpus.iter().position(|cpu| root(cpu) != hidden)
    }

    /// The machine as a source.
    pub(super) fn live(&self) -> Result<Source> {
        Ok(self.machine.source().parse()?)
    }

    /// What a dump does not say.
    pub(super) fn options(&self) -> Options {
        Options {
            mair: self.cpus.first().and_then(|cpu| cpu.get("mair_el1")),
            ..Options::default()
        }
    }

    /// Dumps the machine in that format.
    pub(super) fn dump(&mut self, format: &str) -> Result<PathBuf> {
        dump(&mut self.qmp, self.folder.path(), format)
    }

    /// QEMU's own translation of a virtual address by the tables of that CPU.
    pub(super) fn translated(&mut self, cpu: usize, address: u64) -> Result<Option<u64>> {
        let arguments =
            json!({ "command-line": format!("gva2gpa {address:#x}"), "cpu-index": cpu });
        let answer = self.run("human-monitor-command", arguments)?;
        let text = answer.as_str().unwrap_or_default().trim();
        if text == "Unmapped" {
            return Ok(None);
        }
        let output = text.strip_prefix("gpa: 0x");
        let output = output.and_then(|output| u64::from_str_radix(output, 16).ok());
        output
            .map(Some)
            .with_context(|| format!("QEMU's gva2gpa says {text:?}"))
    }

    fn run(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.run(command, arguments).map_err(anyhow::Error::msg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_every_program_it_calls_and_says_what_is_read() {
        for applet in APPLETS.split(' ') {
            assert!(SCRIPT.contains(applet), "{applet}");
        }
        assert!(SCRIPT.starts_with("#!/bin/busybox sh\n"));
        for line in [told::BEGIN, told::END] {
            assert_eq!(SCRIPT.matches(&format!("echo {line}\n")).count(), 1);
        }
    }
}
