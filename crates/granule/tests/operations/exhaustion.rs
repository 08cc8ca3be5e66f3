//! Running out of table pages, at every allocation that an operation makes.
//!
//! The tables must then be bit for bit as they were, nothing allocated, nothing stored, no barrier
//! issued, and the error must have the number of tables that the operation takes. Where pages cannot be
//! reserved, those that the tree held by then are all given back.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use crate::split::{only, pairs, shapes};
use granule::arch::LeafSize;
use granule::arch::{
    Attributes, Dispatch, Geometry, Page, Page4K, Page16K, PageSize, Permissions, PhysicalAddress,
    VaRange,
};
use granule::table::{Holes, Leaves, PageTables, TableError};
use granule_testing::host::{self, Host, Runs};
use granule_testing::shape::{self, LARGE, PLAIN};
use granule_testing::walk::Arch;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// Whether the tables are live, and whether pages can be reserved.
pub const EVERY: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// A mapping that takes several tables at every level the shape has.
fn large_mapping(arch: &Arch) -> (u64, u64, Leaves) {
    let page = arch.page();
    // From the last page below the second entry of the root to a page into the third: tables on
    // both sides, and pages of everything between if it is small, else the largest leaves.
    let root = arch.start_level();
    if root == 3 {
        return (0, page, Leaves::PAGES);
    }
    let entry = arch.entry_bytes(root);
    let entries = arch.span() / entry;
    if entries > 2 && arch.leaf_allowed(root) {
        (entry - page, entry + 2 * page, Leaves::LARGEST)
    } else {
        (entry - page, 2 * page, Leaves::LARGEST)
    }
}

/// Gives back how many allocations there were to fail at.
fn at_every_allocation<P: Page>(geometry: &Geometry, setting: Setting, runs: Runs) -> usize {
    let mut bench = Bench::<P>::new(geometry, setting);
    let arch = bench.arch;
    bench.host.set_runs(runs);
    let (offset, bytes, leaves) = large_mapping(&arch);
    // Something is there already, in tables that the mapping shares.
    if arch.start_level() < 3 {
        let below = offset - 2 * arch.page();
        bench.lay(below, 0, arch.page(), RW, Leaves::PAGES);
    }
    // How many it takes, by the reference's count of the tree before and after.
    let before = bench.reference.tables();
    let mut after = crate::reference::Reference::new(geometry);
    after.mapped.clone_from(&bench.reference.mapped);
    let output = offset % (1 << (arch.pa_bits - 1));
    after.map(offset, output, bytes, RW, leaves).unwrap();
    let needed = after.tables() - before;
    let dump = bench.dump();
    let start = bench.reference.address(offset);
    for budget in 0..needed {
        bench.host.set_budget(budget);
        let answer = bench
            .tables
            .map(start, PhysicalAddress(output), bytes, RW, leaves);
        assert_eq!(
            answer,
            Err(TableError::OutOfTables { needed }),
            "with {budget}"
        );
        assert_eq!(
            bench.dump(),
            dump,
            "with {budget} tables: bit for bit as it was"
        );
        bench.ran_out(needed, budget);
        assert_eq!(bench.host.given_out(), before);
    }
    bench.host.set_budget(needed);
    bench.lay(offset, output, bytes, RW, leaves);
    assert_eq!(bench.host.given_out(), before + needed);
    // No table is needed to take it away again.
    bench.host.set_budget(0);
    bench.unmap(offset, bytes).unwrap();
    assert_eq!(bench.dump(), dump, "unmapping undoes mapping");
    needed
}

struct AtEveryAllocation {
    geometry: Geometry,
    setting: Setting,
    runs: Runs,
}

impl Dispatch for AtEveryAllocation {
    type Output = usize;
    fn run<P: Page>(self) -> usize {
        at_every_allocation::<P>(&self.geometry, self.setting, self.runs)
    }
}

#[test]
fn running_out_leaves_everything_as_it_was() {
    let mut shapes = shape::all();
    if cfg!(miri) {
        shapes.retain(|shape| shape.page_size() == PageSize::K4);
        shapes.truncate(1);
    }
    let mut failed = 0;
    for geometry in shapes {
        for (live, reserves) in EVERY {
            let setting = Setting::LIVE.live(live).reserves(reserves);
            for runs in [Runs::Long, Runs::Scattered] {
                let one = AtEveryAllocation {
                    geometry,
                    setting,
                    runs,
                };
                failed += geometry.page_size().dispatch(one);
            }
        }
    }
    assert!(failed > if cfg!(miri) { 4 } else { 200 }, "only {failed}");
}

