//! Compares files that Debian's makedumpfile writes with the original ELF core. makedumpfile is an
//! arm64 program, which runs under qemu-user with its libraries in a folder of its own; nothing is
//! installed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use granule::arch::PhysicalAddress;
use granule_inspect::source::{ReadError, Source};
use granule_inspect::{Opened, Options, open};
use xtask::deadline::run_for;
use xtask::files;
use xtask::machine::{self, Machine};

use super::compare::same;
use super::{guest, of_kernel};
use crate::apt::{ARM64, Program, own_architecture};
use crate::machine::{CPU, LIMIT, archive};
use crate::peers::Peers;
use crate::{deb, emulator};

const MAKEDUMPFILE: Program<'_> = Program {
    package: "makedumpfile",
    path: "usr/bin/makedumpfile",
    suites: &["trixie"],
};

/// The emulator, for this machine's architecture and without libraries: Debian 13's is in several
/// packages.
const EMULATOR: Program<'_> = Program {
    package: "qemu-user-static",
    path: "usr/bin/qemu-aarch64-static",
    suites: &["bookworm"],
};

/// The driver with which Linux passes its VMCOREINFO to QEMU.
const MODULE: &str = "/kernel/drivers/firmware/qemu_fw_cfg.ko";
const READY: &str = "makedumpfile begins";
const SCRIPT: &str = "#!/bin/busybox sh\n\
    /bin/busybox insmod /qemu_fw_cfg.ko && echo makedumpfile begins\n\
    while :; do :; done\n";

/// The name, the options, and the required compression, which is `enabled` in `makedumpfile -v`.
const CASES: [(&str, &[&str], Option<&str>); 8] = [
    ("not compressed, all pages", &["-d", "0"], None),
    ("zlib, all pages", &["-c", "-d", "0"], None),
    ("zlib", &["-c", "-d", "31"], None),
    ("lzo", &["-l", "-d", "31"], Some("lzo")),
    ("snappy", &["-p", "-d", "31"], Some("snappy")),
    ("zstd", &["-z", "-d", "31"], Some("zstd")),
    ("zlib, flattened", &["-c", "-d", "31", "-F"], None),
    ("ELF", &["-E", "-d", "31"], None),
];

/// The kernel's page size, and the number of pages of which one is compared.
const PAGE: usize = 4096;
const EVERY: usize = 61;

/// Adds a check for each way to write a file, with the oldest kernel: makedumpfile refuses newer
/// ones with 4K pages, which are built for 52 bits.
pub(crate) fn all(peers: &Peers<'_>) -> Result<()> {
    let add = |name: &str, result| peers.add(format!("inspect, makedumpfile: {name}"), result);
    let made = match Made::new(peers) {
        Ok(made) => made,
        Err(error) => {
            add("not run", Err(error));
            return Ok(());
        }
    };
    for (name, options, needs) in CASES {
        let compared = made.compare(options);
        match needs {
            // Without the compression it prints a line, and writes an uncompressed file.
            Some(needs) if !made.enabled(needs) => {
                let name = format!("not compressed, because it is built without {needs}");
                add(&name, compared);
            }
            _ => add(name, compared),
        }
    }
    Ok(())
}

/// The program, and the core that it reads.
struct Made {
    folder: tempfile::TempDir,
    /// The words that start the program.
    words: Vec<String>,
    /// The output of `makedumpfile -v`.
    version: String,
    core: PathBuf,
    opened: Opened,
}

impl Made {
    fn new(peers: &Peers<'_>) -> Result<Self> {
        let (fresh, packages) = (peers.fresh, |name| peers.folder.join(name));
        let root = EMULATOR.unpacked(&own_architecture()?, &packages("emulator"), fresh)?;
        let mut words = vec![root.join(EMULATOR.path).display().to_string()];
        let root = MAKEDUMPFILE.unpacked(ARM64, &packages("makedumpfile"), fresh)?;
        words.extend(emulator::words(&root, MAKEDUMPFILE.path)?);
        let folder = tempfile::tempdir()?;
        let core = core(peers, folder.path())?;
        let opened = open(&Source::File(core.clone()), &Options::default())?;
        let mut made = Self {
            folder,
            words,
            version: String::new(),
            core,
            opened,
        };
        made.version = made.run(&["-v"], None)?;
        Ok(made)
    }

    fn enabled(&self, compression: &str) -> bool {
        let mut lines = self.version.lines().map(str::split_whitespace);
        lines.any(|line| line.eq([compression, "enabled"]))
    }

    /// Runs the program, and returns its messages. Its standard output may go to a file.
    fn run(&self, arguments: &[&str], output: Option<&Path>) -> Result<String> {
        let mut command = Command::new("sh");
        let script = match output {
            Some(_) => "out=$1; shift; exec \"$@\" > \"$out\"",
            None => "exec \"$@\"",
        };
        command.args(["-c", script, "sh"]).args(output);
        command.args(&self.words).args(arguments);
        let done = run_for(command, LIMIT)?;
        let messages = done.stdout + &done.stderr;
        // Progress is on one line, with carriage returns.
        let last = messages
            .split(['\r', '\n'])
            .rfind(|line| !line.trim().is_empty());
        match done.status {
            Some(status) if status.success() => Ok(messages),
            Some(status) => bail!(
                "makedumpfile ended with {status}: {}",
                last.unwrap_or_default()
            ),
            None => bail!("makedumpfile did not end in {} s", LIMIT.as_secs()),
        }
    }

