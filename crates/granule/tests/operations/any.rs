//! Tables whose page size is a value do what tables of that size do, and freed tables are all
//! freed.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use core::ops::ControlFlow;
use granule::arch::bbm::BbmLevel;
use granule::arch::{
    AnyPage, Attributes, Dispatch, Geometry, Level, MemoryType, Page, Page16K, PageChoice,
    PageSize, Permissions, PhysicalAddress, Stage2Geometry, VaRange, VirtualAddress,
};
use granule::table::{
    AnyPageTables, FrameRun, Frames, Harvest, Holes, Leaves, Live, PageTables, Piece,
    TableEnvironment, TableError, Visit,
};
use granule_testing::cases::config;
use granule_testing::held::Held;
use granule_testing::host::{self, Host, HostEnvironment, Runs};
use granule_testing::shape::{self, PLAIN};
use granule_testing::walk::Arch;
use proptest::prelude::*;
use std::rc::Rc;

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

pub fn new_host(geometry: &Geometry) -> (Rc<Host>, HostEnvironment) {
    let host = Host::new(geometry, 0x4000_0000, 64);
    let environment = host::environment(&host, Setting::LIVE.capabilities());
    (host, environment)
}

/// Pushes the answer of one call.
macro_rules! answer {
    ($answers:ident, $tables:ident, $method:ident($($argument:expr),*)) => {
        $answers.push(format!("{:?}", $tables.$method($($argument),*)));
    };
}

/// The same calls on tables whose page size is a type or a value, with what each answered.
fn calls<P: PageChoice, E: TableEnvironment>(tables: &mut PageTables<P, E>) -> Vec<String> {
    let (base, page) = (
        tables.geometry().base(),
        tables.geometry().page_size().bytes(),
    );
    let at = |pages: u64| VirtualAddress(base.0 + pages * page);
    let output = PhysicalAddress(0x8000_0000);
    let pages = Leaves::PAGES;
    let piece = Piece {
        start: at(40),
        output,
        bytes: page,
        attributes: RW,
        leaves: pages,
    };
    let runs = [FrameRun {
        first: output,
        count: 3,
    }];
    let frames = Frames::Runs(&runs);
    let read_only = READ_ONLY;
    let device = |one: &mut Attributes| one.memory = MemoryType::Device;
    let mut answers = Vec::new();
    answer!(
        answers,
        tables,
        map(at(0), output, 32 * page, RW, Leaves::LARGEST)
    );
    answer!(
        answers,
        tables,
        map(at(31), output, page, RW, Leaves::LARGEST)
    );
    answer!(answers, tables, map_pieces(&[piece]));
    answer!(answers, tables, map_frames(at(50), frames, RW, pages));
    answer!(
        answers,
        tables,
        protect(at(1), 2 * page, read_only, Holes::Refuse)
    );
    answer!(
        answers,
        tables,
        modify(at(40), 5 * page, Holes::Skip, device)
    );
    answer!(answers, tables, set_invalid(at(50), page));
    answer!(answers, tables, set_valid(at(50), page));
    answer!(answers, tables, limit_leaves(at(0), 64 * page, pages));
    answer!(answers, tables, unmap(at(51), page));
    let kept = tables.unmap_keeping_tables(at(52), page);
    answers.push(format!("{kept:?}"));
    // SAFETY: no CPU walks the tables.
    unsafe {
        tables.set_deferred_tlbi(true);
    }
    let what = Harvest::Accessed { invalidate: true };
    let mut found = Vec::new();
    let harvested = tables.harvest(at(0), 64 * page, what, |start, bytes| {
        found.push((start, bytes));
    });
    answers.push(format!("{harvested:?} {found:?}"));
    let merged = tables.merge(at(0), 64 * page, Leaves::LARGEST);
    answers.push(format!("{merged:?}"));
    let mut entries = Vec::new();
    let visited = tables.visit(at(0), 64 * page, |entry| {
        entries.push(*entry);
        Visit::EVERYTHING
    });
    let ended = tables.visit_all(|entry| {
        entries.push(*entry);
        match entry.level {
            Level::L3 => ControlFlow::Break(entry.start),
            _ => ControlFlow::Continue(Visit::Descend),
        }
    });
    answers.push(format!("{ended:?}"));
    let ControlFlow::Continue(()) = tables.visit_runs(|entry| {
        entries.push(*entry);
        Visit::EVERYTHING
    });
    answers.push(format!("{visited:?} {entries:?}"));
    answers.push(format!("{:?}", tables.query(at(2))));
    answers.push(format!("{} {:?}", tables.root_table(), tables.geometry()));
    answers
}

/// The answers of the calls on tables in an environment, which are destroyed then.
pub fn answers<P: PageChoice, E: TableEnvironment>(
    geometry: Geometry,
    environment: E,
    live: bool,
) -> Vec<String> {
    let tables = PageTables::<P, _>::new(geometry, environment).unwrap();
    let mut tables = Held::new(tables, live);
    // SAFETY: no CPU walks the tables.
    unsafe { tables.set_bbm(BbmLevel::Level3) };
    let answers = calls(&mut tables);
    match tables {
        Held::Private(tables) => tables,
        // SAFETY: no CPU walked the tables.
        Held::Live(tables) => unsafe { tables.retire() },
    }
    .destroy();
    answers
}

