//! Stage 2: exact sequences of barriers and TLBIs, concatenated root tables, and running out of
//! pages. `random` has the operations in general.

use crate::bench::{Bench, Setting};
use crate::exhaustion::EVERY;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    Descriptor, Dispatch, IntermediateAddress, Kind, Page, Page4K, Page16K, PageSize,
    PhysicalAddress, Regime, Stage2Attributes, Stage2Geometry, Stage2Permissions,
};
use granule::linear::Arena;
use granule::table::{
    FreeList, Holes, Leaves, Offset, PageTables, Stage2, Stage2PermissionChange, TableError,
    TableView, Visit,
};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host, Runs};
use granule_testing::shape::{self, Cpu, LARGE, PLAIN};
use granule_testing::stage::TestStage;

const ALL: Stage2Attributes = Stage2Attributes::normal(Stage2Permissions::ALL);
const READ_ONLY: Stage2PermissionChange = Stage2PermissionChange {
    writable: Some(false),
    ..Stage2PermissionChange::NONE
};
/// VMALLE1IS: what a guest's CPUs combined with their own tables.
const COMBINED: Event = Event::OtherTlbi(Regime::El1And0, TlbiOp::All);

fn geometry(cpu: Cpu, size: PageSize, ipa_bits: u32) -> Stage2Geometry {
    Stage2Geometry::new(&cpu.features(), size, ipa_bits).unwrap()
}

/// The events that are not stores, allocations or reservations.
fn maintenance(events: &[Event]) -> Vec<Event> {
    let keep = |event: &&Event| {
        matches!(
            event,
            Event::DsbIshst
                | Event::DsbIsh
                | Event::Isb
                | Event::Tlbi(_)
                | Event::OtherTlbi(..)
                | Event::Free(_)
        )
    };
    events.iter().filter(keep).copied().collect()
}

fn address(operand: u64, scope: TlbiScope) -> Event {
    Event::Tlbi(TlbiOp::Address {
        operand,
        scope,
        all_asids: true,
    })
}

/// The whole order of stage 2 around TLBIs by intermediate physical address.
fn order(tlbis: &[Event]) -> Vec<Event> {
    let after = [Event::DsbIsh, COMBINED, Event::DsbIsh, Event::Isb];
    let before = [Event::DsbIshst];
    before.iter().chain(tlbis).chain(&after).copied().collect()
}

#[test]
fn a_change_takes_tlbis_by_address_and_then_what_is_combined() {
    // 40 bits with 4K pages: two root tables of level 1. The IPA is in the second.
    let mut bench = Bench::<Page4K, Stage2>::of(geometry(PLAIN, PageSize::K4, 40), Setting::LIVE);
    let ipa = IntermediateAddress(1 << 39);
    let ram = PhysicalAddress(0x8_0000_0000);
    let page = 1_u64 << 39 >> 12;
    let tables = &mut bench.tables;
    tables.map(ipa, ram, 0x2000, ALL, Leaves::PAGES).unwrap();
    let events = bench.host.take_events();
    assert_eq!(maintenance(&events), [Event::DsbIshst, Event::Isb], "a map");
    tables
        .protect(ipa, 0x1000, READ_ONLY, Holes::Refuse)
        .unwrap();
    // The level hint: granule 01, level 3.
    let leaf = address(page | 0b0111 << 44, TlbiScope::LastLevel);
    let events = maintenance(&bench.host.take_events());
    assert_eq!(events, order(&[leaf]), "IPAS2LE1IS of a protect");
    // One of two pages goes.
    tables.unmap(ipa, 0x1000).unwrap();
    let events = maintenance(&bench.host.take_events());
    assert_eq!(events, order(&[leaf]), "IPAS2LE1IS of an unmap");
    // The tables of levels 3 and 2 go with the other.
    tables
        .unmap(IntermediateAddress(ipa.0 + 0x1000), 0x1000)
        .unwrap();
    let events = maintenance(&bench.host.take_events());
    let table = address(page + 1, TlbiScope::AllLevels);
    assert_eq!(events[..6], order(&[table])[..], "IPAS2E1IS, no hint");
    let freed = |event: &Event| matches!(event, Event::Free(_));
    assert!(events.len() == 8 && events[6..].iter().all(freed));
}

