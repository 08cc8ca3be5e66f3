//! The published strategies over slots that are checked: what they map, and that what they take is
//! what the arithmetic requires.

#![allow(unsafe_code, reason = "the tests call unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod expected;
mod refused;
mod slots;

use expected::expected;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Descriptor, Dispatch, Geometry, Page, PageSize, Permissions,
    PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::linear::fixmap::{self, Slot};
use granule::linear::{Barriers, Strategy};
use granule::table::{
    FreedTable, Leaves, Maintenance, PageTables, Piece, TableEnvironment, TableError, TableView,
    Visit,
};
use granule_testing::cases::config;
use granule_trace::recorder::Counts;
use proptest::prelude::*;
use slots::{Checked, Pages};
use std::cell::RefCell;
use std::rc::Rc;

/// The geometry of tables, and the TLBIs of their CPUs.
#[derive(Clone, Copy)]
struct Can {
    geometry: Geometry,
    tlb: TlbCapabilities,
}

/// A CPU with every page size, and with 52 bits if `wide`.
fn capabilities(size: PageSize, va_bits: u32, wide: bool, range: bool, repeat: bool) -> Can {
    let (gran, pa) = if wide {
        (1 << 28 | 2 << 20, 6)
    } else {
        (1 << 20, 5)
    };
    let cpu = CpuFeatures {
        mmfr0: gran | pa,
        mmfr2: u64::from(wide) << 16,
        ..CpuFeatures::NONE
    };
    Can {
        geometry: Geometry::new(&cpu, size, va_bits, VaRange::Upper, Regime::El1And0).unwrap(),
        tlb: TlbCapabilities {
            range,
            repeat,
            ..TlbCapabilities::BASIC
        },
    }
}

/// A leaf: first address, bytes, output, contiguous.
type Leaf = (u64, u64, u64, bool);

fn leaves_below(pages: &Pages, root: PhysicalAddress, can: &Can) -> Vec<Leaf> {
    let view = TableView::new(can.geometry, root, |table, index| {
        Some(Descriptor(pages.word(table, index).get()))
    });
    let mut leaves = Vec::new();
    view.visit_all(|entry| {
        let entry = entry.expect("the tables are whole");
        if entry.kind == granule::arch::Kind::Leaf {
            let hint = entry.descriptor.is_contiguous();
            leaves.push((entry.start.0, entry.bytes, entry.output.0, hint));
        }
        Visit::EVERYTHING
    });
    leaves
}

struct Made {
    counts: Counts,
    waits: u64,
    leaves: Vec<Leaf>,
}

struct Make<'a> {
    can: Can,
    pieces: &'a [Piece],
    strategy: Strategy,
    barriers: Barriers,
    pages: u64,
}

impl Dispatch for Make<'_> {
    type Output = Result<Made, TableError>;

    fn run<P: Page>(self) -> Self::Output {
        let mut pages = Pages::new(P::SIZE.bytes(), self.pages);
        let root = pages.empty_root();
        let mut slots = Checked::new(pages, self.can);
        let (pieces, strategy, barriers) = (self.pieces, self.strategy, self.barriers);
        // SAFETY: no CPU walks the tables, nothing else changes them, and the slots are new.
        unsafe { fixmap::create::<P, _>(&mut slots, root, pieces, strategy, barriers)? };
        assert_eq!(slots.shown, [None; Slot::COUNT], "a slot was left open");
        Ok(Made {
            counts: slots.counters.get(),
            waits: slots.waits,
            leaves: leaves_below(&slots.pages, root, &self.can),
        })
    }
}

/// The leaves that the library's walker makes of the same pieces.
struct Reference<'a>(Can, &'a [Piece]);

/// Pages for the walker, for tables that no CPU walks.
struct Walked(Rc<RefCell<Pages>>);

// SAFETY: each page is given out once, and the vector behind it never moves.
unsafe impl TableEnvironment for Walked {
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        self.0.borrow().pointer_to(table)
    }
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.0.borrow_mut().take()
    }
    fn free(&mut self, _table: FreedTable) {}
    fn invalidate(&mut self, _instruction: Maintenance) {}
}

impl Dispatch for Reference<'_> {
    type Output = Vec<Leaf>;

    fn run<P: Page>(self) -> Vec<Leaf> {
        let pages = Pages::new(P::SIZE.bytes(), MOST_TABLES);
        let pages = Rc::new(RefCell::new(pages));
        let environment = Walked(pages.clone());
        let mut tables = PageTables::<P, _>::new(self.0.geometry, environment).unwrap();
        tables.map_pieces(self.1).unwrap();
        let root = tables.root_table();
        leaves_below(&pages.borrow(), root, &self.0)
    }
}

