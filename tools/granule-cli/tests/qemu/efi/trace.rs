//! Traces of boots by EFI, and their self-checks: as clean as those of a direct boot.

use granule_cli::{Firmware, PageSize};

use crate::trace::traces::{checked, record_ok};

#[test]
fn a_boot_by_efi_keeps_to_the_rules_with_a_tree_and_with_acpi() {
    for (place, size) in PageSize::ALL.into_iter().enumerate() {
        for acpi in [false, true] {
            let recorded = record_ok(|request| {
                request.firmware = Firmware::Uefi;
                request.acpi = acpi;
                request.page_size = Some(size);
                request.memory = 512 << 20;
                // Both levels, and one CPU and two, with either description.
                let is_even = (place + usize::from(acpi)) % 2 == 0;
                (request.el, request.smp) = if is_even { (2, 1) } else { (1, 2) };
            });
            let what = format!("{size:?}, ACPI: {acpi}");
            let found = checked(&recorded.text());
            assert!(found.is_clean(), "{what}:\n{}", found.text());
            let (header, tally) = (found.header, found.tally);
            assert!(header.complete, "{what}: {header}");
            assert_eq!(header.page_bytes, size.bytes(), "{what}");
            assert_eq!(header.events, recorded.ran.number("trace.events"), "{what}");
            for (key, traced) in [
                ("descriptor_stores", tally.descriptors),
                ("tlbi", tally.tlbi),
                ("dsb", tally.dsb),
            ] {
                let counted = recorded.ran.number(&format!("linear_map.{key}"));
                assert!(traced > counted, "{what}: {traced} {key} of {counted}");
            }
            recorded.ran.has("firmware", "efi");
            let described_by = if acpi { "acpi" } else { "device-tree" };
            recorded.ran.has("described_by", described_by);
            // A failed self-check ends the boot. Here it looked at all that the map has.
            recorded.ran.has(
                "linear_map.mapped_bytes",
                recorded.ran.number("linear_map.ram_bytes"),
            );
            assert!(recorded.ran.number("self_check.translations") > 4096);
            assert!(recorded.ran.number("self_check.patterns") > 0);
            assert!(recorded.ran.number("self_check.leaves") > 0);
        }
    }
}
