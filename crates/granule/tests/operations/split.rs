//! The exact cost of splitting, and where it is refused.
//!
//! The numbers are worked out from the architecture's geometry (entries of a table, members of a
//! contiguous group, levels between two sizes); that the translations stay right is the bench's.

use crate::bench::{Bench, Setting};
use crate::changes::{READ_ONLY, WRITABLE};
use granule::arch::LeafSize;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    Attributes, Dispatch, Geometry, Level, Page, Page4K, PageSize, Permissions, PhysicalAddress,
    VaRange, VirtualAddress,
};
use granule::table::{Holes, Leaves, PageTables, TableError};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host};
use granule_testing::shape::{self, LARGE, PLAIN};
use granule_testing::walk::Arch;
use granule_trace::recorder::{Counted, Counters, Counts};

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// The shapes whose leaves differ: every page size, with and without 52-bit formats.
pub fn shapes() -> Vec<Geometry> {
    use PageSize::{K4, K16, K64};
    if cfg!(miri) {
        return vec![PLAIN.geometry(K4, 39, VaRange::Lower)];
    }
    vec![
        PLAIN.geometry(K4, 48, VaRange::Upper),
        LARGE.geometry(K4, 52, VaRange::Lower),
        PLAIN.geometry(K16, 48, VaRange::Upper),
        LARGE.geometry(K16, 52, VaRange::Upper),
        PLAIN.geometry(K64, 48, VaRange::Lower),
        LARGE.geometry(K64, 52, VaRange::Upper),
    ]
}

/// The largest leaves down to one of this size.
pub fn only(size: LeafSize) -> Leaves {
    Leaves {
        top: size.level,
        contiguous: size.contiguous,
    }
}

fn members(arch: &Arch, size: LeafSize) -> u64 {
    size.bytes / arch.entry_bytes(size.level.number())
}

/// A change of one leaf of size `to` inside one of size `from`, and back.
struct Pair {
    geometry: Geometry,
    from: LeafSize,
    to: LeafSize,
}

impl Dispatch for Pair {
    type Output = u64;

    /// Returns the number of tables it took.
    fn run<P: Page>(self) -> u64 {
        let Self { geometry, from, to } = self;
        let arch = Arch::of(&geometry);
        let what = format!("{from:?} to {to:?} of {geometry:?}");
        let host = Host::new(&geometry, 0x4000_0000, 16);
        let counters = Counters::new();
        let inner = host::environment(&host, Setting::LIVE.capabilities());
        let environment = Counted::new(inner, &counters);
        let tables = PageTables::<P, _>::new(geometry, environment).unwrap();
        let mut tables = Held::new(tables, true);
        // SAFETY: no CPU walks the tables.
        unsafe { tables.set_bbm(BbmLevel::Level3) };
        let start = geometry.base().0 + from.bytes;
        let output = PhysicalAddress(from.bytes);
        let whole = VirtualAddress(start);
        tables
            .map(whole, output, from.bytes, RW, only(from))
            .unwrap();
        let dump = |root: PhysicalAddress| {
            let tables = arch.walk(&host, root).tables;
            let words = tables.iter().map(|t| (t.address, host.table(t.address)));
            words.collect::<Vec<_>>()
        };
        let before = (counters.get(), dump(tables.root_table()));
        host.take_events();

        // In the middle, so that there is a rest on both sides.
        let part = VirtualAddress(start + from.bytes / 2);
        tables
            .protect(part, to.bytes, READ_ONLY, Holes::Refuse)
            .unwrap();
        let after = counters.get();
        let levels = (to.level.number() - from.level.number()) as u64;
        let ungrouped = if from.contiguous {
            members(&arch, from)
        } else {
            0
        };
        let expected = Counts {
            // Each entry of each new table once, one store that links them all, and the change.
            stores: ungrouped
                + levels * arch.entries() as u64
                + u64::from(levels > 0)
                + members(&arch, to),
            tables: levels,
            tlbi: 1,
            dsb: 2,
            isb: 1,
        };
        let found = Counts {
            stores: after.stores - before.0.stores,
            tables: after.tables - before.0.tables,
            tlbi: after.tlbi - before.0.tlbi,
            dsb: after.dsb - before.0.dsb,
            isb: after.isb - before.0.isb,
        };
        assert_eq!(found, expected, "{what}");
        let events = host.take_events();
        let links = events.iter().filter(|event| {
            let published = granule::table::Visibility::Publish;
            matches!(event, Event::Store { visibility, .. } if *visibility == published)
        });
        assert_eq!(links.count() as u64, u64::from(levels > 0), "{what}: links");
        let query = tables.query(part).unwrap();
        assert_eq!(query.level, to.level, "{what}");
        // A part of a group has no hint; a whole group inside a block has it.
        assert_eq!(query.contiguous, to.contiguous, "{what}");
        assert!(!query.attributes.permissions.writable);
        let rest = tables.query(VirtualAddress(part.0 - 1)).unwrap();
        assert!(rest.attributes.permissions.writable, "{what}");

        // Back again: the same tables to the bit, and every page given back.
        tables
            .protect(part, to.bytes, WRITABLE, Holes::Refuse)
            .unwrap();
        assert_eq!(counters.get().tables, after.tables, "nothing more to split");
        let merged = tables.merge(whole, from.bytes, Leaves::LARGEST).unwrap();
        let groups = u64::from(from.contiguous);
        let tables_given = crate::merge::merged(levels, groups);
        assert_eq!(merged, tables_given, "{what}");
        assert_eq!(dump(tables.root_table()), before.1, "{what}: as it was");
        assert_eq!(counters.get().tables, before.0.tables, "{what}: leaked");
        assert_eq!(host.given_out() as u64, before.0.tables);
        levels
    }
}