/// Table pages that there are for a map.
const MOST_TABLES: u64 = 160;

/// One of every published form.
fn published() -> impl Iterator<Item = (Strategy, Barriers)> {
    Strategy::ALL
        .into_iter()
        .flat_map(|strategy| Barriers::ALL.map(|barriers| (strategy, barriers)))
}

fn check(can: Can, pieces: &[Piece]) {
    let leaves = can.geometry.page_size().dispatch(Reference(can, pieces));
    check_leaves(can, pieces, &leaves);
}

/// Every form makes these leaves of the pieces, and takes what is expected.
fn check_leaves(can: Can, pieces: &[Piece], leaves: &[Leaf]) {
    let size = can.geometry.page_size();
    for (strategy, barriers) in published() {
        let made = size
            .dispatch(Make {
                can,
                pieces,
                strategy,
                barriers,
                pages: MOST_TABLES,
            })
            .unwrap();
        let what = format!("{strategy:?}, {barriers}");
        let pairs = made.leaves.iter().zip(leaves);
        for ((start, bytes, output, hint), expected) in pairs {
            assert_eq!(
                (*start, *bytes, *output, *hint),
                *expected,
                "{what}: {bytes:#x} bytes at {start:#x} are mapped to {output:#x}, not to {:#x}",
                expected.2
            );
        }
        assert_eq!(made.leaves.len(), leaves.len(), "{what}: leaves");
        let said = expected(&can.geometry, &can.tlb, pieces, strategy, barriers);
        assert_eq!(
            made.counts, said.counts,
            "{strategy:?}, {barriers}: {pieces:x?}"
        );
        assert_eq!(
            made.waits,
            said.waits + u64::from(can.tlb.repeat) * said.waits,
            "{strategy:?}"
        );
        assert_eq!(said.zeroed, said.counts.tables * size.entries() as u64);
    }
}

/// Pieces from lengths and gaps in pages, the first `at` pages into the half, mapped with outputs
/// that agree with it in the bits below 2^`agree`.
fn pieces(
    geometry: &Geometry,
    agree: u32,
    at: u64,
    runs: &[(u64, u64)],
    leaves: Leaves,
) -> Vec<Piece> {
    let page = geometry.page_size().bytes();
    let mut next = at * page;
    let mut pieces = Vec::new();
    for &(gap, length) in runs {
        next += gap * page;
        pieces.push(Piece {
            start: VirtualAddress(geometry.base().0 + next),
            output: PhysicalAddress(next + (1 << agree)),
            bytes: length * page,
            attributes: Attributes::normal(Permissions::READ_WRITE),
            leaves,
        });
        next += length * page;
    }
    pieces
}

/// The leaves of `count` pages from the start of the half on to `output` and what follows it, where a
/// contiguous group has `group` pages.
fn pages_to(can: Can, output: u64, count: u64, group: u64) -> Vec<Leaf> {
    let page = can.geometry.page_size().bytes();
    let base = can.geometry.base().0;
    let of = |number| {
        // The outputs are aligned as the addresses are.
        let hint = group > 1 && number / group < count / group;
        (base + number * page, page, output + number * page, hint)
    };
    (0..count).map(of).collect()
}

/// A run of entries is written by adding a step to a descriptor. With 64K pages that gives the next address as far
/// as 2^48, with 4K and 16K pages and 52-bit addresses as far as 2^50: above, the formats have bits elsewhere.
#[test]
#[cfg_attr(miri, ignore = "zeroing tables in ten forms takes Miri minutes")]
fn no_run_goes_beyond_the_address_where_the_descriptor_format_breaks() {
    for (size, place, group) in [
        (PageSize::K4, 50, 16),
        (PageSize::K16, 50, 128),
        (PageSize::K64, 48, 32),
    ] {
        let can = capabilities(size, 52, true, false, false);
        // In the middle of a table, and for runs of groups between two of them.
        for (leaves, group, before, count) in [
            (Leaves::PAGES, 1, 3, 8),
            (Leaves::LARGEST, group, 2 * group, 4 * group + 1),
        ] {
            let output = (1 << place) - before * size.bytes();
            let piece = Piece {
                start: can.geometry.base(),
                output: PhysicalAddress(output),
                bytes: count * size.bytes(),
                attributes: Attributes::normal(Permissions::READ_WRITE),
                leaves,
            };
            let expected = pages_to(can, output, count, group);
            check_leaves(can, &[piece], &expected);
        }
    }
}

