//! The target for what EFI's runtime services need mapped: a memory map and a memory attributes table of raw
//! descriptors, most of them near each other.

use crate::bytes::Bytes;
use granule::arch::{CpuFeatures, Geometry, IdRegisters, PageSize, Regime, VaRange};
use granule_boot::efi::Map;
use granule_kcore::efi::runtime::Plan;
use granule_testing::firmware as firm;

/// Descriptors with few pages over few addresses, so that they meet, and some that are absurd.
fn descriptors(given: &mut Bytes<'_>, kinds: &[u32]) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..=given.below(12) {
        let kind = kinds[given.below(kinds.len())];
        let attributes = [firm::RO, firm::XP, firm::RO | firm::XP, 0][given.below(4)];
        let cached = [firm::WB, firm::WB, firm::WB, 1, 2, given.word()][given.below(6)];
        let (start, pages) = match given.below(16) {
            0 => (given.word(), given.word()),
            _ => (
                0x1000 * u64::from(given.byte()),
                u64::from(given.byte() % 32),
            ),
        };
        let runtime = if given.below(8) == 0 {
            0
        } else {
            firm::RUNTIME
        };
        let mut one = firm::descriptor(kind, start, pages, attributes | cached | runtime, 48);
        if given.below(8) == 0 {
            one[16..24].copy_from_slice(&(given.word() >> given.below(60)).to_le_bytes());
        }
        all.extend(one);
    }
    all
}

pub(crate) fn efi_runtime(bytes: &[u8]) {
    let mut given = Bytes(bytes);
    let size = PageSize::ALL[given.below(3)];
    let has_table = given.below(4) > 0;
    let map = descriptors(&mut given, &[5, 6, 11, 7, 2]);
    let table = descriptors(&mut given, &[5, 6]);
    let read = |list| Map::new(list, 48, 1).unwrap_or_else(|error| panic!("{error}"));
    let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(1 << 20 | 4));
    let geometry = Geometry::new(&cpu, size, 48, VaRange::Lower, Regime::El1And0);
    let geometry = geometry.unwrap_or_else(|error| panic!("{error}"));
    let table = has_table.then(|| read(&table[..]));
    let plan = match Plan::new(read(&map), table, &geometry) {
        Ok(plan) => plan,
        Err(refusal) => return assert_eq!(refusal.to_string().lines().count(), 1),
    };
    let mut behind = 0;
    for piece in plan.pieces() {
        assert!(!piece.attributes.permissions.writable_and_executable());
        assert!(!piece.attributes.permissions.user);
        for number in [piece.start.0, piece.output.0, piece.bytes] {
            assert_eq!(number % size.bytes(), 0);
        }
        assert!(piece.output.0 >= behind && piece.bytes > 0);
        assert!(geometry.offset(piece.start).is_some());
        behind = piece.output_end().0;
    }
    // Every byte that firmware asks for is mapped.
    for one in read(&map).filter(|one| one.is_for_runtime() && one.pages > 0) {
        let range = one
            .range()
            .unwrap_or_else(|| panic!("a range that is not sane is mapped"));
        let mut at = range.start;
        for piece in plan.pieces() {
            if piece.output.0 <= at && at < piece.output_end().0 {
                at = piece.output_end().0;
            }
        }
        assert!(at >= range.start + range.bytes);
    }
}