#[test]
fn a_range_is_one_operation_and_all_of_a_guest_needs_nothing_else() {
    let mut bench = Bench::<Page4K, Stage2>::of(geometry(PLAIN, PageSize::K4, 48), Setting::LIVE);
    let ram = PhysicalAddress(0x8_0000_0000);
    let ipa = IntermediateAddress(1 << 30);
    let tables = &mut bench.tables;
    tables.map(ipa, ram, 64 << 12, ALL, Leaves::PAGES).unwrap();
    bench.host.take_events();
    tables
        .protect(ipa, 64 << 12, READ_ONLY, Holes::Refuse)
        .unwrap();
    // 64 pages: NUM 0 of SCALE 1. TG 01.
    let operand = 1 << 30 >> 12 | 1 << 44 | 0b01 << 46;
    let range = Event::Tlbi(TlbiOp::Range {
        operand,
        scope: TlbiScope::LastLevel,
        all_asids: true,
    });
    let events = maintenance(&bench.host.take_events());
    assert_eq!(events, order(&[range]), "RIPAS2LE1IS");
    // More than a range operation can hold: VMALLS12E1IS, which removes combined entries too.
    let blocks = 16 << 30;
    tables
        .map(IntermediateAddress(0), ram, 1 << 30, ALL, Leaves::LARGEST)
        .unwrap();
    tables
        .map(
            IntermediateAddress(2 << 30),
            ram,
            blocks,
            ALL,
            Leaves::LARGEST,
        )
        .unwrap();
    bench.host.take_events();
    tables
        .protect(IntermediateAddress(0), blocks, READ_ONLY, Holes::Skip)
        .unwrap();
    let events = maintenance(&bench.host.take_events());
    let whole = [
        Event::DsbIshst,
        Event::Tlbi(TlbiOp::All),
        Event::DsbIsh,
        Event::Isb,
    ];
    assert_eq!(events, whole);
}

#[test]
fn an_erratum_repeats_both_steps() {
    let setting = Setting::LIVE.repeat(true).range(false);
    let mut bench = Bench::<Page16K, Stage2>::of(geometry(PLAIN, PageSize::K16, 40), setting);
    let ipa = IntermediateAddress(0x4000);
    let ram = PhysicalAddress(0x8000_0000);
    let tables = &mut bench.tables;
    tables.map(ipa, ram, 0x4000, ALL, Leaves::PAGES).unwrap();
    bench.host.take_events();
    tables.set_invalid(ipa, 0x4000).unwrap();
    // The operand is in units of 4K whatever the granule.
    let leaf = address(0x4, TlbiScope::LastLevel);
    let expected = [
        Event::DsbIshst,
        leaf,
        Event::DsbIsh,
        leaf,
        Event::DsbIsh,
        COMBINED,
        Event::DsbIsh,
        COMBINED,
        Event::DsbIsh,
        Event::Isb,
    ];
    assert_eq!(maintenance(&bench.host.take_events()), expected);
    // Made valid again: an invalid entry is in no TLB.
    tables.set_valid(ipa, 0x4000).unwrap();
    let events = maintenance(&bench.host.take_events());
    assert_eq!(events, [Event::DsbIshst, Event::Isb]);
}

/// Tables of a shape: their root is an aligned run, all invalid, and `destroy` frees all of it.
struct Root(Stage2Geometry);

impl Dispatch for Root {
    type Output = ();
    fn run<P: Page>(self) {
        let geometry = self.0;
        let count = geometry.shape().root_tables();
        let bytes = count as u64 * P::SIZE.bytes();
        let host = Host::new(geometry.shape(), 0x4000_0000, 64);
        host.set_runs(Runs::Scattered);
        for left in 0..count {
            // One page too few, and no page at all.
            host.set_budget(left);
            let environment = host::environment(&host, Setting::LIVE.capabilities());
            let refused = PageTables::<P, _, Stage2>::new(geometry, environment);
            let needed = TableError::OutOfTables { needed: count };
            assert_eq!(refused.map(|_| ()), Err(needed));
            assert_eq!(host.given_out(), 0);
        }
        host.set_budget(usize::MAX);
        let environment = host::environment(&host, Setting::LIVE.capabilities());
        let mut tables = PageTables::<P, _, Stage2>::new(geometry, environment).unwrap();
        assert_eq!(host.given_out(), count);
        let root = tables.root_table();
        assert_eq!(root.0 % bytes, 0, "the root tables are aligned together");
        for page in 0..count as u64 {
            let words = host.table(root.0 + page * P::SIZE.bytes());
            assert!(words.iter().all(|word| *word == 0));
        }
        // The last page of the guest is in the last root table.
        let last = IntermediateAddress(geometry.shape().span() - P::SIZE.bytes());
        let out = PhysicalAddress(0);
        tables
            .map(last, out, P::SIZE.bytes(), ALL, Leaves::PAGES)
            .unwrap();
        assert_eq!(tables.query(last).unwrap().output, out);
        assert_eq!(tables.query(IntermediateAddress(0)), None);
        let beyond = tables.unmap(last, 2 * P::SIZE.bytes());
        assert!(matches!(beyond, Err(TableError::OutsideSpace { .. })));
        let tables = Held::new(tables, true);
        let Held::Live(live) = tables else {
            panic!("the tables are live")
        };
        assert_eq!(live.vttbr(0x12).bits() >> 48, 0x12);
        // SAFETY: no CPU ever walked the tables.
        drop(unsafe { live.retire() }.destroy());
        assert_eq!(host.given_out(), 0);
    }
}

