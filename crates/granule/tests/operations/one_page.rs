//! Operations on one page a call, by calls and by a cursor, and tables that stay when they are empty.
//!
//! Single pages take another way through the library than ranges, so random sequences of them have
//! their own test: each is compared with the reference, with the events that it may cause.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    Attributes, Dispatch, Geometry, Level, Page, Page4K, PageSize, Permissions, PhysicalAddress,
    VaRange,
};
use granule::table::{EmptyTables, Holes, Leaves, PermissionChange, TableError};
use granule_testing::cases::config;
use granule_testing::host::Event;
use granule_testing::shape::{self, LARGE, PLAIN};
use proptest::prelude::*;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);
/// Hardware may mark such a page dirty, or accessed, at any time.
const CLEAN: Attributes = Attributes::normal(Permissions {
    dirty_modifier: true,
    ..Permissions::READ
});
const OLD: Attributes = Attributes {
    accessed: false,
    ..RW
};

/// The pages of a sequence: half of them before the end of a table, half behind it.
const PAGES: u64 = 12;

/// An operation on a page.
#[derive(Clone, Copy, Debug)]
enum Act {
    Map(Attributes),
    Protect(PermissionChange, Holes),
    Unmap,
    /// An unmap that keeps tables, where calls and cursors are compared.
    Keep,
    SetInvalid,
    SetValid,
    /// A map of a group of pages around it, with the hint.
    Group,
}

fn act() -> impl Strategy<Value = (u64, Act)> {
    let attributes = prop_oneof![Just(RW), Just(CLEAN), Just(OLD)];
    let change = prop_oneof![
        Just(READ_ONLY),
        Just(PermissionChange {
            writable: Some(true),
            software: Some(9),
            ..PermissionChange::NONE
        }),
        Just(PermissionChange::NONE),
    ];
    let holes = prop_oneof![Just(Holes::Refuse), Just(Holes::Skip)];
    let act = prop_oneof![
        6 => attributes.prop_map(Act::Map),
        4 => (change, holes).prop_map(|(change, holes)| Act::Protect(change, holes)),
        4 => Just(Act::Unmap),
        2 => Just(Act::Keep),
        1 => Just(Act::SetInvalid),
        1 => Just(Act::SetValid),
        1 => Just(Act::Group),
    ];
    (0..PAGES, act)
}

/// The offset of page `index` of a sequence.
fn offset<P: Page>(geometry: &Geometry, index: u64) -> u64 {
    let table = P::SIZE.bytes() * (P::SIZE.bytes() / 8);
    // A root of the last level is the only table.
    let end = (3 * table).min(geometry.span() / 2);
    end + index * P::SIZE.bytes() - PAGES / 2 * P::SIZE.bytes()
}

fn output<P: Page>(index: u64) -> u64 {
    (0x100 + index) * P::SIZE.bytes()
}

struct Sequence<'a> {
    geometry: &'a Geometry,
    live: bool,
    acts: &'a [(u64, Act)],
}

impl Sequence<'_> {
    fn bench<P: Page>(&self) -> Bench<P> {
        let setting = if self.live {
            Setting::LIVE
        } else {
            Setting::PRIVATE
        };
        Bench::new(self.geometry, setting)
    }
}

/// Plays a sequence by calls against the reference.
struct ByCalls<'a>(Sequence<'a>);

impl Dispatch for ByCalls<'_> {
    type Output = ();

    fn run<P: Page>(self) {
        let mut bench = self.0.bench::<P>();
        let page = P::SIZE.bytes();
        for &(index, act) in self.0.acts {
            let at = offset::<P>(self.0.geometry, index);
            // The bench compares results, tables and events; a refusal is as good as success.
            let _ = match act {
                Act::Map(attributes) => {
                    let output = output::<P>(index);
                    bench.map(at, output, page, attributes, Leaves::PAGES)
                }
                Act::Protect(change, holes) => bench.protect(at, page, change, holes),
                Act::Unmap | Act::Keep => bench.unmap(at, page),
                Act::SetInvalid => bench.set_invalid(at, page),
                Act::SetValid => bench.set_valid(at, page),
                Act::Group => {
                    let group = page * P::SIZE.contiguous_entries(Level::L3) as u64;
                    let (start, size) = (at & !(group - 1), group);
                    bench.map(start, 16 * group, size, RW, Leaves::LARGEST)
                }
            };
        }
    }
}

/// Plays a sequence by calls and by a cursor, and compares the two.
struct ByCursor<'a>(Sequence<'a>);

impl Dispatch for ByCursor<'_> {
    type Output = ();

    fn run<P: Page>(self) {
        let (mut calls, mut moved) = (self.0.bench::<P>(), self.0.bench::<P>());
        let page = P::SIZE.bytes();
        let geometry = self.0.geometry;
        let address = |index| calls.reference.address(offset::<P>(geometry, index));
        let addresses: Vec<_> = (0..=PAGES).map(address).collect();
        let mut cursor = moved.tables.cursor(addresses[0]).unwrap();
        let mut at = 0;
        for &(index, act) in self.0.acts {
            // Some steps go to a page, the others take the one that the cursor is at.
            if index % 3 == 0 || at == PAGES {
                cursor.move_to(addresses[index as usize]).unwrap();
                at = index;
            }
            let start = addresses[at as usize];
            assert_eq!(cursor.address(), start);
            let tables = &mut calls.tables;
            let out = PhysicalAddress(output::<P>(at));
            let (expected, found) = match act {
                Act::Map(attributes) => (
                    tables.map(start, out, page, attributes, Leaves::PAGES),
                    cursor.map(out, attributes),
                ),
                Act::Protect(change, holes) => (
                    tables.protect(start, page, change, holes),
                    cursor.protect(change, holes),
                ),
                Act::Unmap => (tables.unmap(start, page), cursor.unmap(EmptyTables::Free)),
                Act::Keep => (
                    tables.unmap_keeping_tables(start, page),
                    cursor.unmap(EmptyTables::Keep),
                ),
                Act::SetInvalid | Act::SetValid | Act::Group => {
                    cursor.advance();
                    (Ok(()), Ok(()))
                }
            };
            assert_eq!(found, expected, "{act:?} at {start}");
            at += u64::from(found.is_ok());
            assert_eq!(moved.host.take_events(), calls.host.take_events());
        }
        assert_eq!(moved.dump(), calls.dump());
    }
}