proptest! {
    #![proptest_config(config(48, 1))]

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries in each of ten forms take Miri minutes")]
    fn every_form_maps_the_same_and_takes_what_is_expected(
        which in 0usize..7,
        (range, repeat, blocks, high) in any::<(bool, bool, bool, bool)>(),
        agree in 14u32..40,
        at in prop_oneof![Just(0u64), 0u64..40_000],
        runs in prop::collection::vec(
            (prop_oneof![Just(0u64), 1u64..3_000], prop_oneof![1u64..40, 1u64..6_000]),
            1..5,
        ),
    ) {
        let can = match which {
            0 => capabilities(PageSize::K4, 39, false, range, repeat),
            1 => capabilities(PageSize::K4, 48, false, range, repeat),
            2 => capabilities(PageSize::K16, 47, false, range, repeat),
            3 => capabilities(PageSize::K16, 52, true, range, repeat),
            4 => capabilities(PageSize::K64, 42, false, range, repeat),
            5 => capabilities(PageSize::K4, 52, true, range, repeat),
            _ => capabilities(PageSize::K64, 52, true, range, repeat),
        };
        let leaves = if blocks { Leaves::LARGEST } else { Leaves::PAGES };
        let agree = agree.max(can.geometry.page_size().shift());
        let mut pieces = pieces(&can.geometry, agree, at, &runs, leaves);
        if high && can.geometry.pa_bits() == 52 {
            // Where the format breaks lies among the outputs.
            let place = if can.geometry.page_size() == PageSize::K64 { 48 } else { 50 };
            let middle = pieces[0].output.0 + pieces[0].bytes / 2;
            let more = ((1u64 << place) - middle) >> agree << agree;
            pieces.iter_mut().for_each(|piece| piece.output.0 += more);
        }
        check(can, &pieces);
    }
}

#[test]
#[cfg_attr(miri, ignore = "zeroing tables in ten forms takes Miri minutes")]
fn a_small_map_with_a_hole() {
    let can = capabilities(PageSize::K4, 48, false, false, true);
    for leaves in [Leaves::PAGES, Leaves::LARGEST] {
        let runs = [(3, 20), (5, 40), (0, 7)];
        check(can, &pieces(&can.geometry, 30, 490, &runs, leaves));
    }
}

/// The series of slots is used up twice over, with some left at the end.
#[test]
#[cfg_attr(miri, ignore = "37 tables in each of ten forms take Miri minutes")]
fn a_long_map_empties_the_series_each_time_it_is_full() {
    for range in [false, true] {
        let can = capabilities(PageSize::K4, 48, false, range, false);
        let pieces = pieces(&can.geometry, 30, 0, &[(0, 512 * 37)], Leaves::PAGES);
        check(can, &pieces);
    }
}

#[test]
fn a_table_of_pages_takes_what_was_published_of_it() {
    let can = capabilities(PageSize::K4, 48, false, false, false);
    let per_table = |strategy: Strategy, barriers| {
        // The difference of two maps is 48 tables: three times the series.
        let of = |tables: u64| {
            let pieces = pieces(&can.geometry, 30, 0, &[(0, 512 * tables)], Leaves::PAGES);
            expected(&can.geometry, &can.tlb, &pieces, strategy, barriers).counts
        };
        let (few, many) = (of(16), of(64));
        (
            (many.tlbi - few.tlbi) as f64 / 48.0,
            (many.dsb - few.dsb) as f64 / 48.0,
            (many.isb - few.isb) as f64 / 48.0,
        )
    };
    use Strategy::*;
    for (strategy, barriers, counts) in [
        (Base, Barriers::Entry, (33.0, 612.0, 579.0)),
        (NoContRemap, Barriers::Entry, (2.0, 519.0, 517.0)),
        (BatchBarriers, Barriers::Table, (2.0, 7.0, 5.0)),
        (NoAllocRemap, Barriers::Table, (1.0, 5.0, 3.0)),
        (NoAllocRemap, Barriers::Entry, (1.0, 517.0, 515.0)),
        (LazyUnmap, Barriers::Table, (1.0, 3.125, 2.0625)),
    ] {
        let found = per_table(strategy, barriers);
        // The tables above add a little for each of those below them.
        for (found, counts) in [
            (found.0, counts.0),
            (found.1, counts.1),
            (found.2, counts.2),
        ] {
            assert!(
                (0.0..0.2).contains(&(found - counts)),
                "{strategy}: {found} for {counts}"
            );
        }
    }
}

