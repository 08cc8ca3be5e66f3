//! Our kernel, started by EDK2, leaves for Debian's kernels. What such a kernel finds of firmware must be what it finds when
//! EDK2 starts it itself on the same machine: the tables that the system table names, ACPI's tables, the attributes of
//! firmware's memory, and services of the firmware that can be called.

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Firmware, Kexec, Outcome, PageSize, Request, boot};
use xtask::workspace::image_path;

use crate::machine::{Kernel, archive, marked, request, told};
use crate::peers::Peers;

/// The beginning of the script's one line.
const MARK: &str = "by EFI:";

/// The first process. `dmesg` has the attributes only with `efi=debug`. The clock is read by a call of the firmware. Where
/// firmware puts ACPI's tables depends on the size of what it loads, so addresses are left out: those of the system table,
/// and FACP, which has some. Complaints must be those of a start by firmware: QEMU's timer earns one from new kernels.
const SCRIPT: &str = "#!/bin/busybox sh
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

const APPLETS: &str = "cat dmesg echo grep ls mount poweroff sed sh sha256sum stty tr xargs";

/// Only emergency messages on the console, and the attributes of firmware's memory among the others.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 efi=debug PATH=/bin";

const MEMORY: u64 = 1 << 30;
const CPUS: u32 = 2;

/// Whether ACPI describes the machine, the page size from which our kernel leaves, and whether it leaves for the newest of
/// Debian's kernels, or the oldest.
type Case = (bool, PageSize, bool);

const CASES: [Case; 2] = [(true, PageSize::K64, false), (false, PageSize::K16, true)];

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
            let started = boot::run(&Request {
                image: Some(image.clone()),
                initrd: Some(initrd.clone()),
                append: Some(WORDS.to_owned()),
                ..machine.clone()
            });
            ensure!(started.outcome == Outcome::GuestExit, "{}", told(&started));
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
            ensure!(left_for.is_ok(), "{}", told(&left_for));
            judge(acpi, &line(&left_for)?, &expected)
        },
    );
    Ok(())
}

/// Reads what the script says.
fn line(booted: &Boot) -> Result<String> {
    let console = booted.console_text();
    let found = marked(&console, MARK).with_context(|| told(booted))?;
    Ok(found.to_owned())
}

/// Whether a line is right: the one of the kernel that firmware started, which has everything.
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
            "started by EDK2 it said{expected:?}, which has no {words:?}"
        );
    }
    ensure!(line == expected, "it said{line:?}, expected{expected:?}");
    let (told, _) = line.split_once(" memory=").unwrap_or((line, ""));
    Ok(told.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = " cpus=2 systab=ACPI20 SMBIOS3  acpi=APIC DSDT  sum=0123 - \
                        clock=rtc-efi rtc-efi.0 memory=0x00007c440000-0x00007c44ffff  bad=.";

    #[test]
    fn whatever_differs_from_a_start_by_firmware_is_wrong() {
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
    fn a_start_by_firmware_that_says_nothing_proves_nothing() {
        let empty = " cpus=2 systab= acpi= clock= memory= bad=.";
        for acpi in [true, false] {
            assert!(judge(acpi, empty, empty).is_err());
        }
    }

    #[test]
    fn the_script_has_every_program_it_calls() {
        for applet in APPLETS.split(' ') {
            assert!(SCRIPT.contains(applet), "{applet}");
        }
        assert!(SCRIPT.starts_with("#!/bin/busybox sh\n") && SCRIPT.contains(MARK));
    }
}
