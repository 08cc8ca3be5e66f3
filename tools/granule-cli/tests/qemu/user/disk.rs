//! The machine's disk, which programs read and write, and crashes that a program asks for.

use std::fs::{self, File};
use std::path::Path;

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::booted::Booted;
use crate::hooked::ends_with;
use crate::image::built;
use crate::user::machine::{machine_at, program};

const ON: &str = "granule.disk=on";
const BYTES: u64 = (1 << 20) + 512;

#[track_caller]
fn with_disk(
    request: &Request,
    disk: &Path,
    archive: Initramfs,
    (words, outcome): (&str, Outcome),
) -> Booted {
    let request = Request {
        virtio_disk: Some(disk.to_owned()),
        ..request.clone().append(words)
    };
    ends_with(&request, archive, outcome)
}

/// A file of zeros.
fn zeros(disk: &Path, bytes: u64) {
    File::create(disk).unwrap().set_len(bytes).unwrap();
}

#[test]
fn programs_read_and_write_a_disk_at_any_offset() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    for (size, cpus, el) in [
        (PageSize::K4, 1, 1),
        (PageSize::K16, 1, 2),
        (PageSize::K64, 4, 2),
    ] {
        zeros(&disk, BYTES);
        let archive = Initramfs::new().program("/init", &program());
        let words = format!("{ON} -- disk {BYTES}");
        let request = machine_at(size, cpus, el);
        let ran = with_disk(&request, &disk, archive, (&words, Outcome::Ok));
        ran.frames_came_back();
        let mut expected = vec![0; usize::try_from(BYTES).unwrap()];
        expected[4093..9093].fill(1);
        expected[5093..5193].fill(2);
        *expected.last_mut().unwrap() = 9;
        assert!(fs::read(&disk).unwrap() == expected, "{size:?}");
    }
}

/// Boots that do not use a disk look for none.
#[test]
fn a_disk_is_there_if_it_is_asked_for_and_the_machine_has_one() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    zeros(&disk, BYTES);
    let archive = || kexec("core /etc/kexec /dev/vda");
    let request = machine_at(PageSize::K4, 1, 1);
    let none = "kexec: /dev/vda: ENOENT: there is no such file";
    let ran = with_disk(&request, &disk, archive(), ("", Outcome::GuestExit));
    ran.prints_line(none);
    ran.does_not_print("virtio");
    let ran = ends_with(&request.append(ON), archive(), Outcome::GuestExit);
    ran.prints_line(none);
    ran.prints("no virtio,mmio node of the device tree has a disk");
}

fn kexec(lines: &str) -> Initramfs {
    let program = fs::read(built("granule-kexec", "cargo xtask user")).unwrap();
    Initramfs::new()
        .program("/init", &program)
        .directory("/etc")
        .file("/etc/kexec", lines.as_bytes())
}

#[test]
fn a_core_is_copied_to_a_disk_and_zeros_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let mut core = vec![0; 200_001];
    core[..3].fill(1);
    core[140_000..].fill(2);
    for (size, words, found, written) in [
        (PageSize::K16, "", 7, 65_536 + 200_001),
        (PageSize::K64, " --zeroed", 0, 4096 + 200_001 - 34 * 4096),
    ] {
        fs::write(&disk, vec![found; 256 << 10]).unwrap();
        let lines = format!("core /core /dev/vda{words}\npoweroff");
        let archive = kexec(&lines).file("/core", &core);
        let request = machine_at(size, 1, 1);
        let ran = with_disk(&request, &disk, archive, (ON, Outcome::Ok));
        ran.prints_line(&format!(
            "core 200001 bytes of /core to /dev/vda, {written} of them written"
        ));
        let copied = fs::read(&disk).unwrap();
        assert!(copied[..200_001] == core && copied[200_001..].iter().all(|byte| *byte == found));
    }
}

/// A disk that is too small has no core, whatever it had before.
#[test]
fn a_core_without_room_does_not_begin_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::write(&disk, vec![7; 128 << 10]).unwrap();
    let archive = kexec("core /core /dev/vda").file("/core", &[5; 140_000]);
    let request = machine_at(PageSize::K4, 1, 1);
    let ran = with_disk(&request, &disk, archive, (ON, Outcome::GuestExit));
    ran.prints_line("kexec: /dev/vda: ENOSPC: there is no room for it");
    let found = fs::read(&disk).unwrap();
    assert!(found[..65_536].iter().all(|byte| *byte == 0));
    assert!(found[65_536..].iter().all(|byte| *byte == 5));
}

#[test]
fn a_program_asks_for_a_crash() {
    for size in PageSize::ALL {
        let ran = ends_with(&machine_at(size, 1, 1), kexec("crash"), Outcome::Panic);
        ran.fails_with("sysrq: crash requested by process 1");
    }
}
