//! EDK2 with the kernel from QEMU. The folder `efi` tests the kernel's use of EDK2.

use granule_cli::{Firmware, Initramfs, Outcome, PageSize};

use crate::user::machine::{ends, machine, program};

#[test]
fn edk2_hands_over_command_line_initramfs_and_memory() {
    let request = machine(PageSize::K64, 2)
        .firmware(Firmware::Uefi)
        .append("-- more");
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &program())
        .program("/init", b"#!/bin/prog hello\n");
    let ran = ends(&request, archive, Outcome::Ok);
    ran.prints_line("argument more");
    ran.has("page_size", 64 << 10);
    ran.has("cpus", 2);
    assert_eq!(ran.json["qemu"]["firmware"], "uefi");
}