    /// Checks that the file of these options has the tables and the memory of the core.
    fn compare(&self, options: &[&str]) -> Result<String> {
        let file = self.folder.path().join("file");
        let _ = fs::remove_file(&file);
        let core = self.core.to_string_lossy();
        let name = file.to_string_lossy();
        if options.contains(&"-F") {
            self.run(&[options, &[&*core]].concat(), Some(&file))?;
        } else {
            self.run(&[options, &[&*core, &*name]].concat(), None)?;
        }
        let written = open(&Source::File(file), &Options::default())?;
        let (one, other) = (of_kernel(&self.opened)?, of_kernel(&written)?);
        same(&one, &other).context("the kernel's tree differs from the core's")?;
        let all = options.contains(&"0");
        let (pages, left_out) = memory(&self.opened, &written)?;
        ensure!(pages > 50, "only {pages} pages were compared");
        ensure!(
            all == (left_out == 0),
            "{left_out} of the pages are not in the dump"
        );
        Ok(format!(
            "the same {} ranges and {} tables; of one page in {EVERY} {pages} are the same, {left_out} are not in the dump",
            one.ranges.len(),
            one.tables.values().sum::<u64>(),
        ))
    }
}

/// Compares some pages of two memories. Returns the numbers of those that are the same, and of
/// those that the second leaves out.
fn memory(one: &Opened, other: &Opened) -> Result<(u64, u64)> {
    let (mut pages, mut left_out) = (0, 0);
    for range in one.memory.ranges() {
        for page in (range.start..range.end).step_by(PAGE * EVERY) {
            let mut bytes = [[0; PAGE]; 2];
            one.memory.read(PhysicalAddress(page), &mut bytes[0])?;
            match other.memory.read(PhysicalAddress(page), &mut bytes[1]) {
                Ok(()) => pages += 1,
                Err(ReadError::LeftOut(_)) => {
                    left_out += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            ensure!(
                bytes[0] == bytes[1],
                "the page at {page:#x} differs from the core's"
            );
        }
    }
    Ok((pages, left_out))
}

/// Makes an ELF core of a running Linux, with its own VMCOREINFO.
fn core(peers: &Peers<'_>, folder: &Path) -> Result<PathBuf> {
    let module = deb::file(&peers.first()?, |path| path.ends_with(MODULE));
    let module = module.context("the kernel's package has no module for QEMU's fw_cfg")?;
    let archive = archive(&peers.busybox, "/dev /bin", "")
        .file("/qemu_fw_cfg.ko", &module)
        .program("/init", SCRIPT.as_bytes());
    let image = &peers.linux(0)?.image;
    let initramfs = folder.join("makedumpfile.cpio");
    files::write(&initramfs, archive.bytes())?;
    let mut qemu = machine::virt();
    qemu.args(["-cpu", CPU, "-m", guest::MEMORY, "-seed", guest::SEED]);
    qemu.args(["-device", "vmcoreinfo", "-append", guest::WORDS]);
    qemu.arg("-kernel").arg(image);
    qemu.arg("-initrd").arg(&initramfs);
    let mut machine = Machine::start(qemu, "makedumpfile", folder, LIMIT)?;
    let mut qmp = machine.qmp()?;
    machine.until(READY)?;
    let core = guest::dump(&mut qmp, folder, "elf")?;
    as_linux_writes(&core)?;
    Ok(core)
}

/// Moves the program headers right behind the file header, where makedumpfile and Linux's own dumps
/// have them. QEMU puts a section header between the two.
fn as_linux_writes(core: &Path) -> Result<()> {
    fs::set_permissions(core, fs::Permissions::from_mode(0o600))?;
    let file = OpenOptions::new().read(true).write(true).open(core)?;
    let word = |file: &File, at: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let (first, count) = (word(&file, 32)?, word(&file, 56)? & 0xffff);
    let mut headers = vec![0; 56 * usize::try_from(count)?];
    file.read_exact_at(&mut headers, first)?;
    file.write_all_at(&headers, 64)?;
    // The offsets of the program headers and section headers, and the number of section headers.
    file.write_all_at(&[64_u64, 0].map(u64::to_le_bytes).concat(), 32)?;
    file.write_all_at(&[0; 4], 60)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_move_and_the_core_stays_the_same() {
        let core = granule_testing::dumps::elf_core(&[(0x4000_0000, vec![7; 64])], &[0; 64]);
        // Like QEMU: a section header of 64 bytes behind the file header.
        let mut moved = core[..64].to_vec();
        moved[32..40].copy_from_slice(&128_u64.to_le_bytes());
        moved.extend([0xff; 64]);
        moved.extend(&core[64..]);
        for number in 0..2 {
            let at = 128 + 56 * number + 8;
            let offset = u64::from_le_bytes(moved[at..at + 8].try_into().unwrap()) + 64;
            moved[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("core");
        fs::write(&path, &moved).unwrap();
        as_linux_writes(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[32..40], 64_u64.to_le_bytes());
        assert_eq!(bytes[64..64 + 112], moved[128..128 + 112]);
        assert_eq!(bytes[128 + 112..], moved[128 + 112..]);
    }
}
