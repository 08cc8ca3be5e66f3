use super::*;
use std::collections::BTreeSet;

#[test]
fn the_matrix_has_every_combination_once() {
    let all = full(&QEMUS);
    // Nine ways to start and to describe the machine; EL × page size × CPUs × QEMU.
    assert_eq!(all.len(), 9 * 2 * 3 * 2 * 2);
    let names: BTreeSet<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), all.len());
    assert_eq!(installed().len(), 5 * 2 * 3 * 2);
    // Only EDK2 has ACPI's tables, and `granule boot` refuses the rest.
    assert!(all.iter().all(|case| !case.acpi || case.firmware.is_edk2()));
}

#[test]
fn the_samples_cover_every_pair_and_are_small() {
    let pairs = |cases: &[FirmwareBoot]| {
        let each = cases.iter().map(|case| pairwise::pairs(&case.dimensions()));
        each.flatten().collect::<BTreeSet<_>>()
    };
    // Each way to start with each page size is the least.
    for (all, least) in [(installed(), 4 * 3), (full(&QEMUS), 6 * 3)] {
        let sample = covering(&all);
        assert_eq!(pairs(&sample), pairs(&all));
        let range = least..=least + 4;
        assert!(range.contains(&sample.len()), "{}", sample.len());
    }
}

fn case(firmware: Firmware, acpi: bool) -> FirmwareBoot {
    FirmwareBoot {
        firmware,
        acpi,
        el: 2,
        page_size: PageSize::K16,
        cpus: 4,
        qemu: Qemu::Fetched,
    }
}

fn record(case: &FirmwareBoot) -> Value {
    let ram = MEMORY - u64::from(case.is_efi()) * (8 << 20);
    json!({
        "qemu": {"firmware": case.firmware.word(), "version": "10.0.8"},
        "firmware": if case.is_efi() { "efi" } else { "none" },
        "described_by": if case.acpi { "acpi" } else { "device-tree" },
        "page_size": 16384, "page_size_source": "command-line", "entry_el": 2, "run_el": 2,
        "cpus": 4, "cpus_expected": 4, "cpu_mismatch": [], "outcome": "ok",
        "image": {"sha256": "aa"},
        "linear_map": {"ram_bytes": ram, "mapped_bytes": ram},
        "self_check": {"translations": 5000, "patterns": 9, "leaves": 9},
    })
}

#[test]
fn a_true_record_passes_and_each_lie_is_found() {
    for case in [
        case(Firmware::Direct, false),
        case(Firmware::UBoot, false),
        case(Firmware::Uefi, true),
        case(Firmware::Grub, false),
    ] {
        let good = record(&case);
        let is_right = |record: &Value| case.mismatches(record, "aa").is_empty();
        assert!(is_right(&good), "{:?}", case.mismatches(&good, "aa"));
        assert_eq!(boot::unjudged(&good, is_right), [""; 0]);
        for (pointer, lie) in [
            ("/qemu/version", json!("10.1.0")),
            ("/linear_map/ram_bytes", json!(MEMORY / 2)),
            ("/linear_map/mapped_bytes", json!(0)),
            ("/self_check/translations", json!(4096)),
            ("/self_check/patterns", json!(0)),
        ] {
            let wrong = case.mismatches(&boot::changed(&good, pointer, lie), "aa");
            assert_eq!(wrong.len(), 1, "{pointer}: {wrong:?}");
        }
    }
}

#[test]
fn a_missing_or_malformed_trace_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let message = |error: anyhow::Error| format!("{error:#}");
    assert!(message(is_clean(&path).unwrap_err()).starts_with("there is no trace"));
    std::fs::write(&path, "not one\n").unwrap();
    assert!(is_clean(&path).is_err());
}
