//! EFI's runtime services on EDK2, after the boot: variables that outlive it, and ResetSystem. With each page size
//! the services are mapped, because EDK2 aligns what they need to 64 KiB. On U-Boot they stay off.

use std::process::{Command, Stdio};

use tempfile::NamedTempFile;

use super::{Booted, EDK2, parsed};
use crate::hooked::{qemu, test_image};

/// The size of each of the board's two banks of flash. The firmware keeps variables in the second one.
const FLASH_BYTES: u64 = 64 << 20;

/// An empty second bank of flash.
fn flash() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(FLASH_BYTES).unwrap();
    file
}

/// Boots the test image with these words and this flash. A reset would start the machine again, and never end.
fn boot(board: &str, cpu: &str, flash: Option<&NamedTempFile>, line: &str) -> Booted {
    let drive = flash.map(|flash| {
        let path = flash.path().display();
        [
            "-drive".into(),
            format!("if=pflash,unit=1,format=raw,file={path}"),
        ]
    });
    boot_with(
        board,
        cpu,
        drive.as_ref().map_or(&[][..], |drive| &drive[..]),
        line,
    )
}

/// The same with these options of QEMU.
fn boot_with(board: &str, cpu: &str, more: &[String], line: &str) -> Booted {
    let machine = format!("virt,{board}");
    let mut command = Command::new("timeout");
    command
        // In our process group, with which a test that hangs is ended.
        .args(["--foreground", "300"])
        .arg(qemu())
        .arg("-no-user-config")
        .args(["-nodefaults", "-display", "none", "-nic", "none"])
        .args(["-serial", "stdio", "-machine", &machine, "-cpu", cpu])
        .args(["-m", "512M", "-smp", "2", "-bios", EDK2, "-append", line])
        .arg("-kernel")
        .arg(test_image())
        .args(more)
        .stdin(Stdio::null());
    parsed(command)
}

/// Variables are set, read, found and deleted. One of them is there in the next boot, with another page size, with
/// and without VHE, with a device tree and with ACPI's tables.
#[test]
fn a_variable_outlives_the_boot() {
    let flash = flash();
    let mut counts = Vec::new();
    for (boots, (size, board, cpu, run_el)) in [
        ("4k", "acpi=off", "cortex-a57", "1"),
        ("16k", "acpi=on,virtualization=on", "max", "2"),
        ("64k", "acpi=off,virtualization=on", "cortex-a57", "1"),
    ]
    .into_iter()
    .enumerate()
    {
        let line = format!("arm64.pagesize={size} granule.test=efi-variables");
        // The A57 has no pages of 16K.
        let booted = boot(board, cpu, Some(&flash), &line);
        booted.has(&[
            ("efi.runtime", "on"),
            ("efi.secure_boot", "off"),
            ("efi.boots_before", &boots.to_string()),
            ("run_el", run_el),
            ("outcome", "ok"),
        ]);
        let line = format!(
            "granule: EFI runtime services: {} regions, mapped with {} pages; Secure Boot is off",
            booted.record["efi.regions"], size
        );
        assert!(booted.console.contains(&line), "{line}\n{}", booted.console);
        assert!(!booted.console.contains("no way to power off"));
        counts.push(booted.record["efi.variables"].parse::<u32>().unwrap());
    }
    // Ours and those of the specification.
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

/// The machine ends before the boot does.
#[test]
fn reset_system_turns_the_machine_off() {
    for (size, board, cpu) in [
        ("4k", "acpi=on,virtualization=on", "max"),
        ("16k", "acpi=off", "max"),
        ("64k", "acpi=off", "cortex-a57"),
    ] {
        let line = format!("arm64.pagesize={size} granule.test=efi-reset");
        let booted = boot(board, cpu, None, &line);
        let (_, after) = booted
            .console
            .split_once("granule: test: ResetSystem turns the machine off")
            .unwrap_or_else(|| panic!("{}", booted.console));
        assert_eq!(after.trim(), "", "{}", booted.console);
        assert!(!booted.record.contains_key("outcome"));
    }
}

/// A service that jumps to where nothing is ends its call, not the kernel, whatever it left in the registers and in the
/// stack pointer.
#[test]
fn a_service_that_faults_turns_the_services_off() {
    for (size, board) in [("4k", "acpi=off"), ("64k", "acpi=off,virtualization=on")] {
        let line = format!("arm64.pagesize={size} granule.test=efi-fault");
        let booted = boot(board, "max", None, &line);
        booted.has(&[
            ("efi.runtime", "on"),
            ("efi.faulted", "8"),
            ("outcome", "ok"),
        ]);
        let told = "granule: EFI runtime services: nothing faulted: instruction abort";
        assert!(booted.console.contains(told), "{}", booted.console);
        let stays = "at 0x600000000000; they stay off from here on";
        assert!(booted.console.contains(stays), "{}", booted.console);
    }
}

/// A call between CPUs, which else may take ten seconds, waits for a service that takes fifteen, of a clock that counts
/// instructions.
#[test]
fn a_slow_service_is_waited_for() {
    let clock = ["-icount", "shift=7,sleep=off"].map(String::from);
    let booted = boot_with("acpi=off", "max", &clock, "granule.test=efi-slow");
    booted.has(&[("efi.runtime", "on"), ("outcome", "ok")]);
    let answered = "granule: test: calls answered after the slow service: 1";
    assert!(booted.console.contains(answered), "{}", booted.console);
}

#[test]
fn the_command_line_turns_the_services_off() {
    let booted = boot(
        "acpi=off",
        "max",
        None,
        "efi=noruntime granule.test=efi-fault",
    );
    let why = "efi=noruntime is in the command line";
    booted.has(&[
        ("efi.runtime", "off"),
        ("efi.reason", why),
        ("outcome", "panic"),
    ]);
    let line = format!("granule: EFI runtime services are off: {why}");
    assert!(booted.console.contains(&line), "{}", booted.console);
}

/// With U-Boot, at whose prompt lines are typed.
mod live {
    use granule_cli::{Firmware, Outcome, PageSize, Request};

    use crate::hooked::ends;
    use crate::image::image;

    /// U-Boot has no memory attributes table, so its code would be writable.
    #[test]
    fn code_that_the_firmware_does_not_protect_is_not_mapped() {
        for (size, page) in [
            (PageSize::K4, "4k"),
            (PageSize::K16, "16k"),
            (PageSize::K64, "64k"),
        ] {
            let request = Request {
                image: Some(image()),
                firmware: Firmware::UBootEfi,
                memory: 512 << 20,
                page_size: Some(size),
                ..Request::default()
            };
            let booted = ends(&request, Outcome::Ok);
            let json = booted.json();
            assert_eq!(json["efi"]["runtime"], "off", "{json}");
            let reason = json["efi"]["reason"].as_str().unwrap();
            let (place, why) = reason.split_once(" would have to be ").unwrap();
            assert!(
                place.starts_with(&format!("the {page} page at 0x")),
                "{place}"
            );
            assert_eq!(
                why,
                "writable and executable: the firmware has no memory attributes table"
            );
            let line = format!("granule: EFI runtime services are off: {reason}");
            assert!(booted.console_text().contains(&line));
        }
    }
}
