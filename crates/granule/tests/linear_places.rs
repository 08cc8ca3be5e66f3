//! The places of a linear map for address randomisation: at each, RAM has the same leaves and tables.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use granule::arch::{
    Attributes, CpuFeatures, Geometry, PageSize, Permissions, PhysicalAddress, Regime, VaRange,
    VirtualAddress,
};
use granule::linear::{LeafStats, Placement};
use granule::table::{Leaves, Piece};
use granule_testing::cases::config;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Every page size with its VA sizes, without and with 52-bit formats.
const SHAPES: [(PageSize, u32); 12] = [
    (PageSize::K4, 36),
    (PageSize::K4, 39),
    (PageSize::K4, 48),
    (PageSize::K4, 52),
    (PageSize::K16, 36),
    (PageSize::K16, 47),
    (PageSize::K16, 48),
    (PageSize::K16, 52),
    (PageSize::K64, 36),
    (PageSize::K64, 42),
    (PageSize::K64, 48),
    (PageSize::K64, 52),
];

fn geometry(size: PageSize, va_bits: u32, is_wide: bool) -> Geometry {
    // TGran4 0 or 1, TGran16 1 or 2, PARange 5 or 6 (48 or 52 bits); VARange.
    let (mmfr0, mmfr2) = match is_wide || va_bits > 48 {
        true => (1 << 28 | 2 << 20 | 6, 1 << 16),
        false => (1 << 20 | 5, 0),
    };
    let cpu = CpuFeatures {
        mmfr0,
        mmfr2,
        ..CpuFeatures::NONE
    };
    Geometry::new(&cpu, size, va_bits, VaRange::Upper, Regime::El1And0).unwrap()
}

/// The placement as a kernel chooses it, in the lower half of the range.
fn usual(geometry: &Geometry, start: u64, end: u64) -> Placement {
    let (start, end) = (PhysicalAddress(start), PhysicalAddress(end));
    Placement::choose(geometry, geometry.base(), geometry.span() / 2, start, end)
}

/// Counts the leaves of a map of `banks` at `placement`; `None` if a bank does not fit.
fn held(geometry: &Geometry, placement: &Placement, banks: &[(u64, u64)]) -> Option<LeafStats> {
    let pieces: Option<Vec<_>> = banks
        .iter()
        .map(|&(start, end)| {
            placement.virtual_address(PhysicalAddress(end - 1))?;
            Some(Piece {
                start: placement.virtual_address(PhysicalAddress(start))?,
                output: PhysicalAddress(start),
                bytes: end - start,
                attributes: Attributes::normal(Permissions::READ_WRITE),
                leaves: Leaves::LARGEST,
            })
        })
        .collect();
    Some(LeafStats::new(geometry, &pieces?))
}

/// Banks of whole pages, in order, with gaps: from bytes up to terabytes.
fn banks() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let amount = || (12_u32..42, 1_u64..1 << 16).prop_map(|(shift, n)| (n << shift) >> 12);
    prop::collection::vec((amount(), amount()), 1..5).prop_map(|parts| {
        let mut end = 0;
        let mut banks = Vec::new();
        for (gap, bytes) in parts {
            let whole = |bytes: u64| (bytes & !0xffff).max(0x1_0000);
            let start = end + whole(gap);
            end = start + whole(bytes);
            banks.push((start, end));
        }
        banks
    })
}

proptest! {
    #![proptest_config(config(3000, 20))]

    #[test]
    fn leaves_and_tables_are_the_same_everywhere(
        shape in 0..SHAPES.len(),
        is_wide: bool,
        banks in banks(),
        numbers in prop::collection::vec(any::<u64>(), 8),
    ) {
        let (size, va_bits) = SHAPES[shape];
        let geometry = geometry(size, va_bits, is_wide);
        let (start, end) = (banks[0].0, banks[banks.len() - 1].1);
        prop_assume!(end <= 1 << geometry.pa_bits());
        let placement = usual(&geometry, start, end);
        let places = placement.places(&geometry, PhysicalAddress(start), PhysicalAddress(end));
        let here = held(&geometry, &placement, &banks);
        let last = places.count() - 1;
        prop_assert!(places.get(last + 1).is_none() && places.get(u64::MAX).is_none());
        let picked = numbers.iter().map(|number| number % places.count());
        for number in picked.chain([0, last]) {
            let moved = places.get(number).unwrap();
            if here.is_none() {
                prop_assert_eq!((places.count(), moved), (1, placement));
                continue;
            }
            prop_assert_eq!(held(&geometry, &moved, &banks), here, "place {}", number);
            // It lies in the same window, which ends where it ended.
            let window_end = placement.base.0 + geometry.span() / 2;
            let first = moved.virtual_address(PhysicalAddress(start)).unwrap();
            prop_assert!(first >= placement.base && moved.base >= placement.base);
            prop_assert_eq!(moved.base.0 + moved.span, window_end);
            prop_assert_eq!(moved.physical_address(first), Some(PhysicalAddress(start)));
            prop_assert_eq!(first.0, start.wrapping_add(moved.distance()));
        }
    }
}