/// The leaf sizes of a shape that fit twice into it, larger ones first.
pub fn sizes(geometry: &Geometry) -> Vec<LeafSize> {
    let fits = |size: &LeafSize| size.bytes * 2 <= geometry.span().min(1 << geometry.pa_bits());
    geometry.leaf_sizes().filter(fits).collect()
}

/// All pairs of a larger and a smaller leaf of a shape.
pub fn pairs(geometry: &Geometry) -> Vec<(LeafSize, LeafSize)> {
    let sizes = sizes(geometry);
    let mut pairs = Vec::new();
    for (number, from) in sizes.iter().enumerate() {
        pairs.extend(sizes[number + 1..].iter().map(|to| (*from, *to)));
    }
    pairs
}

#[test]
fn every_size_into_every_smaller_one() {
    let mut found = Vec::new();
    for geometry in shapes() {
        for (from, to) in pairs(&geometry) {
            let tables = geometry.page_size().dispatch(Pair { geometry, from, to });
            found.push((geometry.page_size(), from.bytes, to.bytes, tables));
        }
    }
    // The goal: a page in a 1 GiB block with 4K pages takes at most 3 tables. It takes 2.
    assert!(found.contains(&(PageSize::K4, 1 << 30, 4096, 2)));
    if !cfg!(miri) {
        assert!(found.contains(&(PageSize::K4, 512 << 30, 4096, 3)));
        assert!(found.contains(&(PageSize::K4, 16 << 30, 2 << 20, 1)));
        assert!(found.contains(&(PageSize::K16, 64 << 30, 16384, 2)));
        assert!(found.contains(&(PageSize::K64, 4 << 40, 65536, 2)));
        assert!(found.contains(&(PageSize::K64, 2 << 20, 65536, 0)));
        assert!(found.len() > 50, "{}", found.len());
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn both_ends_inside_one_leaf_share_its_tables() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let gib = 1 << 30;
    // Pages; the tables they take in a block of 1 GiB: level 2, and one at level 3 for each block
    // of 2 MiB that is cut.
    let cases = [
        (5 * 0x1000, 0x1000, 2),
        (5 * 0x1000, 7 * 0x1000, 2),
        (0x1000, gib - 0x2000, 3),
        ((2 << 20) - 0x1000, 0x2000, 3),
        (0, 0x1000, 2),
        (gib - 0x1000, 0x1000, 2),
        // Cut between blocks of 2 MiB.
        (4 << 20, 2 << 20, 1),
        (0, 64 << 20, 1),
        (4 << 20, (2 << 20) + 0x1000, 2),
        // Not cut at all.
        (0, gib, 0),
    ];
    let cases = if cfg!(miri) { &cases[..1] } else { &cases[..] };
    for &(start, bytes, tables) in cases {
        let mut bench = Bench::<Page4K>::new(&geometry, LIVE3);
        bench.lay(gib, gib, 2 * gib, RW, Leaves::LARGEST);
        let before = bench.host.given_out();
        bench
            .protect(gib + start, bytes, READ_ONLY, Holes::Refuse)
            .unwrap();
        let new = bench.host.given_out() - before;
        assert_eq!(new, tables, "{bytes:#x} bytes from {start:#x}");
        // Across into the second block, which is cut too or not.
        bench
            .protect(gib + start, gib, WRITABLE, Holes::Refuse)
            .unwrap();
        bench.merge(0, 1 << 47, Leaves::LARGEST).unwrap();
        assert_eq!(bench.host.given_out(), before);
    }
}

const LIVE3: Setting = Setting::LIVE.bbm(3);

/// A leaf of a size, cut in several places, at a level of FEAT_BBM.
struct Cut {
    geometry: Geometry,
    size: LeafSize,
    live: bool,
    bbm: u32,
}

impl Dispatch for Cut {
    type Output = usize;

    /// Gives how many cuts were refused.
    fn run<P: Page>(self) -> usize {
        let Self {
            geometry,
            size,
            live,
            bbm,
        } = self;
        let setting = Setting::LIVE.live(live).bbm(bbm);
        let mut bench = Bench::<P>::new(&geometry, setting);
        let (page, entry) = (
            bench.arch.page(),
            bench.arch.entry_bytes(size.level.number()),
        );
        let start = size.bytes;
        bench.lay(start, start, start, RW, only(size));
        let refused = |edge: u64, takes: u32| TableError::InsideLeaf {
            edge: bench.reference.address(edge),
            leaf: bench.reference.address(start),
            leaf_bytes: size.bytes,
            takes: BbmLevel::from_number(takes),
        };
        // The level that a cut inside an entry takes, and one between members of a group.
        let inside = if size.level == Level::L3 { 1 } else { 2 };
        let member = if size.contiguous { 1 } else { inside };
        let cuts = [
            // First offset and last; the level each end takes, 0 for none.
            (start, start + page, 0, inside),
            (start + page, start + size.bytes, inside, 0),
            (
                start + entry % size.bytes,
                start + size.bytes,
                member * u32::from(entry < size.bytes),
                0,
            ),
            // The first end between two members of a group, the second inside the next member.
            (
                start + entry % size.bytes,
                start + entry % size.bytes + page,
                member * u32::from(entry < size.bytes),
                inside,
            ),
            (start, start + size.bytes, 0, 0),
        ];
        let have = if live { bbm } else { 3 };
        let mut count = 0;
        let cuts: Vec<_> = cuts
            .into_iter()
            .map(|(from, to, first, second)| {
                let expected = if have < first {
                    Err(refused(from, first))
                } else if have < second {
                    Err(refused(to, second))
                } else {
                    Ok(())
                };
                (from, to, expected)
            })
            .collect();
        for (from, to, expected) in cuts {
            count += usize::from(expected.is_err());
            let bytes = to - from;
            assert_eq!(
                bench.protect(from, bytes, READ_ONLY, Holes::Skip),
                expected,
                "{from:#x} to {to:#x} at {bbm} of {size:?}"
            );
            let _ = bench.protect(from, bytes, WRITABLE, Holes::Skip);
            bench.merge(0, bench.arch.span(), Leaves::LARGEST).unwrap();
            if expected.is_err() {
                assert_eq!(bench.set_invalid(from, bytes), expected);
                assert_eq!(bench.unmap(from, bytes), expected);
            }
        }
        count
    }
}

#[test]
#[cfg_attr(miri, ignore = "whole tables and their reference take Miri minutes")]
fn refused_exactly_where_the_rules_do_not_allow_it() {
    let mut counts = [0; 5];
    for geometry in shapes() {
        for size in sizes(&geometry)
            .into_iter()
            .filter(|size| size.bytes > geometry.page_size().bytes())
        {
            for (number, count) in counts.iter_mut().enumerate() {
                let cut = Cut {
                    geometry,
                    size,
                    live: number < 4,
                    bbm: number as u32 % 4,
                };
                *count += geometry.page_size().dispatch(cut);
            }
        }
    }
    // Private tables and levels 2 and 3 refuse nothing; level 1 less than level 0.
    let [zero, one, two, three, private] = counts;
    assert_eq!([two, three, private], [0, 0, 0]);
    assert!(zero > one && one > 0, "{counts:?}");
}

fn one_page(operand: u64, scope: TlbiScope) -> Event {
    let all_asids = true;
    Event::Tlbi(TlbiOp::Address {
        operand,
        scope,
        all_asids,
    })
}

#[test]
fn a_leaf_that_was_split_is_invalidated_without_a_level_hint() {
    // The block of level 2 may be cached: a hint at level 3 would leave it there (RSQXYZ).
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, LIVE3);
    let block = 2 << 20;
    bench.lay(block, block, 2 * block, RW, Leaves::LARGEST);
    let barriers = |events: Vec<Event>| {
        let keep = |e: &Event| matches!(e, Event::Tlbi(_) | Event::DsbIsh | Event::DsbIshst);
        events.into_iter().filter(keep).collect::<Vec<_>>()
    };
    let at = |offset: u64| VirtualAddress(block + offset);
    bench.tables.unmap(at(0x5000), 0x1000).unwrap();
    let expected = |operand| {
        [
            Event::DsbIshst,
            one_page(operand, TlbiScope::LastLevel),
            Event::DsbIsh,
        ]
    };
    let page = (block + 0x5000) >> 12;
    assert_eq!(barriers(bench.host.take_events()), expected(page));
    // The next page of what is a table of pages now: granule 01, level 3.
    bench.tables.unmap(at(0x6000), 0x1000).unwrap();
    let hinted = 0b0111 << 44 | (page + 1);
    assert_eq!(barriers(bench.host.take_events()), expected(hinted));
    // A change of permissions never has one.
    bench
        .tables
        .protect(at(block + 0x3000), 0x1000, READ_ONLY, Holes::Refuse)
        .unwrap();
    let page = (2 * block + 0x3000) >> 12;
    assert_eq!(barriers(bench.host.take_events()), expected(page));
}

