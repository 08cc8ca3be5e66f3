//! Calls of EFI's runtime services keep the rules: this kernel's tables for firmware's memory, and the switch of TTBR0
//! and TCR to them and back.

use granule_cli::{Firmware, Request};

use crate::trace::traces::{SIZES, checked, record_ok};

/// The tree of the services, and each switch to it and back, keep the architecture's rules.
#[test]
fn calls_of_the_firmware_keep_the_rules() {
    for (size, el) in SIZES.into_iter().zip([1, 2, 1]) {
        let recorded = record_ok(|request: &mut Request| {
            request.firmware = Firmware::Uefi;
            request.memory = 512 << 20;
            request.page_size = Some(size);
            request.el = el;
            request.append = Some("granule.test=efi-variables".into());
        });
        let text = recorded.text();
        let checked = checked(&text);
        assert!(checked.is_clean(), "{size:?}:\n{}", checked.text());
        assert!(checked.header.complete, "{}", checked.header);
        assert_eq!(recorded.text_of("efi.runtime"), "on");
        assert!(recorded.number("efi.variables") > 0);
        // The switch to the tree and back, for the tables, for Secure Boot, and for each call of the test.
        let switches = text
            .lines()
            .filter(|line| line.contains("ttbr0_el"))
            .count();
        assert!(switches > 4 * 20, "{switches}");
    }
}
