//! Making all leaves of a range small: what it takes exactly, where it is refused, and that it is
//! all or nothing.
//!
//! The numbers are worked out from the architecture's geometry. The order of stores and invalidations is the model's:
//! `crates/granule-model/tests/harness`.

use crate::bench::{Bench, Setting};
use crate::split::{only, pairs, shapes};
use granule::arch::LeafSize;
use granule::arch::bbm::BbmLevel;
use granule::arch::{
    Attributes, Dispatch, Geometry, Page, Page4K, PageSize, Permissions, PhysicalAddress, VaRange,
    VirtualAddress,
};
use granule::table::{Leaves, PageTables, TableError, Visibility};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host};
use granule_testing::performed::{Operation, Performed};
use granule_testing::shape::PLAIN;
use granule_testing::walk::{Arch, Leaf};
use granule_trace::recorder::{Counted, Counters, Counts};

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);
const READ: Attributes = Attributes::normal(Permissions::READ);

/// More than this many tables a test does not make.
const MOST_TABLES: u64 = if cfg!(miri) { 8 } else { 1100 };

/// The cost of splitting one leaf or group of size `from` down to leaves of size `to`.
struct Takes {
    tables: u64,
    /// Stores into tables that were there before.
    live_stores: u64,
}

fn takes(arch: &Arch, from: LeafSize, to: LeafSize) -> Takes {
    let members = from.bytes / arch.entry_bytes(from.level.number());
    let mut tables = 0;
    let mut each = 1;
    for _ in from.level.number()..to.level.number() {
        tables += members * each;
        each *= arch.entries() as u64;
    }
    let ungrouped = if from.contiguous { members } else { 0 };
    let links = if tables > 0 { members } else { 0 };
    Takes {
        tables,
        live_stores: ungrouped + links,
    }
}

/// The leaves, as one translation of every smallest entry of either.
fn runs(leaves: &[Leaf]) -> Vec<(u64, u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64, u64)> = Vec::new();
    for leaf in leaves {
        let bits = leaf.word & (0b111 << 2 | 0b11 << 6 | 0b111 << 53);
        match runs.last_mut() {
            Some((offset, bytes, output, same))
                if *offset + *bytes == leaf.offset
                    && *output + *bytes == leaf.output
                    && *same == bits =>
            {
                *bytes += leaf.bytes;
            }
            _ => runs.push((leaf.offset, leaf.bytes, leaf.output, bits)),
        }
    }
    runs
}

/// Limits a bench's leaves, with the order of it all performed.
fn limit<P: Page>(
    bench: &mut Bench<P>,
    offset: u64,
    bytes: u64,
    leaves: Leaves,
) -> Result<usize, TableError> {
    let before = bench.arch.walk(&bench.host, bench.tables.root_table());
    bench.host.take_events();
    let start = bench.reference.address(offset);
    let found = bench.tables.limit_leaves(start, bytes, leaves);
    let after = bench.arch.walk(&bench.host, bench.tables.root_table());
    let events = bench.host.take_events();
    if found.is_ok() {
        Performed {
            arch: bench.arch,
            operation: Operation::Protect,
            live: bench.setting.live,
            asid: bench.setting.asid,
            before: &before,
            after: &after,
            events: &events,
        }
        .check();
        assert_eq!(runs(&after.leaves), runs(&before.leaves));
        assert_eq!(runs(&after.present_invalid), runs(&before.present_invalid));
    } else {
        assert!(events.iter().all(|e| matches!(e, Event::Reserve(_))));
        assert_eq!(after, before);
    }
    assert_eq!(bench.host.reserved_in_vain(), 0);
    assert_eq!(bench.host.given_out(), after.tables.len());
    found
}

/// One leaf of each size, limited to one smaller size.
struct Pair {
    geometry: Geometry,
    from: LeafSize,
    to: LeafSize,
}

impl Dispatch for Pair {
    type Output = ();

