//! Files that Debian's own makedumpfile writes, beside the ELF core that it was given. It is a program of
//! arm64 and runs under qemu-user with its libraries in a folder of its own; nothing is installed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use granule::arch::PhysicalAddress;
use granule_cli::Initramfs;
use granule_inspect::source::{ReadError, Source};
use granule_inspect::{Opened, Options, open};
use xtask::machine::Machine;

use super::compare::same;
use super::{guest, of_kernel};
use crate::apt;
use crate::check::Check;
use crate::deb;
use crate::machine::{CPU, LIMIT};
use crate::store::{Store, Wanted};
use xtask::deadline::run_for;

const fn wanted(suite: &'static str, package: &'static str) -> Wanted {
    Wanted {
        suite,
        package,
        kernel: false,
    }
}

/// What is in the folder: a package, how the path of a file in it ends before its version, and the name by
/// which the program or the loader looks for it.
const FILES: [(&str, &str, &str); 10] = [
    ("makedumpfile", "bin/makedumpfile", "makedumpfile"),
    ("libc6", "/ld-linux-aarch64.so.1", "ld-linux-aarch64.so.1"),
    ("libc6", "/libc.so.6", "libc.so.6"),
    ("libdw1t64", "/libdw-", "libdw.so.1"),
    ("libelf1t64", "/libelf-", "libelf.so.1"),
    ("liblzo2-2", "/liblzo2.so.2", "liblzo2.so.2"),
    ("libzstd1", "/libzstd.so.1", "libzstd.so.1"),
    ("zlib1g", "/libz.so.1", "libz.so.1"),
    ("liblzma5", "/liblzma.so.5", "liblzma.so.5"),
    ("libbz2-1.0", "/libbz2.so.1.0", "libbz2.so.1.0"),
];
const SUITE: &str = "trixie";

/// For this machine's own architecture, and with no libraries: Debian 13's emulator is of several packages.
const EMULATOR: Wanted = wanted("bookworm", "qemu-user-static");
const EMULATOR_PATH: &str = "usr/bin/qemu-aarch64-static";

/// The driver by which Linux tells QEMU its VMCOREINFO.
const MODULE: &str = "/kernel/drivers/firmware/qemu_fw_cfg.ko";
const READY: &str = "makedumpfile begins";
const SCRIPT: &str = "#!/bin/busybox sh\n\
    /bin/busybox insmod /qemu_fw_cfg.ko && echo makedumpfile begins\n\
    while :; do :; done\n";

/// A few seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The name, the options, and the line of `makedumpfile -v` that must say `enabled`.
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

/// The kernel's pages, and the one that is compared of so many.
const PAGE: usize = 4096;
const EVERY: usize = 61;

/// What the check is about: a kernel that makedumpfile knows (it refuses 4K pages built for 52 bits), its package, and
/// what it boots with.
pub(crate) struct Subject<'a> {
    pub(crate) image: &'a Path,
    pub(crate) package: &'a [u8],
    pub(crate) busybox: &'a [u8],
    /// The folder of packages, and whether to look for newer ones.
    pub(crate) packages: &'a Path,
    pub(crate) fresh: bool,
}

/// A check for each way to write a file.
pub(crate) fn all(subject: &Subject<'_>) -> Vec<Check> {
    let check = |name: &str, result| Check::new(format!("inspect, makedumpfile: {name}"), result);
    let made = Made::new(subject);
    let made = match made {
        Ok(made) => made,
        Err(error) => return vec![check("not run", Err(error))],
    };
    let of = |(name, options, needs): &(&str, &[&str], Option<&str>)| match needs {
        // Then the program says so and writes a file without compression.
        Some(needs) if !made.enabled(needs) => check(
            &format!("not compressed, because it is built without {needs}"),
            made.compare(options),
        ),
        _ => check(name, made.compare(options)),
    };
    CASES.iter().map(of).collect()
}

/// The program, and the core that it reads.
struct Made {
    folder: tempfile::TempDir,
    /// What `makedumpfile -v` says.
    version: String,
    core: PathBuf,
    opened: Opened,
}

