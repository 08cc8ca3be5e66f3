//! The kernel as an EFI application, started by EDK2 on QEMU's board with a device tree: the levels, the page
//! sizes, the initramfs, the command line and the place of the image. And with ACPI's tables alone: CPUs,
//! interrupt controllers, console, NUMA nodes.
//!
//! EDK2 starts the image of `-kernel` as a boot loader would: with the load options of `-append`, and the
//! initramfs of `-initrd` by LoadFile2.

mod kexec;
mod trace;

use granule_testing::text::assert_contains;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use granule_cli::Initramfs;

use crate::hooked::qemu;
use crate::image::{built, image};

/// Debian's package qemu-efi-aarch64, which `cargo xtask setup` installs.
const EDK2: &str = "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd";

/// One boot: its console, and the keys of its record.
struct Booted {
    console: String,
    record: BTreeMap<String, String>,
}

impl Booted {
    #[track_caller]
    fn has(&self, expected: &[(&str, &str)]) {
        for (key, value) in expected {
            let found = self.record.get(*key).map(String::as_str);
            assert_eq!(found, Some(*value), "{key}\n{}", self.console);
        }
    }

    /// The address after these words.
    #[track_caller]
    fn address(&self, before: &str) -> u64 {
        let (_, rest) = self.console.split_once(before).unwrap_or_else(|| {
            panic!("no {before:?} in {}", self.console);
        });
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, 16).unwrap()
    }
}

/// Boots the image with EDK2, with a device tree.
fn boot(cpu: &str, el: u8, line: &str, initrd: Option<&Path>) -> Booted {
    boot_on("acpi=off", "-smp 2", cpu, el, line, initrd)
}

/// The same on a board with these properties, and with more options.
fn boot_on(
    board: &str,
    more: &str,
    cpu: &str,
    el: u8,
    line: &str,
    initrd: Option<&Path>,
) -> Booted {
    assert!(
        Path::new(EDK2).is_file(),
        "{EDK2} is missing: install it with `cargo xtask setup`"
    );
    let virtualization = if el == 2 { "on" } else { "off" };
    let machine = format!("virt,{board},virtualization={virtualization}");
    // A guest that hangs is ended by QEMU's host: the kernel powers off, whatever its outcome.
    let mut command = Command::new("timeout");
    command
        // In our process group, with which a test that hangs is ended.
        .args(["--foreground", "300"])
        .arg(qemu())
        .args(["-no-user-config", "-nodefaults"])
        .args("-display none -nic none -no-reboot -serial stdio".split(' '))
        .args(["-machine", &machine, "-cpu", cpu, "-m", "512M"])
        .args(more.split(' '))
        .args(["-device", "virtio-rng-pci", "-bios", EDK2, "-append", line])
        .arg("-kernel")
        .arg(image())
        .stdin(Stdio::null());
    if let Some(initrd) = initrd {
        command.arg("-initrd").arg(initrd);
    }
    parsed(command)
}

/// Runs QEMU, which must end well, and reads the console.
fn parsed(mut command: Command) -> Booted {
    let output = command.output().unwrap();
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = console
        .lines()
        .filter_map(|line| line.trim_end().strip_prefix("@granule "));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let record = pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    assert!(
        output.status.success(),
        "QEMU: {}\n{console}",
        output.status
    );
    Booted { console, record }
}

/// At EL2 with VHE, in a place by chance, with a program from the initramfs: its exit code went through the load
/// options, and back.
#[test]
fn a_program_runs_from_the_initramfs_of_the_firmware() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = std::fs::read(built("granule-user", "cargo xtask user")).unwrap();
    let archive = Initramfs::new().program("/init", &program);
    archive.write(file.path()).unwrap();
    for (size, bytes) in [("4k", "4096"), ("16k", "16384"), ("64k", "65536")] {
        let line = format!("arm64.pagesize={size} -- exit 3");
        let booted = boot("max", 2, &line, Some(file.path()));
        booted.has(&[
            ("firmware", "efi"),
            ("described_by", "device-tree"),
            ("page_size", bytes),
            ("page_size_source", "command-line"),
            ("entry_el", "2"),
            ("run_el", "2"),
            ("cpus", "2"),
            ("user.exit_code", "3"),
            ("outcome", "guest-exit"),
        ]);
        let place = booted.address("granule: image at 0x");
        assert_eq!(place % (2 << 20), 0, "{place:#x}");
        assert_ne!(booted.address("entered from EFI, system table at 0x"), 0);
    }
}

