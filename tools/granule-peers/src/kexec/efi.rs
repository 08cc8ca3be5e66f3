//! Our kernel, started by EDK2, leaves for Debian's kernels. Such a kernel must find the same
//! firmware as when EDK2 starts it on the same machine: the tables of the system table, ACPI's
//! tables, the attributes of firmware's memory, and working runtime services.

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Firmware, Kexec, Outcome, PageSize, Request, boot};
use xtask::workspace::image_path;

use crate::machine::{Kernel, archive, ending, marked, request};
use crate::peers::Peers;

/// The beginning of the script's one line.
const MARK: &str = "by EFI:";

/// The first process. `dmesg` has the attributes only with `efi=debug`. The clock is read by a
/// runtime service. The addresses of ACPI's tables depend on the size of the loaded files, so
/// addresses are excluded: those of the system table, and FACP, which has some. Warnings must be
/// the same as after a start by firmware; new kernels print one about QEMU's timer.
pub(crate) const SCRIPT: &str = "#!/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
memory=$(dmesg | sed -n 's/.*efi: memattr: *\\(0x[^ ]*\\) .*/\\1/p' | tr '\\n' ' ')
bad=$(dmesg | sed 's/^[^]]*] //' | grep -e 'Firmware Bug' -e 'WARNING: ' -e 'memattr: Unexp' -e 'efi: .*invalid' | tr '\\n' ';')
cd /sys/firmware/acpi/tables
acpi=$(ls | grep '^[A-Z]' | tr '\\n' ' ')
sum=$(ls | grep '^[A-Z]' | grep -v FACP | xargs cat | sha256sum)
echo \"by EFI: cpus=$(grep -c ^processor /proc/cpuinfo) \\
systab=$(sed 's/=.*//' /sys/firmware/efi/systab | tr '\\n' ' ') acpi=$acpi sum=$sum \\
clock=$(cat /sys/class/rtc/rtc0/name) memory=$memory bad=$bad.\"
stty opost && poweroff -f
";

pub(crate) const APPLETS: &str =
    "cat dmesg echo grep ls mount poweroff sed sh sha256sum stty tr xargs";

/// Only emergency messages on the console, and the attributes of firmware's memory among the
/// others.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 efi=debug PATH=/bin";

const MEMORY: u64 = 1 << 30;
const CPUS: u32 = 2;

/// Whether ACPI describes the machine, our kernel's page size, and whether it leaves for the newest
/// of Debian's kernels, or the oldest.
type EfiHandover = (bool, PageSize, bool);

const CASES: [EfiHandover; 2] = [(true, PageSize::K64, false), (false, PageSize::K16, true)];

/// Adds a check for each machine.
pub(crate) fn left_for(peers: &Peers<'_>) -> Result<()> {
    let archive = archive(&peers.busybox, "/proc /sys /bin", APPLETS);
    let archive = archive.program("/init", SCRIPT.as_bytes());
    let initrd = peers.files.initramfs("efi.cpio", archive)?;
    let next = |is_newest: bool| -> Result<&Kernel> {
        let last = peers.linuxes.len().saturating_sub(1);
        peers.linux(if is_newest { last } else { 0 })
    };
    peers.each(
        &CASES,
        |&(acpi, from, is_newest)| {
            let what = if acpi { "ACPI" } else { "a device tree" };
            let name = next(is_newest).map_or("", |kernel| &kernel.name);
            let from = size(from.bytes());
            format!("kexec by EFI with {what} from {from} to {name}")
        },
        |&(acpi, from, is_newest)| {
            let image = &next(is_newest)?.image;
            let machine = Request {
                firmware: Firmware::Uefi,
                acpi,
                ..request(MEMORY, CPUS)
            };
            let started = boot::run(
                &machine
                    .clone()
                    .image(image.clone())
                    .initrd(initrd.clone())
                    .append(WORDS),
            );
            ensure!(
                started.outcome == Outcome::GuestExit,
                "{}",
                ending(&started)
            );
            let expected = line(&started)?;
            let left_for = boot::run(&Request {
                image: Some(image_path()),
                page_size: Some(from),
                kexec: Some(Kexec {
                    image: Some(image.clone()),
                    initrd: Some(initrd.clone()),
                    append: Some(WORDS.to_owned()),
                    ..Kexec::default()
                }),
                ..machine
            });
            ensure!(left_for.is_ok(), "{}", ending(&left_for));
            judge(acpi, &line(&left_for)?, &expected)
        },
    );
    Ok(())
}

fn line(booted: &Boot) -> Result<String> {
    let console = booted.console_text();
    let found = marked(&console, MARK).with_context(|| ending(booted))?;
    Ok(found.to_owned())
}

/// Checks that a line is that of the kernel that firmware started, which must be complete.
fn judge(acpi: bool, line: &str, expected: &str) -> Result<String> {
    let acpi = if acpi {
        "systab=ACPI20 SMBIOS3  acpi=APIC "
    } else {
        "systab=SMBIOS3  acpi= "
    };
    let cpus = format!(" cpus={CPUS} ");
    for words in [cpus.as_str(), acpi, "clock=rtc-efi", "memory=0x"] {
        ensure!(
            expected.contains(words),
            "started by EDK2 it printed{expected:?}, without {words:?}"
        );
    }
    ensure!(line == expected, "it printed{line:?}, expected{expected:?}");
    let (start, _) = line.split_once(" memory=").unwrap_or((line, ""));
    Ok(start.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = " cpus=2 systab=ACPI20 SMBIOS3  acpi=APIC DSDT  sum=0123 - \
                        clock=rtc-efi rtc-efi.0 memory=0x00007c440000-0x00007c44ffff  bad=.";

    #[test]
    fn every_difference_from_a_start_by_firmware_is_refused() {
        assert!(judge(true, GOOD, GOOD).unwrap().ends_with("rtc-efi.0"));
        for (part, other) in [
            ("cpus=2", "cpus=1"),
            ("ACPI20 ", ""),
            ("sum=01", "sum=02"),
            ("APIC", ""),
            ("clock=rtc-efi", "clock=rtc-pl031"),
            ("44ffff", "44fffe"),
            ("bad=.", "bad=WARNING."),
        ] {
            assert!(GOOD.contains(part), "{part}");
            let wrong = GOOD.replace(part, other);
            assert!(judge(true, &wrong, GOOD).is_err(), "{part}");
        }
    }

    #[test]
    fn an_incomplete_line_of_a_start_by_firmware_is_refused() {
        let empty = " cpus=2 systab= acpi= clock= memory= bad=.";
        for acpi in [true, false] {
            assert!(judge(acpi, empty, empty).is_err());
        }
    }
}
