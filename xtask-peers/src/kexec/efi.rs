//! Our kernel, started by EDK2, leaves for Debian's kernels. What such a kernel finds of firmware must be what it finds when
//! EDK2 starts it itself on the same machine: the tables that the system table names, ACPI's tables, the attributes of
//! firmware's memory, and services of the firmware that can be called.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Firmware, Initramfs, Kexec, Outcome, PageSize, Request, boot};
use xtask::graph;

use crate::check::Check;
use crate::machine::{Files, Kernel, LIMIT, told};
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

const APPLETS: [&str; 13] = [
    "cat",
    "dmesg",
    "echo",
    "grep",
    "ls",
    "mount",
    "poweroff",
    "sed",
    "sh",
    "sha256sum",
    "stty",
    "tr",
    "xargs",
];

/// Only emergency messages on the console, and the attributes of firmware's memory among the others.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1 efi=debug PATH=/bin";

const MEMORY: u64 = 1 << 30;
const CPUS: u32 = 2;
/// It has every page size.
const CPU: &str = "neoverse-n1";

/// A machine, the page size from which our kernel leaves, and the place of the next one among Debian's from either end.
struct Case {
    acpi: bool,
    from: PageSize,
    is_newest: bool,
}

const CASES: [Case; 2] = [
    Case {
        acpi: true,
        from: PageSize::K64,
        is_newest: false,
    },
    Case {
        acpi: false,
        from: PageSize::K16,
        is_newest: true,
    },
];

/// A check for each machine.
pub(crate) fn left_for(
    peers: &Peers<'_>,
    ours: &Path,
    files: &Files,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let initrd = files.initramfs("efi.cpio", archive(&peers.busybox))?;
    let next = |case: &Case| {
        let last = peers.linuxes.len().checked_sub(1)?;
        peers.linuxes.get(if case.is_newest { last } else { 0 })
    };
    graph::all(
        CASES.len(),
        |at| {
            let case = &CASES[at];
            let Some((Kernel::Linux { image, .. }, _)) = next(case) else {
                anyhow::bail!("no kernel of Debian's was fetched");
            };
            let started = started_by_edk2(case, image, &initrd);
            ensure!(started.outcome == Outcome::GuestExit, "{}", told(&started));
            let expected = line(&started)?;
            let left_for = left_for_by_ours(case, ours, image, &initrd);
            ensure!(left_for.is_ok(), "{}", told(&left_for));
            judge(case, &line(&left_for)?, &expected)
        },
        |done| {
            let case = &CASES[done.job];
            let what = if case.acpi { "ACPI" } else { "a device tree" };
            let name = next(case).map_or_else(String::new, |(kernel, _)| kernel.name());
            let from = size(case.from.bytes());
            let name = format!("kexec by EFI with {what} from {from} to {name}");
            add(Check::new(name, done.result));
        },
    );
    Ok(())
}

fn machine(case: &Case) -> Request {
    Request {
        firmware: Firmware::Uefi,
        acpi: case.acpi,
        memory: MEMORY,
        smp: CPUS,
        cpu: CPU.to_owned(),
        timeout: LIMIT,
        ..Request::default()
    }
}

fn started_by_edk2(case: &Case, image: &Path, initrd: &Path) -> Boot {
    boot::run(&Request {
        image: Some(image.to_owned()),
        initrd: Some(initrd.to_owned()),
        append: Some(WORDS.to_owned()),
        ..machine(case)
    })
}

fn left_for_by_ours(case: &Case, ours: &Path, image: &Path, initrd: &Path) -> Boot {
    boot::run(&Request {
        image: Some(ours.to_owned()),
        page_size: Some(case.from),
        kexec: Some(Kexec {
            image: Some(image.to_owned()),
            initrd: Some(initrd.to_owned()),
            append: Some(WORDS.to_owned()),
            ..Kexec::default()
        }),
        ..machine(case)
    })
}

fn archive(busybox: &[u8]) -> Initramfs {
    let archive = Initramfs::new()
        .directory("/proc")
        .directory("/sys")
        .directory("/bin")
        .program("/bin/busybox", busybox);
    let archive = APPLETS.into_iter().fold(archive, |archive, applet| {
        archive.link(&format!("/bin/{applet}"), "busybox")
    });
    archive.program("/init", SCRIPT.as_bytes())
}

/// What the script says.
fn line(booted: &Boot) -> Result<String> {
    let console = booted.console_text();
    let mut lines = console.lines().map(str::trim_end);
    let found = lines.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    found.with_context(|| format!("it did not come to its first process: {}", told(booted)))
}

/// Whether a line is right: the one of the kernel that firmware started, which has everything.
fn judge(case: &Case, line: &str, expected: &str) -> Result<String> {
    let acpi = if case.acpi {
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
        let case = &CASES[0];
        assert!(case.acpi);
        assert!(judge(case, GOOD, GOOD).unwrap().ends_with("rtc-efi.0"));
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
            assert!(judge(case, &wrong, GOOD).is_err(), "{part}");
        }
    }

    #[test]
    fn a_start_by_firmware_that_says_nothing_proves_nothing() {
        let empty = " cpus=2 systab= acpi= clock= memory= bad=.";
        for case in &CASES {
            assert!(judge(case, empty, empty).is_err());
        }
    }

    #[test]
    fn the_script_has_every_program_it_calls() {
        for applet in APPLETS {
            assert!(SCRIPT.contains(applet), "{applet}");
        }
        assert!(SCRIPT.starts_with("#!/bin/busybox sh\n") && SCRIPT.contains(MARK));
    }
}