#[test]
#[cfg_attr(miri, ignore = "20 000 pages in the reference take Miri minutes")]
fn many_tables_of_pages() {
    // 40 tables of pages at once, refused with one too few.
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let tables = 40;
    for runs in [Runs::Short, Runs::Long, Runs::Scattered] {
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
        bench.host.set_runs(runs);
        let bytes = tables << 21;
        let needed = tables as usize + 2;
        let dump = bench.dump();
        bench.host.set_budget(needed - 1);
        let start = bench.reference.address(0);
        let answer = bench
            .tables
            .map(start, PhysicalAddress(0), bytes, RW, Leaves::PAGES);
        assert_eq!(answer, Err(TableError::OutOfTables { needed }));
        assert_eq!(bench.dump(), dump);
        bench.host.take_events();
        bench.host.set_budget(needed);
        bench.lay(0, 0, bytes, RW, Leaves::PAGES);
    }
}

#[test]
fn no_page_for_the_root() {
    let geometry = LARGE.geometry(PageSize::K16, 47, VaRange::Lower);
    let host = Host::new(&geometry, 0x4000_0000, 1);
    host.set_budget(0);
    let environment = host::environment(&host, Setting::PRIVATE.capabilities());
    let answer = PageTables::<Page16K, _>::new(geometry, environment);
    let error = TableError::OutOfTables { needed: 1 };
    assert_eq!(answer.err(), Some(error));
    assert_eq!(host.given_out(), 0);
    let text = error.to_string();
    assert!(text.contains("tables") && text.contains('1'), "{text}");
}

/// Runs out of tables at each allocation that a split makes.
struct Exhausted {
    geometry: Geometry,
    from: LeafSize,
    to: LeafSize,
    setting: Setting,
}

impl Dispatch for Exhausted {
    type Output = usize;

    fn run<P: Page>(self) -> usize {
        let Self {
            geometry,
            from,
            to,
            setting,
        } = self;
        let mut bench = Bench::<P>::new(&geometry, setting);
        let (start, page) = (from.bytes, bench.arch.page());
        bench.lay(start, start, start, RW, only(from));
        // From inside the first of the smaller leaves to inside the last: both ends are cut.
        let first = start + to.bytes - page;
        let bytes = from.bytes - 2 * (to.bytes - page);
        let mut refused = 0;
        for what in 0..4 {
            if what == 3 {
                bench.set_invalid(start, start).unwrap();
            }
            let before = bench.reference.tables();
            let mut after = crate::reference::Reference::new(&geometry);
            after.mapped.clone_from(&bench.reference.mapped);
            if what == 3 {
                after.set_valid(first, bytes).unwrap();
            } else {
                after.set_invalid(first, bytes).unwrap();
            }
            let needed = after.tables() - before;
            let dump = bench.dump();
            let at = bench.reference.address(first);
            for budget in 0..needed {
                bench.host.set_budget(budget);
                let answer = match what {
                    0 => bench.tables.protect(at, bytes, READ_ONLY, Holes::Refuse),
                    1 => bench.tables.unmap(at, bytes),
                    2 => bench.tables.set_invalid(at, bytes),
                    _ => bench.tables.set_valid(at, bytes),
                };
                assert_eq!(answer, Err(TableError::OutOfTables { needed }));
                assert_eq!(bench.dump(), dump, "with {budget}: bit for bit as it was");
                bench.ran_out(needed, budget);
                refused += 1;
            }
            bench.host.set_budget(usize::MAX);
        }
        bench.host.set_budget(64);
        bench.set_valid(first, bytes).unwrap();
        refused
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn running_out_while_splitting() {
    let mut refused = 0;
    for geometry in shapes() {
        let mut pairs = pairs(&geometry);
        if cfg!(miri) {
            // A block of blocks, without the groups.
            pairs.retain(|(from, to)| {
                let single = !from.contiguous && !to.contiguous;
                single && from.bytes == 1 << 30 && to.bytes == 2 << 20
            });
        }
        for (from, to) in pairs {
            for (live, reserves) in EVERY {
                let setting = Setting::LIVE.live(live).reserves(reserves).bbm(3);
                let one = Exhausted {
                    geometry,
                    from,
                    to,
                    setting,
                };
                refused += geometry.page_size().dispatch(one);
            }
        }
    }
    assert!(refused > if cfg!(miri) { 8 } else { 500 }, "only {refused}");
}
