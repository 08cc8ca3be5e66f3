//! Leaving for the next kernel on a machine that EFI firmware started: the next kernel finds the
//! same system table and the same memory map, and gets the same device tree or the same ACPI
//! tables.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Firmware, Kexec, Outcome, Request};
use serde_json::{Value, json};

use crate::booted::Booted;
use crate::kexec::machine::{NEXT, archive, boots, machine};

/// Words for tables that are passed over, left out or wrong.
const COMPLAINTS: [&str; 6] = [
    "EFI memory map:",
    "ACPI:",
    "EFI system table",
    "not the console",
    "no way to power off",
    "is not started",
];

/// A machine with that description, started by EDK2.
fn by_efi(acpi: bool, size: PageSize, cpus: u32, el: u8) -> Request {
    Request {
        firmware: Firmware::Uefi,
        acpi,
        el,
        ..machine(size, cpus)
    }
}

/// Each kernel has got the same description of the machine, and all of the machine came up again.
#[track_caller]
fn gets_the_same_machine(ran: &Booted, request: &Request, sizes: &[PageSize]) {
    let kernels = ran.value("boots").as_array().unwrap();
    assert_eq!(kernels.len(), sizes.len(), "{}", ran.console);
    let first = &kernels[0];
    assert!(first["efi"]["map_bytes"].as_u64() > Some(0), "{first}");
    let described_by = if request.acpi { "acpi" } else { "device-tree" };
    for (kernel, size) in kernels.iter().zip(sizes) {
        for (key, expected) in [
            ("outcome", json!("ok")),
            ("page_size", json!(size.bytes())),
            ("page_size_source", json!("command-line")),
            ("entry_el", json!(request.el)),
            ("firmware", json!("efi")),
            ("described_by", json!(described_by)),
            ("efi", first["efi"].clone()),
            ("cpus", json!(request.smp)),
            ("cpu_mismatch", json!([])),
        ] {
            assert_eq!(kernel[key], expected, "{key} in {kernel}");
        }
        let ram = |kernel: &Value| kernel["linear_map"]["ram_bytes"].clone();
        assert_eq!(ram(kernel), ram(first));
    }
    for words in COMPLAINTS {
        ran.does_not_print(words);
    }
}

/// Every page size is left from and left for, at both levels.
fn leaves(acpi: bool) {
    for (from, to, cpus, el) in [(K4, K64, 4, 1), (K16, K4, 1, 2), (K64, K16, 2, 2)] {
        let request = Request {
            kexec: Some(Kexec {
                page_size: Some(to),
                ..Kexec::default()
            }),
            ..by_efi(acpi, from, cpus, el)
        };
        let ran = boots(&request, Outcome::Ok);
        gets_the_same_machine(&ran, &request, &[from, to]);
        // The tree that arrived is the one that was loaded, although the kernel reads another.
        ran.has("kexec.digest_ok", true);
    }
}

#[test]
fn with_a_device_tree_the_next_kernel_gets_the_same_map() {
    leaves(false);
}

#[test]
fn with_acpi_alone_the_next_kernel_gets_its_tables() {
    leaves(true);
}

/// Nothing is lost on the way, however many kernels it goes through.
#[test]
fn the_third_kernel_gets_what_the_first_got() {
    let again = format!("load {NEXT} --append arm64.pagesize=64k\nexec\n");
    let inner = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(inner.path(), archive(&again).bytes()).unwrap();
    for acpi in [false, true] {
        let [first, second, third] = PageSize::ALL;
        let request = Request {
            kexec: Some(Kexec {
                page_size: Some(second),
                initrd: Some(inner.path().to_owned()),
                ..Kexec::default()
            }),
            ..by_efi(acpi, first, 2, 2)
        };
        let ran = boots(&request, Outcome::Ok);
        gets_the_same_machine(&ran, &request, &[first, second, third]);
    }
}