    fn run<P: Page>(self) {
        let Self { geometry, from, to } = self;
        let arch = Arch::of(&geometry);
        let what = format!("{from:?} to {to:?} of {geometry:?}");
        let takes = takes(&arch, from, to);
        let host = Host::new(&geometry, 0x4000_0000, takes.tables as usize + 8);
        let counters = Counters::new();
        let setting = Setting { ..Setting::LIVE };
        let inner = host::environment(&host, setting.capabilities());
        let environment = Counted::new(inner, &counters);
        let tables = PageTables::<P, _>::new(geometry, environment).unwrap();
        let mut tables = Held::new(tables, true);
        // SAFETY: no CPU walks the tables.
        unsafe { tables.set_bbm(BbmLevel::Level3) };
        let start = VirtualAddress(geometry.base().0 + from.bytes);
        let output = PhysicalAddress(from.bytes);
        tables
            .map(start, output, from.bytes, RW, only(from))
            .unwrap();
        let before = (counters.get(), arch.walk(&host, tables.root_table()));
        host.take_events();

        let made = tables.limit_leaves(start, from.bytes, only(to)).unwrap();
        assert_eq!(made as u64, takes.tables, "{what}");
        let after = (counters.get(), arch.walk(&host, tables.root_table()));
        let events = host.take_events();
        let expected = Counts {
            stores: takes.live_stores + takes.tables * arch.entries() as u64,
            tables: takes.tables,
            // How many operations a range takes is the TLBI planner's.
            tlbi: after.0.tlbi - before.0.tlbi,
            dsb: 2,
            isb: 1,
        };
        let found = Counts {
            stores: after.0.stores - before.0.stores,
            tables: after.0.tables - before.0.tables,
            dsb: after.0.dsb - before.0.dsb,
            isb: after.0.isb - before.0.isb,
            ..expected
        };
        assert_eq!(found, expected, "{what}");
        let links = events.iter().filter(|event| {
            matches!(event, Event::Store { visibility, .. } if *visibility == Visibility::Publish)
        });
        let members = from.bytes / arch.entry_bytes(from.level.number());
        let expected = if takes.tables > 0 { members } else { 0 };
        assert_eq!(links.count() as u64, expected, "{what}: links");
        let performed = Performed {
            arch,
            operation: Operation::Protect,
            live: true,
            asid: None,
            before: &before.1,
            after: &after.1,
            events: &events,
        };
        performed.check();
        assert_eq!(runs(&after.1.leaves), runs(&before.1.leaves), "{what}");
        for leaf in &after.1.leaves {
            assert_eq!(leaf.level, to.level.number(), "{what}");
            assert_eq!(leaf.word >> 52 & 1, u64::from(to.contiguous), "{what}");
        }

        // All is as it is to be: nothing more is done.
        assert_eq!(
            tables.limit_leaves(start, from.bytes, only(to)).unwrap(),
            0,
            "{what}"
        );
        assert_eq!(host.take_events(), [], "{what}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn every_size_down_to_every_smaller_one() {
    let mut found = Vec::new();
    for geometry in shapes() {
        let arch = Arch::of(&geometry);
        for (from, to) in pairs(&geometry) {
            let tables = takes(&arch, from, to).tables;
            if tables <= MOST_TABLES && tables << arch.g <= 64 << 20 {
                geometry.page_size().dispatch(Pair { geometry, from, to });
                found.push((geometry.page_size(), from.bytes, to.bytes, tables));
            }
        }
    }
    if !cfg!(miri) {
        // A block of 1 GiB into pages, and a group of sixteen such blocks into blocks of 2 MiB.
        assert!(found.contains(&(PageSize::K4, 1 << 30, 4096, 513)));
        assert!(found.contains(&(PageSize::K4, 16 << 30, 2 << 20, 16)));
        assert!(found.contains(&(PageSize::K16, 1 << 30, 16384, 32)));
        assert!(found.contains(&(PageSize::K64, 512 << 20, 65536, 1)));
        assert!(found.len() > 40, "{}", found.len());
    }
}

/// A leaf of each size at each level of FEAT_BBM.
struct Refused {
    geometry: Geometry,
    from: LeafSize,
    to: LeafSize,
    live: bool,
    bbm: u32,
}

impl Dispatch for Refused {
    type Output = bool;

    fn run<P: Page>(self) -> bool {
        let Self {
            geometry,
            from,
            to,
            live,
            bbm,
        } = self;
        let setting = Setting {
            live,
            bbm,
            pages: 1200,
            ..Setting::LIVE
        };
        let mut bench = Bench::<P>::new(&geometry, setting);
        let start = from.bytes;
        bench.lay(start, start, start, RW, only(from));
        let deeper = to.level > from.level;
        let least = if deeper { 2 } else { 1 };
        let level = from.level.number() + i32::from(deeper);
        let expected = if live && bbm < least {
            Err(TableError::InsideLeaf {
                edge: bench
                    .reference
                    .address(start + bench.arch.entry_bytes(level)),
                leaf: bench.reference.address(start),
                leaf_bytes: from.bytes,
                takes: BbmLevel::from_number(least),
            })
        } else {
            Ok(takes(&bench.arch, from, to).tables as usize)
        };
        // A page in the middle is enough to split all of it, but for the other members of a group.
        let page = bench.arch.page();
        let whole = limit(&mut bench, start, from.bytes, only(to));
        assert_eq!(whole, expected, "{from:?} to {to:?} at {bbm}");
        if whole.is_err() {
            let middle = start + from.bytes / 2;
            let part = limit(&mut bench, middle, page, only(to));
            assert_eq!(part, expected);
        }
        whole.is_err()
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn refused_exactly_where_the_rules_do_not_allow_it() {
    let mut refused = [0; 5];
    for geometry in shapes() {
        let arch = Arch::of(&geometry);
        for (from, to) in pairs(&geometry) {
            let tables = takes(&arch, from, to).tables;
            if tables > MOST_TABLES.min(64) || tables << arch.g > 4 << 20 {
                continue;
            }
            for (number, count) in refused.iter_mut().enumerate() {
                let cell = Refused {
                    geometry,
                    from,
                    to,
                    live: number < 4,
                    bbm: number as u32 % 4,
                };
                *count += usize::from(geometry.page_size().dispatch(cell));
            }
        }
    }
    // Level 1 allows what takes the hint off and no more.
    assert!(refused[0] > refused[1] && refused[1] > 0, "{refused:?}");
    assert_eq!(refused[2..], [0, 0, 0]);
}

/// Blocks, groups, pages, holes and present-invalid leaves next to each other, with 4K pages.
fn mixed(setting: Setting) -> Bench<Page4K> {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, setting);
    let mib = 1 << 20;
    // 60M to 100M: blocks, a group of them, blocks; read-only pages behind, a hole, groups of
    // pages, a block far away.
    let largest = Leaves::LARGEST;
    let (first, behind) = (60 * mib, 100 * mib);
    bench.lay(first, first, behind - first, RW, largest);
    bench.lay(behind, behind, 7 * 4096, READ, Leaves::PAGES);
    bench.lay(110 * mib, 110 * mib, 256 << 10, RW, largest);
    bench.lay(1 << 30, 1 << 30, 2 * mib, RW, largest);
    bench.set_invalid(62 * mib, 2 * mib).unwrap();
    bench
}

const LIVE: Setting = Setting::LIVE.bbm(2);

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn a_range_with_everything_in_it() {
    for live in [true, false] {
        for repeat in [false, true] {
            let mut bench = mixed(LIVE.live(live).repeat(repeat));
            let present_invalid = bench.tree.present_invalid.len();
            assert!(present_invalid > 0);
            // 20 blocks of 2 MiB, and one far away.
            let made = limit(&mut bench, 0, 1 << 40, Leaves::PAGES).unwrap();
            assert_eq!(made, 21);
            let after = bench.arch.walk(&bench.host, bench.tables.root_table());
            let pages = |leaves: &[Leaf]| {
                leaves
                    .iter()
                    .all(|leaf| leaf.level == 3 && leaf.word >> 52 & 1 == 0)
            };
            assert!(pages(&after.leaves) && pages(&after.present_invalid));
            assert_eq!(after.present_invalid.len(), 512 * present_invalid);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn leaves_at_the_ends_are_split_whole_and_the_rest_stays() {
    let mut bench = mixed(LIVE);
    let page = bench.arch.page();
    let largest = |bench: &Bench<Page4K>| {
        let tree = bench.arch.walk(&bench.host, bench.tables.root_table());
        tree.leaves.iter().filter(|leaf| leaf.level == 2).count()
    };
    // 20 blocks less a present-invalid one, and the one far away.
    assert_eq!(largest(&bench), 20);
    // The last page of one block of the group and the first of the next, no others; the group's
    // hint goes from all of it.
    let edge = 70 << 20;
    let made = limit(&mut bench, edge - page, 2 * page, Leaves::PAGES).unwrap();
    assert_eq!((made, largest(&bench)), (2, 18));
    let tree = bench.arch.walk(&bench.host, bench.tables.root_table());
    let grouped = tree
        .leaves
        .iter()
        .filter(|leaf| leaf.level == 2 && leaf.word >> 52 & 1 != 0);
    assert_eq!(grouped.count(), 0);
    // Groups of pages are as allowed, or not.
    let contiguous = Leaves {
        contiguous: true,
        ..Leaves::PAGES
    };
    assert_eq!(limit(&mut bench, 110 << 20, 4096, contiguous), Ok(0));
    assert_eq!(bench.host.take_events(), []);
    assert_eq!(limit(&mut bench, 110 << 20, 4096, Leaves::PAGES), Ok(0));
    let tree = bench.arch.walk(&bench.host, bench.tables.root_table());
    let grouped = tree
        .leaves
        .iter()
        .filter(|leaf| leaf.level == 3 && leaf.word >> 52 & 1 != 0);
    assert_eq!(grouped.count(), 3 * 16, "one group of four");
    // Nothing there, nothing done.
    assert_eq!(limit(&mut bench, 1 << 41, 1 << 30, Leaves::PAGES), Ok(0));
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn running_out_leaves_everything_as_it_was() {
    let mut bench = mixed(LIVE);
    let dump = bench.dump();
    let given_out = bench.host.given_out();
    let needed = 21;
    for budget in 0..needed {
        bench.host.set_budget(budget);
        let answer = limit(&mut bench, 0, 1 << 40, Leaves::PAGES);
        assert_eq!(answer, Err(TableError::OutOfTables { needed }));
        assert_eq!(bench.dump(), dump);
        assert_eq!(bench.host.given_out(), given_out);
    }
    bench.host.set_budget(needed);
    assert_eq!(limit(&mut bench, 0, 1 << 40, Leaves::PAGES), Ok(needed));
}

/// Nothing of a present-invalid leaf is cached, but walkers must see its table before someone else
/// makes a page of it valid. A present-invalid group that loses its hint is as invalid as it was.
#[test]
fn limited_present_invalid_leaves_are_visible_to_walkers() {
    for (offset, bytes) in [(64 << 10, 64 << 10), (2 << 20, 2 << 20)] {
        let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
        bench.lay(offset, offset, bytes, RW, Leaves::LARGEST);
        let start = bench.reference.address(offset);
        bench.tables.set_invalid(start, bytes).unwrap();
        bench.host.take_events();
        let added = bench.tables.limit_leaves(start, bytes, Leaves::PAGES);
        let is_table = bytes == 2 << 20;
        assert_eq!(added, Ok(usize::from(is_table)));
        let mut events = bench.host.take_events();
        events.retain(|event| {
            matches!(
                event,
                Event::Tlbi(_) | Event::DsbIshst | Event::DsbIsh | Event::Isb
            )
        });
        let barriers: &[_] = if is_table {
            &[Event::DsbIshst, Event::Isb]
        } else {
            &[]
        };
        assert_eq!(events, barriers);
        // Nothing to do, nothing waited for.
        let again = bench.tables.limit_leaves(start, bytes, Leaves::PAGES);
        assert_eq!((again, bench.host.take_events()), (Ok(0), vec![]));
    }
}

#[test]
fn ranges_are_checked() {
    let mut bench = mixed(LIVE);
    let start = bench.reference.address(60 << 20);
    for (start, bytes) in [
        (VirtualAddress(start.0 + 1), 4096),
        (start, 4095),
        (start, 1 << 48),
        (VirtualAddress(0), 4096),
    ] {
        let error = bench.tables.limit_leaves(start, bytes, Leaves::PAGES);
        assert!(
            matches!(
                error,
                Err(TableError::Misaligned { .. } | TableError::OutsideSpace { .. })
            ),
            "{error:?}"
        );
    }
    assert_eq!(bench.tables.limit_leaves(start, 0, Leaves::PAGES), Ok(0));
}