/// Every place is another address, and the address without randomisation is one of them.
#[test]
#[cfg_attr(miri, ignore = "10,000s of places in twelve forms take minutes")]
fn the_usual_place_is_one_of_them() {
    for (size, va_bits) in SHAPES {
        let geometry = geometry(size, va_bits, false);
        let (start, end) = (GIB, 5 * GIB);
        let placement = usual(&geometry, start, end);
        let places = placement.places(&geometry, PhysicalAddress(start), PhysicalAddress(end));
        let distances = (0..places.count().min(1 << 16)).map(|n| places.get(n).unwrap().distance());
        let distances: Vec<_> = distances.collect();
        assert!(distances.is_sorted_by(|a, b| a < b));
        assert!(
            distances.contains(&placement.distance()),
            "{size} {va_bits}"
        );
    }
}

/// The number of places for 4 GiB at 1 GiB, worked out by hand: GiB by GiB in each 512 GiB with 4K
/// pages, by contiguous groups of 1 GiB with 16K, by blocks of 512 MiB with 64K.
#[test]
fn the_number_of_places() {
    for (size, va_bits, expected) in [
        // 256 tables of 512 GiB, 509 places in each.
        (PageSize::K4, 48, 256 * 509),
        // One table, the root: 256 GiB.
        (PageSize::K4, 39, 253),
        // 32 GiB.
        (PageSize::K16, 36, 29),
        // 1024 tables of 64 GiB, 61 places in each.
        (PageSize::K16, 47, 1024 * 61),
        // 32 tables of 4 TiB, places at each 512 MiB.
        (PageSize::K64, 48, 32 * (8192 - 8 + 1)),
        (PageSize::K64, 42, 4096 - 8 + 1),
    ] {
        let geometry = geometry(size, va_bits, false);
        let placement = usual(&geometry, GIB, 5 * GIB);
        let places = placement.places(&geometry, PhysicalAddress(GIB), PhysicalAddress(5 * GIB));
        assert_eq!(places.count(), expected, "{size} {va_bits}");
    }
}

#[test]
fn without_room_there_is_one_place() {
    let geometry = geometry(PageSize::K16, 36, false);
    for end in [32 * GIB, 33 * GIB, 48 * GIB, 64 * GIB] {
        let placement = usual(&geometry, GIB, end);
        let places = placement.places(&geometry, PhysicalAddress(GIB), PhysicalAddress(end));
        let fits = end <= 33 * GIB;
        assert!(
            places.count() <= 2 && places.count() == 1 || fits && end < 33 * GIB,
            "{end:#x}"
        );
        assert!(places.get(0).is_some());
    }
    // No RAM, RAM that ends before it begins, and a window outside the half.
    let placement = usual(&geometry, GIB, 2 * GIB);
    for (start, end) in [
        (GIB, GIB),
        (2 * GIB, GIB),
        (0, MIB),
        (u64::MAX - MIB, u64::MAX),
    ] {
        let places = placement.places(&geometry, PhysicalAddress(start), PhysicalAddress(end));
        assert_eq!((places.count(), places.get(0)), (1, Some(placement)));
    }
    let low = Placement::choose(
        &geometry,
        VirtualAddress(0),
        GIB,
        PhysicalAddress(0),
        PhysicalAddress(MIB),
    );
    let places = low.places(&geometry, PhysicalAddress(0), PhysicalAddress(MIB));
    assert_eq!((places.count(), places.get(0)), (1, Some(low)));
}