#[test]
fn ranges_that_have_the_permissions_already_are_not_split() {
    for geometry in [
        PLAIN.geometry(PageSize::K4, 48, VaRange::Upper),
        LARGE.geometry(PageSize::K4, 52, VaRange::Lower),
    ] {
        for bbm in [0, 3] {
            let setting = Setting::LIVE.bbm(bbm);
            let mut bench = Bench::<Page4K>::new(&geometry, setting);
            let gib = 1 << 30;
            bench.lay(gib, gib, 3 * gib, RW, Leaves::LARGEST);
            bench.set_invalid(3 * gib, gib).unwrap();
            let before = (bench.dump(), bench.host.given_out());
            // One page inside a block, and a range over the whole block between two others.
            for (start, bytes) in [(gib + 0x5000, 0x1000), (gib + 0x5000, gib + (2 << 20))] {
                bench
                    .protect(start, bytes, WRITABLE, Holes::Refuse)
                    .unwrap();
                bench.set_valid(start, bytes).unwrap();
            }
            bench.set_invalid(3 * gib + 0x5000, 0x7000).unwrap();
            assert_eq!((bench.dump(), bench.host.given_out()), before);
        }
    }
}

#[test]
fn members_that_hardware_changed_are_asked_one_by_one() {
    // Hardware may make one member of a group writable or accessed and not the others (RXDPXQ).
    // Four of a group of blocks are read-only by then, the second to the fifth.
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let block = 2 << 20;
    let group = 16 * block;
    let bench = || {
        let mut bench = Bench::<Page4K>::new(&geometry, LIVE3);
        bench.lay(group, group, group, RW, Leaves::LARGEST);
        let table = bench.tree.tables.iter().find(|t| t.level == 2).unwrap();
        for index in 17..21 {
            let word = bench.host.word(table.address, index);
            bench.host.set_word(table.address, index, word | 1 << 7);
        }
        bench
    };
    let at = |blocks: u64, pages: u64| VirtualAddress(group + blocks * block + pages * 0x1000);
    // A page in a member that has the change: nothing at all, whatever the others have.
    let mut first = bench();
    let (before, tables) = (first.dump(), first.host.given_out());
    first
        .tables
        .protect(at(1, 5), 0x1000, READ_ONLY, Holes::Refuse)
        .unwrap();
    assert_eq!(first.host.take_events(), []);
    assert_eq!((first.dump(), first.host.given_out()), (before, tables));
    // From inside a writable one to inside a read-only one: the hints go, and one member is split.
    let mut second = bench();
    second
        .tables
        .protect(at(0, 5), block, READ_ONLY, Holes::Refuse)
        .unwrap();
    assert_eq!(second.host.given_out(), tables + 1);
    for (blocks, pages, level, writable) in [
        (0, 4, Level::L3, true),
        (0, 5, Level::L3, false),
        (1, 5, Level::L2, false),
        (5, 0, Level::L2, true),
    ] {
        let found = second.tables.query(at(blocks, pages)).unwrap();
        assert_eq!(found.level, level, "block {blocks}");
        assert_eq!(found.attributes.permissions.writable, writable);
        assert!(level == Level::L3 || !found.contiguous);
    }
}

#[test]
fn shapes_cover_every_leaf_size() {
    // None of the sizes that the shapes of the random tests have is missing here.
    let all = |geometry: &Geometry| {
        let all = sizes(geometry).into_iter();
        all.map(|size| (geometry.page_size(), size.bytes))
            .collect::<Vec<_>>()
    };
    let here: Vec<_> = shapes().iter().flat_map(all).collect();
    if !cfg!(miri) {
        for geometry in shape::all() {
            for size in all(&geometry) {
                assert!(here.contains(&size), "{size:?}");
            }
        }
    }
}