struct Compared(Geometry);

impl Dispatch for Compared {
    type Output = ();

    fn run<P: Page>(self) {
        let geometry = self.0;
        for live in [false, true] {
            let (host, environment) = new_host(&geometry);
            let expected = answers::<P, _>(geometry, environment, live);
            let (any_host, environment) = new_host(&geometry);
            assert_eq!(answers::<AnyPage, _>(geometry, environment, live), expected);
            // The same stores, barriers and TLBIs.
            assert_eq!(any_host.take_events(), host.take_events());
            assert_eq!(any_host.given_out(), 0);
        }
    }
}

#[test]
fn any_tables_do_what_tables_of_the_size_do() {
    let sizes = [(PageSize::K4, 48), (PageSize::K16, 47), (PageSize::K64, 42)];
    // Tables of the other sizes take Miri minutes.
    for (size, bits) in &sizes[..if cfg!(miri) { 1 } else { 3 }] {
        let geometry = PLAIN.geometry(*size, *bits, VaRange::Upper);
        size.dispatch(Compared(geometry));
    }
}

/// Random mappings, then the whole tree is freed.
#[derive(Clone, Debug)]
struct Destroyed {
    geometry: Geometry,
    live: bool,
    mapped: Vec<(u64, u64, bool)>,
    hidden: Option<usize>,
}

impl Dispatch for Destroyed {
    type Output = ();

    fn run<P: Page>(self) {
        let setting = if self.live {
            Setting::LIVE
        } else {
            Setting::PRIVATE
        };
        let mut bench = Bench::<P>::new(&self.geometry, setting);
        bench.host.set_runs(Runs::Scattered);
        let arch = Arch::of(&self.geometry);
        for (number, &(place, pages, largest)) in self.mapped.iter().enumerate() {
            let bytes = pages * arch.page();
            let at = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) % arch.span();
            // Aligned to its size, so that some mappings are blocks.
            let at = at / bytes.next_power_of_two() * bytes.next_power_of_two();
            let output = at % (1 << (arch.pa_bits - 1));
            let leaves = if largest {
                Leaves::LARGEST
            } else {
                Leaves::PAGES
            };
            let _ = bench.map(at, output, bytes, RW, leaves);
            if self.hidden == Some(number) {
                let _ = bench.set_invalid(at, bytes);
            }
        }
        let Bench { tables, host, .. } = bench;
        let tables = match tables {
            Held::Private(tables) => tables,
            // SAFETY: no CPU walked the tables.
            Held::Live(tables) => unsafe { tables.retire() },
        };
        tables.destroy();
        assert_eq!(host.given_out(), 0, "tables that were not freed");
    }
}

fn destroyed() -> impl Strategy<Value = Destroyed> {
    // A whole table takes Miri minutes.
    let many = if cfg!(miri) { 3 } else { 512 };
    let pages = prop_oneof![1..5_u64, Just(16), Just(many), Just(1 << 18)];
    let mapped = (any::<u64>(), pages, any::<bool>());
    let mapped = mapped.prop_filter("too many pages", |(_, pages, largest)| {
        *largest || *pages <= 512
    });
    (
        proptest::sample::select(shape::all()),
        any::<bool>(),
        proptest::collection::vec(mapped, 0..if cfg!(miri) { 4 } else { 12 }),
        proptest::option::of(0..12_usize),
    )
        .prop_map(|(geometry, live, mapped, hidden)| Destroyed {
            geometry,
            live,
            mapped,
            hidden,
        })
        .prop_filter("4K runs the same code under Miri", |case| {
            !cfg!(miri) || case.geometry.page_size() == PageSize::K4
        })
}

proptest! {
    #![proptest_config(config(100, 3))]

    #[test]
    fn destroy_frees_every_table(case in destroyed()) {
        case.geometry.page_size().dispatch(case);
    }
}

#[test]
fn a_root_is_taken_over_with_its_page_size_and_a_shape_of_stage_2_is_refused() {
    let geometry = PLAIN.geometry(PageSize::K16, 47, VaRange::Upper);
    let (host, environment) = new_host(&geometry);
    let tables = PageTables::<Page16K, _>::new(geometry, environment).unwrap();
    let (root, environment) = tables.into_parts();
    // SAFETY: the root of just now, which no CPU walks.
    let any = unsafe { Live::<AnyPageTables<_>>::from_root(root, geometry, environment) }.unwrap();
    assert_eq!(any.geometry(), &geometry);
    assert_eq!(any.ttbr(0).bits() & !1, root.0);
    let (root, environment) = any.into_parts();
    // SAFETY: as above.
    unsafe {
        let live = Live::<AnyPageTables<_>>::from_root(root, geometry, environment).unwrap();
        live.retire().destroy();
    }
    assert_eq!(host.given_out(), 0);

    let guest = Stage2Geometry::new(&PLAIN.features(), PageSize::K16, 40).unwrap();
    let environment = host::environment(&host, Setting::LIVE.capabilities());
    // SAFETY: no tree is made of it.
    let error =
        unsafe { Live::<AnyPageTables<_>>::from_root(root, *guest.shape(), environment).err() };
    assert_eq!(error, Some(TableError::WrongStage));
}