proptest! {
    #![proptest_config(config(60, 2))]

    #[test]
    fn single_pages_are_as_the_reference_says(
        geometry in prop::sample::select(shape::all()),
        live in any::<bool>(),
        acts in prop::collection::vec(act(), 1..if cfg!(miri) { 4 } else { 60 }),
    ) {
        let size = geometry.page_size();
        size.dispatch(ByCalls(Sequence { geometry: &geometry, live, acts: &acts }));
    }

    #[test]
    fn a_cursor_does_what_calls_do(
        geometry in prop::sample::select(shape::all()),
        live in any::<bool>(),
        acts in prop::collection::vec(act(), 1..if cfg!(miri) { 4 } else { 60 }),
    ) {
        let size = geometry.page_size();
        size.dispatch(ByCursor(Sequence { geometry: &geometry, live, acts: &acts }));
    }
}

#[test]
fn a_cursor_makes_and_frees_tables_on_its_way() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    for setting in [Setting::PRIVATE, Setting::LIVE] {
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        let pages = 8;
        let first = offset::<Page4K>(&geometry, PAGES / 2 - pages / 2);
        let start = bench.reference.address(first);
        let mut cursor = bench.tables.cursor(start).unwrap();
        for page in 0..pages {
            cursor
                .map(PhysicalAddress(0x40_0000 + (page << 12)), RW)
                .unwrap();
        }
        // Level 2, and a last-level table on either side.
        assert_eq!(bench.host.given_out(), 1 + 1 + 2);
        let mut cursor = bench.tables.cursor(start).unwrap();
        for _ in 0..pages {
            cursor.protect(READ_ONLY, Holes::Refuse).unwrap();
        }
        for page in 0..pages {
            let at = bench.reference.address(first + (page << 12));
            let found = bench.tables.query(at).unwrap();
            assert_eq!(found.output.0, 0x40_0000 + (page << 12));
            assert!(!found.attributes.permissions.writable);
        }
        let mut cursor = bench.tables.cursor(start).unwrap();
        for _ in 0..pages {
            cursor.unmap(EmptyTables::Free).unwrap();
        }
        assert_eq!(bench.host.given_out(), 1);
    }
}

#[test]
fn a_cursor_ends_at_the_end_of_the_half() {
    // 16 pages of 4K in a root of the last level, which ends long before its page does.
    let geometry = LARGE.geometry(PageSize::K4, 16, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    let last = bench.reference.address(geometry.span() - 0x1000);
    let mut cursor = bench.tables.cursor(last).unwrap();
    cursor.map(PhysicalAddress(0x5000), RW).unwrap();
    for _ in 0..2 {
        let outside = cursor.map(PhysicalAddress(0x6000), RW);
        assert!(matches!(outside, Err(TableError::OutsideSpace { .. })));
        cursor.advance();
    }
    let words = bench.host.table(bench.tables.root_table().0);
    let used = words.iter().filter(|word| **word != 0).count();
    assert_eq!(used, 1, "nothing is written behind the end");
    assert!(
        bench
            .tables
            .cursor(granule::arch::VirtualAddress(0))
            .is_err()
    );
}

#[test]
fn tables_that_are_kept_serve_the_next_map() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let out = PhysicalAddress(0x8000_0000);
    // The end of a table, a whole table, the start of a third.
    let (first, bytes) = ((2 << 21) - 0x2000, (1 << 21) + 0x4000);
    let start = bench.reference.address(first);
    let tables = &mut bench.tables;
    tables.map(start, out, bytes, RW, Leaves::PAGES).unwrap();
    let held = bench.host.given_out();
    assert_eq!(held, 1 + 2 + 3);
    bench.host.take_events();
    tables.unmap_keeping_tables(start, bytes).unwrap();
    let events = bench.host.take_events();
    // Leaves alone went, all of level 3, so no TLBI reaches pointers to tables.
    assert!(events.iter().all(|event| match event {
        Event::Tlbi(TlbiOp::Range { scope, .. } | TlbiOp::Address { scope, .. }) =>
            *scope == TlbiScope::LastLevel,
        other => !matches!(other, Event::Free(_) | Event::Tlbi(_)),
    }));
    assert!(events.iter().any(|event| matches!(event, Event::Tlbi(_))));
    assert_eq!(bench.host.given_out(), held);
    assert_eq!(tables.query(start), None);
    tables.map(start, out, bytes, RW, Leaves::PAGES).unwrap();
    let events = bench.host.take_events();
    let took = |event: &Event| matches!(event, Event::Reserve(_) | Event::Allocate { .. });
    assert!(!events.iter().any(took), "no table is needed");
    tables.unmap_keeping_tables(start, bytes).unwrap();
    tables.unmap(start, bytes).unwrap();
    assert_eq!(bench.host.given_out(), 1, "unmap frees what was kept");
}