/// At EL1, and at EL2 without VHE, at the lowest place: the firmware has random numbers, but must
/// not use them.
#[test]
fn without_randomness_the_image_goes_to_the_lowest_place() {
    for (el, size, bytes) in [(1, "64k", "65536"), (2, "4k", "4096")] {
        let line = format!("nokaslr arm64.pagesize={size}");
        let booted = boot("cortex-a57", el, &line, None);
        booted.has(&[
            ("firmware", "efi"),
            ("page_size", bytes),
            ("entry_el", &el.to_string()),
            ("run_el", "1"),
            ("cpus", "2"),
            ("outcome", "ok"),
        ]);
        assert_eq!(booted.address("granule: image at 0x"), 0x4000_0000);
    }
}

/// EDK2 has no device tree for the kernel where QEMU has ACPI's tables: the machine is as they
/// describe it.
#[test]
fn a_machine_that_acpi_describes_boots_as_with_a_tree() {
    let nodes = "-smp 8 -object memory-backend-ram,id=a,size=256M -object memory-backend-ram,id=b,size=256M \
                 -numa node,memdev=a,cpus=0-3 -numa node,memdev=b,cpus=4-7";
    for (board, more, cpus, el, run_el, size, bytes) in [
        ("gic-version=3", nodes, "8", 1, "1", "4k", "4096"),
        ("gic-version=2", "-smp 4", "4", 2, "2", "16k", "16384"),
        ("gic-version=3", "-smp 1", "1", 2, "2", "64k", "65536"),
    ] {
        let line = format!("arm64.pagesize={size}");
        let booted = boot_on(board, more, "max", el, &line, None);
        booted.has(&[
            ("firmware", "efi"),
            ("described_by", "acpi"),
            ("page_size", bytes),
            ("page_size_source", "command-line"),
            ("entry_el", &el.to_string()),
            ("run_el", run_el),
            ("cpus", cpus),
            ("outcome", "ok"),
        ]);
        let console = &booted.console;
        assert_contains(console, "the rest by ACPI's tables");
        // Nothing is passed over, left out or wrong.
        for words in [
            "EFI memory map:",
            "ACPI:",
            "not the console",
            "no way to power off",
            "is not started",
        ] {
            assert!(!console.contains(words), "{words}\n{console}");
        }
    }
}

/// The board's flash is not memory for a trace. The firmware tries its next boot option after that.
#[test]
fn an_error_before_the_boot_services_end_is_one_line_and_the_firmware_goes_on() {
    let options = "-no-user-config -nodefaults -display none -nic none -no-reboot -serial stdio -m 512M \
                   -machine virt,acpi=off -cpu cortex-a57 -append granule.trace=0x4000000,0x10000 -bios";
    let mut qemu = Command::new(qemu())
        .args(options.split(' '))
        .arg(EDK2)
        .arg("-kernel")
        .arg(image())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(qemu.stdout.take().unwrap()).split(b'\n');
    let lines = lines.map(|line| String::from_utf8_lossy(&line.unwrap()).into_owned());
    let mut printed = Vec::new();
    for line in lines {
        let is_last = line.starts_with("BdsDxe: starting");
        printed.push(line);
        if is_last {
            break;
        }
    }
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    let ours = printed.iter().filter_map(|line| line.split_once("granule"));
    let ours: Vec<_> = ours.map(|(_, rest)| rest.trim_end()).collect();
    let refused = ": granule.trace= names memory that the firmware keeps: name another range";
    assert_eq!(ours, [refused], "{printed:#?}");
    assert!(printed.last().unwrap().starts_with("BdsDxe: starting"));
}
