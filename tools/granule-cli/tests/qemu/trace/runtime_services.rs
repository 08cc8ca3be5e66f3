//! Calls of EFI's runtime services keep the rules: this kernel's tables for firmware's memory, and the switch of TTBR0
//! and TCR to them and back.

use std::collections::BTreeSet;

use granule_cli::{Firmware, Request};

use crate::trace::traces::{SIZES, checked, record_ok};

/// The tree of the services, and each switch to it and back, keep the architecture's rules. It reaches 48 bits of
/// addresses, though the kernel's half has fewer.
#[test]
fn calls_of_the_firmware_keep_the_rules() {
    for (size, (el, bits)) in SIZES.into_iter().zip([(1, 39), (2, 47), (1, 42)]) {
        let recorded = record_ok(|request: &mut Request| {
            request.firmware = Firmware::Uefi;
            request.memory = 512 << 20;
            request.page_size = Some(size);
            request.el = el;
            request.append = Some(format!("granule.test=efi-variables arm64.vabits={bits}"));
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
        let tcrs = text.lines().filter(|line| line.contains("tcr_el"));
        let shapes: BTreeSet<_> = tcrs.map(address_bits).collect();
        assert!(shapes.contains(&(48, bits)), "{size:?}: {shapes:?}");
    }
}

/// The address bits of both halves by a line of TCR (T0SZ and T1SZ).
fn address_bits(line: &str) -> (u64, u64) {
    let value = line.split_once("0x").unwrap().1;
    let value = u64::from_str_radix(value, 16).unwrap();
    (64 - (value & 0x3f), 64 - (value >> 16 & 0x3f))
}