impl Made {
    fn new(subject: &Subject<'_>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        programs(subject, folder.path())?;
        let core = core(subject, folder.path())?;
        let opened = open(&Source::File(core.clone()), &Options::default())?;
        let mut made = Self {
            folder,
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

    /// Runs the program, and returns what it says. What it writes to standard output may go to a file.
    fn run(&self, arguments: &[&str], output: Option<&Path>) -> Result<String> {
        let folder = self.folder.path();
        let mut command = Command::new("sh");
        let script = match output {
            Some(_) => "out=$1; shift; exec \"$@\" > \"$out\"",
            None => "exec \"$@\"",
        };
        command.args(["-c", script, "sh"]).args(output);
        command.arg(folder.join("emulator"));
        command.arg(folder.join("ld-linux-aarch64.so.1"));
        command.arg("--library-path").arg(folder);
        command.arg(folder.join("makedumpfile")).args(arguments);
        let done = run_for(command, PATIENCE)?;
        let said = done.stdout + &done.stderr;
        // Progress is on one line, with carriage returns.
        let last = said
            .split(['\r', '\n'])
            .rfind(|line| !line.trim().is_empty());
        match done.status {
            Some(status) if status.success() => Ok(said),
            Some(status) => bail!(
                "makedumpfile ended with {status}: {}",
                last.unwrap_or_default()
            ),
            None => bail!("makedumpfile did not end in {} s", PATIENCE.as_secs()),
        }
    }

    /// The file that these options make has the tables and the memory of the core.
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

/// Some pages of two memories: how many are the same, and how many the second says that it leaves out.
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

/// Puts the program, its libraries and the emulator into a folder.
fn programs(subject: &Subject<'_>, folder: &Path) -> Result<()> {
    let mut names: Vec<&str> = FILES.iter().map(|file| file.0).collect();
    names.dedup();
    let wants: Vec<Wanted> = names.iter().map(|&name| wanted(SUITE, name)).collect();
    let store = Store::new(subject.packages.join("makedumpfile"), apt::ARM64);
    let packages = store.packages(&wants, subject.fresh)?;
    for (package, path, name) in FILES {
        let found = packages.iter().find(|it| it.wanted == package);
        let bytes = store.bytes(found.with_context(|| format!("{package} is missing"))?)?;
        let file = deb::file(&bytes[..], |at| is_file(at, path));
        let file = file.with_context(|| format!("the package {package}"))?;
        put(&folder.join(name), &file)?;
    }
    let store = Store::new(subject.packages.join("emulator"), &apt::own_architecture()?);
    let packages = store.packages(&[EMULATOR], subject.fresh)?;
    let bytes = store.bytes(packages.first().context("the emulator is missing")?)?;
    let file = deb::file(&bytes[..], |at| at == EMULATOR_PATH);
    put(
        &folder.join("emulator"),
        &file.context("the package qemu-user-static")?,
    )
}

/// Whether a path in a package ends so, or goes on with a version.
fn is_file(at: &str, path: &str) -> bool {
    let rest = at.rsplit_once(path).map(|(_, rest)| rest);
    rest.is_some_and(|rest| {
        rest.bytes().all(|it| it.is_ascii_digit() || it == b'.') || rest.ends_with(".so")
    })
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// An ELF core of a running Linux, with its own VMCOREINFO.
fn core(subject: &Subject<'_>, folder: &Path) -> Result<PathBuf> {
    let module = deb::file(subject.package, |path| path.ends_with(MODULE));
    let module = module.context("the kernel's package has no module for QEMU's fw_cfg")?;
    let archive = Initramfs::new()
        .directory("/dev")
        .directory("/bin")
        .program("/bin/busybox", subject.busybox)
        .file("/qemu_fw_cfg.ko", &module)
        .program("/init", SCRIPT.as_bytes());
    let initramfs = folder.join("makedumpfile.cpio");
    fs::write(&initramfs, archive.bytes())?;
    let mut machine = Machine::start("makedumpfile", folder, LIMIT, |qemu| {
        qemu.args(["-cpu", CPU, "-m", guest::MEMORY, "-seed", guest::SEED]);
        qemu.args(["-device", "vmcoreinfo", "-append", guest::WORDS]);
        qemu.arg("-kernel").arg(subject.image);
        qemu.arg("-initrd").arg(&initramfs);
    })?;
    let mut qmp = machine.qmp()?;
    while !machine.said().contains(READY) {
        machine.wait()?;
    }
    let core = guest::dump(&mut qmp, folder, "elf")?;
    as_linux_writes(&core)?;
    Ok(core)
}

/// makedumpfile looks for the program headers right behind the file's header, where Linux's own dumps have
/// them. QEMU puts a section header between the two.
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
    // The place of the program headers, that of section headers, and the number of these.
    file.write_all_at(&[64_u64, 0].map(u64::to_le_bytes).concat(), 32)?;
    file.write_all_at(&[0; 4], 60)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_with_their_versions_and_nothing_beside_them() {
        let lib = |name: &str| format!("usr/lib/aarch64-linux-gnu/{name}");
        for (at, path) in [
            ("usr/bin/makedumpfile".to_owned(), "bin/makedumpfile"),
            (lib("libdw-0.192.so"), "/libdw-"),
            (lib("libz.so.1.3.1"), "/libz.so.1"),
            (lib("libc.so.6"), "/libc.so.6"),
        ] {
            assert!(is_file(&at, path), "{at}");
        }
        for (at, path) in [
            ("usr/bin/makedumpfile-R.pl".to_owned(), "bin/makedumpfile"),
            (lib("libdw.so.1"), "/libdw-"),
            (lib("libzstd.so.1.5.7"), "/libz.so.1"),
        ] {
            assert!(!is_file(&at, path), "{at}");
        }
    }

    #[test]
    fn headers_move_and_the_core_stays_the_same() {
        let core = granule_testing::dumps::elf_core(&[(0x4000_0000, vec![7; 64])], &[0; 64]);
        // As QEMU: a section header of 64 bytes behind the file's header.
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