#[test]
fn root_tables_are_one_aligned_run() {
    let mut shapes = shape::stage2();
    if cfg!(miri) {
        // More tables take minutes.
        shapes.retain(|shape| {
            shape.shape().page_size() == PageSize::K4 && shape.shape().root_tables() == 2
        });
    }
    for geometry in shapes {
        geometry.shape().page_size().dispatch(Root(geometry));
    }
}

/// A map across two root tables, then a change that splits: both fail at every allocation.
struct Exhausted {
    geometry: Stage2Geometry,
    live: bool,
    reserves: bool,
}

impl Dispatch for Exhausted {
    type Output = usize;
    fn run<P: Page>(self) -> usize {
        let setting = Setting::PRIVATE
            .live(self.live)
            .reserves(self.reserves)
            .bbm(3);
        let mut bench = Bench::<P, Stage2>::of(self.geometry, setting);
        let arch = bench.arch;
        let page = arch.page();
        let root = arch.entries() as u64 * arch.entry_bytes(arch.start_level());
        // The last page of the first root table, and the first page of the second.
        let edge = if arch.root_tables() > 1 {
            root
        } else {
            arch.span() / 2
        };
        let (from, bytes) = (edge - page, 2 * page);
        let before = bench.reference.tables();
        let mut after = crate::reference::Reference::<Stage2>::new(self.geometry.shape());
        after
            .map(from, 0, bytes, Stage2::read_write(), Leaves::LARGEST)
            .unwrap();
        let needed = after.tables() - before;
        let dump = bench.dump();
        for budget in 0..needed {
            bench.host.set_budget(budget);
            let start = bench.reference.address(from);
            let rw = Stage2::read_write();
            let answer = bench
                .tables
                .map(start, PhysicalAddress(0), bytes, rw, Leaves::LARGEST);
            assert_eq!(answer, Err(TableError::OutOfTables { needed }));
            assert_eq!(bench.dump(), dump);
            bench.ran_out(needed, budget);
        }
        bench.host.set_budget(needed);
        bench.lay(from, 0, bytes, Stage2::read_write(), Leaves::LARGEST);
        assert_eq!(bench.host.reserved_in_vain(), 0);
        bench.unmap(from, bytes).unwrap();
        assert_eq!(bench.dump(), dump, "unmapping undoes mapping");
        let mut failed = needed;
        // A block, of which a page in the middle changes.
        let block = arch.entry_bytes(2);
        if arch.start_level() <= 2 && arch.span() >= 2 * block {
            bench.host.set_budget(usize::MAX);
            bench.lay(block, block, block, Stage2::read_write(), Leaves::LARGEST);
            let dump = bench.dump();
            bench.host.set_budget(0);
            let middle = bench.reference.address(block + page * 3);
            let answer = bench.tables.protect(middle, page, READ_ONLY, Holes::Refuse);
            assert_eq!(answer, Err(TableError::OutOfTables { needed: 1 }));
            assert_eq!(bench.dump(), dump);
            bench.host.take_events();
            bench.host.set_budget(1);
            bench
                .protect(block + page * 3, page, READ_ONLY, Holes::Refuse)
                .unwrap();
            failed += 1;
        }
        failed
    }
}

#[test]
#[cfg_attr(miri, ignore = "hours; the tests of exhaustion run the same code")]
fn running_out_leaves_a_guest_as_it_was() {
    let mut failed = 0;
    for geometry in shape::stage2() {
        for (live, reserves) in EVERY {
            failed += geometry.shape().page_size().dispatch(Exhausted {
                geometry,
                live,
                reserves,
            });
        }
    }
    assert!(failed > 100, "{failed} allocations failed");
}

