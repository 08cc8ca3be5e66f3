//! Runs of descriptors where the 52-bit formats break off.
//!
//! A run is written by adding a step to a descriptor, which is right only as long as the address
//! bits in it follow each other.

use crate::bench::{Bench, Setting};
use granule::arch::{
    Attributes, Dispatch, Geometry, Level, Page, Page4K, PageSize, Permissions, VaRange,
};
use granule::table::{Leaves, Visit};
use granule_testing::shape::LARGE;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

struct AcrossTheBreak(Geometry);

impl Dispatch for AcrossTheBreak {
    type Output = ();
    fn run<P: Page>(self) {
        // Where adding to a descriptor no longer adds to the address: 64K keeps bits 51:48
        // elsewhere, 4K and 16K with DS bits 51:50.
        let place = if P::SIZE == PageSize::K64 { 48 } else { 50 };
        let page = P::SIZE.bytes();
        let table = page * page / 8;
        for live in [false, true] {
            let setting = Setting {
                first: (1 << place) - 3 * page,
                pages: 8,
                live,
                ..Setting::PRIVATE
            };
            let mut bench = Bench::<P>::new(&self.0, setting);
            // Outputs that cross it inside a table, in tables that cross it themselves.
            let output = (1 << place) - table - page;
            bench.lay(0, output, 3 * table, RW, Leaves::PAGES);
            let levels = bench.tree.tables.iter().filter(|t| t.level == 3);
            let low = levels.clone().filter(|t| t.address < 1 << place).count();
            assert!(low > 0 && low < levels.count(), "tables on both sides");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "three whole tables of each size take Miri minutes")]
fn runs_stop_where_the_descriptor_format_breaks() {
    for size in PageSize::ALL {
        size.dispatch(AcrossTheBreak(LARGE.geometry(size, 47, VaRange::Lower)));
    }
}

#[test]
fn a_visited_run_ends_where_the_addition_would_carry_into_other_bits() {
    // Address bits end at 49 with DS, and bit 50 means "guarded": one page more than the last
    // address below 2^50, unguarded, looks like address zero, guarded.
    let geometry = LARGE.geometry(PageSize::K4, 52, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    let guarded = Attributes::normal(Permissions {
        guarded: true,
        ..Permissions::READ_WRITE
    });
    bench.lay(0x1000, (1 << 50) - 0x1000, 0x1000, RW, Leaves::PAGES);
    bench.lay(0x2000, 0, 0x1000, guarded, Leaves::PAGES);
    let mut leaves = Vec::new();
    bench.tables.visit_runs(|entry| {
        if entry.level == Level::L3 {
            leaves.push((entry.start.0, entry.count, entry.output.0));
        }
        Visit::EVERYTHING
    });
    assert_eq!(leaves, [(0x1000, 1, (1 << 50) - 0x1000), (0x2000, 1, 0)]);
}