#[test]
fn no_step_takes_more_than_the_one_before_it() {
    for size in PageSize::ALL {
        let can = capabilities(
            size,
            if size == PageSize::K64 { 42 } else { 47 },
            false,
            false,
            false,
        );
        for gib in [1u64, 4, 16, 64, 256, 512] {
            let pages = (gib << 30) >> size.shift();
            let pieces = pieces(&can.geometry, 30, 0, &[(0, pages)], Leaves::PAGES);
            for barriers in [None, Some(Barriers::Entry), Some(Barriers::Table)] {
                let counts = Strategy::ALL
                    .into_iter()
                    .map(|strategy| {
                        let barriers = barriers.unwrap_or(strategy.barriers());
                        expected(&can.geometry, &can.tlb, &pieces, strategy, barriers).counts
                    })
                    .collect::<Vec<_>>();
                for pair in counts.windows(2) {
                    assert!(pair[1].tlbi <= pair[0].tlbi, "{size} {gib}: {counts:?}");
                    assert!(pair[1].dsb <= pair[0].dsb, "{size} {gib}: {counts:?}");
                    assert!(pair[1].isb <= pair[0].isb, "{size} {gib}: {counts:?}");
                    assert!(pair[1].stores <= pair[0].stores, "{size} {gib}: {counts:?}");
                }
            }
        }
    }
}

#[test]
fn running_out_of_tables_is_reported_before_anything_is_done() {
    let can = capabilities(PageSize::K4, 48, false, false, false);
    let pieces = pieces(&can.geometry, 30, 0, &[(0, 2048)], Leaves::PAGES);
    for (strategy, barriers) in published() {
        let made = PageSize::K4.dispatch(Make {
            can,
            pieces: &pieces,
            strategy,
            barriers,
            // The root, and one less than the four last-level tables and the two above.
            pages: 1 + 5,
        });
        assert_eq!(made.err(), Some(TableError::OutOfTables { needed: 6 }));
    }
}

#[test]
#[cfg_attr(miri, ignore = "zeroing tables in ten forms takes Miri minutes")]
fn mapped_pages_are_not_written_over() {
    let can = capabilities(PageSize::K4, 48, false, false, false);
    let mut twice = pieces(&can.geometry, 30, 0, &[(0, 8)], Leaves::PAGES);
    twice.push(twice[0]);
    twice[1].start.0 += 7 << 12;
    for (strategy, barriers) in published() {
        let made = PageSize::K4.dispatch(Make {
            can,
            pieces: &twice,
            strategy,
            barriers,
            pages: 8,
        });
        let address = VirtualAddress(can.geometry.base().0 + (7 << 12));
        assert_eq!(made.err(), Some(TableError::AlreadyMapped { address }));
    }
}

/// The part of a table that `base` shows at a time, in pages of 4K, 16K and 64K: the published
/// kernel looks for contiguous groups of pages and of level 2 blocks, 16, 128 and 32 entries and
/// 16, 32 and 32.
#[test]
fn base_shows_a_contiguous_span_at_a_time() {
    for (size, va_bits, pages, blocks) in [
        (PageSize::K4, 48, 16, 16),
        (PageSize::K16, 47, 128, 32),
        (PageSize::K64, 42, 32, 32),
    ] {
        let can = capabilities(size, va_bits, false, false, false);
        let shows = |count: u64, leaves| {
            let made = |strategy: Strategy| {
                let pieces = pieces(&can.geometry, 30, 0, &[(0, count)], leaves);
                expected(&can.geometry, &can.tlb, &pieces, strategy, Barriers::Table)
                    .counts
                    .tlbi
            };
            // `no-cont-remap` shows each table once.
            made(Strategy::Base) - made(Strategy::NoContRemap)
        };
        // From one span to one page more than it.
        assert_eq!(shows(1, Leaves::PAGES), 0, "{size}");
        assert_eq!(shows(pages, Leaves::PAGES), 0, "{size}");
        assert_eq!(shows(pages + 1, Leaves::PAGES), 1, "{size}");
        assert_eq!(shows(3 * pages + 1, Leaves::PAGES), 3, "{size}");
        // Blocks, with groups of them: entries of level 2.
        let entries = size.entries() as u64;
        assert_eq!(shows(blocks * entries, Leaves::LARGEST), 0, "{size}");
        assert_eq!(shows((blocks + 1) * entries, Leaves::LARGEST), 1, "{size}");
        assert_eq!(
            shows((3 * blocks + 1) * entries, Leaves::LARGEST),
            3,
            "{size}"
        );
    }
}