/// Takes the runs of `wanted` from 64 pages at `start`, and then every page that is left.
fn take_runs(
    mut aligned: impl FnMut(usize) -> Option<PhysicalAddress>,
    size: PageSize,
    start: u64,
    wanted: &[(usize, bool)],
) {
    let page = size.bytes();
    let end = start + 64 * page;
    let mut taken = Vec::new();
    for &(count, found) in wanted {
        let run = aligned(count);
        assert_eq!(run.is_some(), found, "{count} pages of {size}");
        let Some(run) = run else { continue };
        let bytes = count as u64 * page;
        assert_eq!(run.0 % bytes, 0, "{count} pages of {size}");
        assert!(run.0 >= start && run.0 + bytes <= end);
        taken.extend((0..count as u64).map(|number| run.0 + number * page));
    }
    while let Some(page) = aligned(1) {
        taken.push(page.0);
    }
    taken.sort_unstable();
    let every: Vec<u64> = (0..64).map(|number| start + number * page).collect();
    assert_eq!(taken, every, "each page once");
}

#[test]
fn allocators_have_aligned_runs_and_lose_no_page() {
    for size in PageSize::ALL {
        let page = size.bytes();
        let mut memory = vec![0_u64; 81 * page as usize / 8];
        let first = memory.as_mut_ptr().expose_provenance() as u64;
        // The memory begins a page after a multiple of 16 pages.
        let start = first.next_multiple_of(16 * page) + page;
        let (from, to) = (PhysicalAddress(start), PhysicalAddress(start + 64 * page));
        // SAFETY: the vector is reached where it lies.
        let flat = unsafe { Offset::new(0) };
        // SAFETY: the vector outlives the allocators, which use it one after the other.
        let mut arena = unsafe { Arena::new(flat, from, to, size) };
        let wanted = [(16, true), (1, true), (4, true), (16, true), (16, false)];
        take_runs(|count| arena.allocate_aligned(count), size, start, &wanted);
        let mut list = FreeList::new(flat, size);
        // SAFETY: as above.
        unsafe { list.add(from, to) };
        let wanted = [16, 1, 4, 16, 16].map(|count| (count, true));
        let wanted = [&wanted[..], &[(16, false)]].concat();
        take_runs(|count| list.allocate_aligned(count), size, start, &wanted);
    }
}

#[test]
fn larger_addresses_than_a_cpu_has_are_refused() {
    let cpu = Cpu {
        parange: 4,
        ..LARGE
    };
    let mut bench = Bench::<Page4K, Stage2>::of(geometry(cpu, PageSize::K4, 40), Setting::PRIVATE);
    let ipa = IntermediateAddress(0);
    let out = PhysicalAddress(1 << 44);
    let answer = bench.tables.map(ipa, out, 0x1000, ALL, Leaves::PAGES);
    assert!(matches!(
        answer,
        Err(TableError::OutputTooLarge { pa_bits: 44, .. })
    ));
}

#[test]
fn the_shape_of_a_guest_is_none_of_stage_1() {
    let shape = *geometry(PLAIN, PageSize::K4, 40).shape();
    let host = Host::new(&shape, 0x4000_0000, 4);
    let environment = host::environment(&host, Setting::LIVE.capabilities());
    let refused = PageTables::<Page4K, _>::new(shape, environment);
    assert_eq!(refused.map(|_| ()), Err(TableError::WrongStage));
    assert_eq!(host.given_out(), 0);
}

#[test]
fn a_view_reads_all_root_tables_of_a_guest() {
    let geometry = geometry(PLAIN, PageSize::K4, 43);
    // 16 tables for the root, and two below each.
    let setting = Setting {
        pages: 64,
        ..Setting::PRIVATE
    };
    let mut bench = Bench::<Page4K, Stage2>::of(geometry, setting);
    let mut expected = Vec::new();
    for root in 0..16 {
        let (ipa, output) = (root << 39 | 0x5000, 0x8000_0000 + (root << 12));
        bench.lay(ipa, output, 0x1000, ALL, Leaves::PAGES);
        expected.push((IntermediateAddress(ipa), PhysicalAddress(output)));
    }
    let read = |table: PhysicalAddress, index| Some(Descriptor(bench.host.word(table.0, index)));
    let view = TableView::of_guest(geometry, bench.tables.root_table(), read);
    let mut found = Vec::new();
    let visited = view.visit_all(|entry| {
        let entry = entry.unwrap();
        if entry.kind == Kind::Leaf {
            found.push((entry.start, entry.output));
        }
        Visit::EVERYTHING
    });
    assert!(visited.is_continue());
    assert_eq!(found, expected);
    for (ipa, output) in expected {
        let mapping = view.query(ipa).unwrap().unwrap();
        assert_eq!((mapping.output, mapping.attributes), (output, ALL));
    }
    assert_eq!(view.query(IntermediateAddress(0)), Ok(None));
}
