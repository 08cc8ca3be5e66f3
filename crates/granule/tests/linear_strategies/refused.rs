//! Pages that are no tables of the geometry: refused before a slot is opened.

use crate::slots::{Checked, Pages};
use crate::{Can, capabilities};
use granule::arch::{CpuFeatures, Geometry, Page4K, PageSize, Regime, VaRange};
use granule::linear::fixmap::create;
use granule::linear::{Barriers, Strategy};
use granule::table::TableError;

/// The error of a map with pages of so many bytes, which lie below 2^47.
fn refused(can: Can, page: u64) -> Option<TableError> {
    let mut pages = Pages::new(page, 4);
    let root = pages.empty_root();
    let mut slots = Checked::new(pages, can);
    let (strategy, barriers) = (Strategy::Base, Barriers::Table);
    // SAFETY: no CPU walks the tables, nothing else changes them, and the slots are new.
    let made = unsafe { create::<Page4K, _>(&mut slots, root, &[], strategy, barriers) };
    assert_eq!(slots.counters.get().stores, 0);
    made.err()
}

#[test]
fn pages_that_are_no_tables_of_the_geometry_are_refused() {
    let can = capabilities(PageSize::K4, 48, false, false, false);
    assert_eq!(refused(can, 0x1000), None);
    let other_size = refused(can, 0x4000);
    assert!(matches!(
        other_size,
        Some(TableError::WrongTablePages {
            given: PageSize::K16,
            page: PageSize::K4
        })
    ));
    // 40 bits of physical address.
    let cpu = CpuFeatures {
        mmfr0: 2,
        ..CpuFeatures::NONE
    };
    let geometry = Geometry::new(&cpu, PageSize::K4, 48, VaRange::Upper, Regime::El1And0).unwrap();
    let too_high = refused(Can { geometry, ..can }, 0x1000);
    assert!(matches!(
        too_high,
        Some(TableError::TablesTooHigh { pa_bits: 40, .. })
    ));
}
