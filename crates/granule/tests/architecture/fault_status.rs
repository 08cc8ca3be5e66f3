//! Fault status codes, from the tables of ESR_ELx's ISS for instruction and data aborts.

use granule::arch::FaultStatus;

/// The syndrome of an exception of a class, with the 32-bit bit set and bits of ISS2.
fn esr(class: u64, iss: u64) -> u64 {
    0x1f << 32 | class << 26 | 1 << 25 | iss
}

#[test]
fn aborts_and_no_other_exceptions_have_a_status() {
    let aborts: Vec<u64> = (0..64)
        .filter(|class| FaultStatus::of_esr(esr(*class, 0x30)).is_some())
        .collect();
    assert_eq!(aborts, [0x20, 0x21, 0x24, 0x25]);
    // WnR, S1PTW, CM and the rest of ISS are not part of the code.
    let status = FaultStatus::of_esr(esr(0x25, 0x1ff_ffc0 | 0x07)).unwrap();
    assert_eq!(status.0, 0x07);
}

#[test]
fn a_failed_address_translation_has_a_status() {
    assert_eq!(FaultStatus::of_par(0x1000), None);
    let conflict = FaultStatus::of_par(0x30 << 1 | 1).unwrap();
    assert!(conflict.is_tlb_conflict() && !conflict.is_by_tables());
}

#[test]
fn each_kind_has_the_codes_of_its_levels_and_no_other() {
    let codes = |is: fn(FaultStatus) -> bool| -> Vec<u64> {
        (0..64)
            .filter(|code| is(FaultStatus::of_esr(esr(0x24, *code)).unwrap()))
            .collect()
    };
    assert_eq!(codes(FaultStatus::is_tlb_conflict), [0x30]);
    let translation = [0x04, 0x05, 0x06, 0x07, 0x2a, 0x2b];
    assert_eq!(codes(FaultStatus::is_translation_fault), translation);
    let mut tables: Vec<u64> = (0..16).collect();
    tables.extend([0x29, 0x2b]);
    assert_eq!(codes(FaultStatus::is_by_tables), tables);
}
