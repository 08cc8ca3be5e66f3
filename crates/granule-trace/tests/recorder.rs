//! Compares the events of a recording wrapper with those that the host below it notes itself.

#![allow(unsafe_code, reason = "the test calls unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]
#![allow(missing_debug_implementations, reason = "fixtures of tests")]

use granule::arch::tlbi::{TlbCapabilities, TlbiOp, TlbiScope};
use granule::arch::{
    Attributes, Descriptor, Dispatch, Geometry, Level, Page, Page4K, PageSize, Permissions,
    PhysicalAddress, Regime, VaRange, VirtualAddress,
};
use granule::forward;
use granule::linear::fixmap::{Entries, FixmapSlots, Slot};
use granule::table::{
    BitChange, FreedTable, Holes, Leaves, Maintenance, PageTables, PermissionChange, Reservation,
    TableEnvironment, TablePages, Visibility,
};
use granule_testing::held::Held;
use granule_testing::host::{self, Event as Noted, Host};
use granule_testing::shape::PLAIN;
use granule_testing::tlbi::HINTS;
use granule_trace::recorder::{NoSink, Sink, Traced, TracedFixmap};
use granule_trace::{Barrier, Event, System};
use std::cell::{Cell, RefCell};

/// Keeps the events, and sees that each is recorded from within one call.
#[derive(Default)]
struct Kept {
    events: RefCell<Vec<Event>>,
    inside: Cell<bool>,
    off: bool,
    page_bytes: u64,
}

impl Sink for &Kept {
    fn is_active(&self) -> bool {
        !self.off
    }

    fn atomically<R>(&self, action: impl FnOnce(&Self) -> R) -> R {
        assert!(!self.off, "taken though it is off");
        assert!(
            !self.inside.replace(true),
            "nested: a lock would be taken twice"
        );
        let result = action(self);
        self.inside.set(false);
        result
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn record(&self, event: Event) {
        assert!(self.inside.get(), "recorded outside of the lock");
        self.events.borrow_mut().push(event);
    }
}

/// A step that both sides can express.
#[derive(Debug, PartialEq)]
enum Word {
    Noted(Noted),
    /// Encoding and operand of a TLBI.
    Tlbi(u16, u64),
}

/// Returns the host's notes without reservations, which have no event.
fn noted(notes: Vec<Noted>) -> Vec<Word> {
    let notes = notes.into_iter();
    notes
        .filter_map(|note| match note {
            Noted::Reserve(_) => None,
            Noted::Tlbi(op) => {
                let (encoding, operand) = op.instruction(Regime::El1And0);
                Some(Word::Tlbi(encoding, operand))
            }
            other => Some(Word::Noted(other)),
        })
        .collect()
}

fn expected(events: &[Event], host: &Host, page_bytes: u64) -> Vec<Word> {
    let place = |address: u64| {
        let table = address & !(page_bytes - 1);
        (table, ((address - table) / 8) as usize)
    };
    let mut expected = Vec::new();
    for event in events {
        expected.push(Word::Noted(match *event {
            Event::Store {
                address,
                count,
                descriptor,
                step,
                visibility,
            } => {
                let (table, first) = place(address);
                Noted::Store {
                    table,
                    first,
                    count: count as usize,
                    descriptor,
                    step,
                    visibility: seen_by(visibility),
                }
            }
            // The host notes which entries were valid; both end in the same memory.
            Event::Update {
                address,
                count,
                change,
                visibility,
            } => {
                let (table, first) = place(address);
                expected.extend(
                    (first..first + count as usize)
                        .map(|index| (index, host.word(table, index)))
                        .filter(|(_, now)| {
                            now & change.set == change.set && now & change.clear & !change.set == 0
                        })
                        .map(|(index, descriptor)| {
                            Word::Noted(Noted::Change {
                                table,
                                index,
                                descriptor,
                                visibility: seen_by(visibility),
                            })
                        }),
                );
                continue;
            }
            Event::Obtained { start, bytes } => Noted::Allocate {
                first: start,
                count: (bytes / page_bytes) as usize,
            },
            Event::Freed { start, bytes } => {
                assert_eq!(bytes, page_bytes);
                Noted::Free(start)
            }
            Event::Barrier(Barrier::DSB_ISHST) => Noted::DsbIshst,
            Event::Barrier(Barrier::DSB_ISH) => Noted::DsbIsh,
            Event::Barrier(Barrier::ISB) => Noted::Isb,
            Event::System(system, operand) => {
                expected.push(Word::Tlbi(system.0, operand));
                continue;
            }
            other => panic!("{other:?}"),
        }));
    }
    expected
}

/// The walker's word for the event's.
fn seen_by(visibility: granule_trace::Visibility) -> Visibility {
    match visibility {
        granule_trace::Visibility::Private => Visibility::Private,
        granule_trace::Visibility::Live => Visibility::Live,
        granule_trace::Visibility::Publish => Visibility::Publish,
        granule_trace::Visibility::Exchange => Visibility::Exchange,
        other => panic!("{other:?}"),
    }
}

struct Compare;

impl Dispatch for Compare {
    type Output = usize;

    fn run<P: Page>(self) -> usize {
        let geometry = PLAIN.geometry(P::SIZE, 48, VaRange::Upper);
        let host = Host::new(&geometry, 0x4000_0000, 64);
        let inner = host::environment(&host, HINTS);
        let kept = Kept {
            page_bytes: P::SIZE.bytes(),
            ..Kept::default()
        };
        let environment = Traced::new(inner, &kept);
        let tables = PageTables::<P, _>::new(geometry, environment).unwrap();
        let mut tables = Held::new(tables, true);
        let (page, start) = (P::SIZE.bytes(), geometry.base());
        let mut seen = 0;
        let mut compare = |what: &str| {
            let events = kept.events.take();
            let noted = noted(host.take_events());
            assert_eq!(expected(&events, &host, page), noted, "{what} {}", P::SIZE);
            assert!(!events.is_empty(), "{what}");
            seen += events.len();
        };
        compare("new and live");
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let output = PhysicalAddress(0x8000_0000);
        tables
            .map(start, output, 40 * page, attributes, Leaves::PAGES)
            .unwrap();
        compare("map");
        let change = PermissionChange {
            writable: Some(false),
            ..PermissionChange::NONE
        };
        let middle = VirtualAddress(start.0 + 3 * page);
        tables
            .protect(middle, 5 * page, change, Holes::Refuse)
            .unwrap();
        compare("protect");
        // A few pages would be stores.
        tables.unmap(middle, 20 * page).unwrap();
        // Clearing all bits leaves nothing by which to recognise the entry: the host's note counts.
        let events = kept.events.take();
        assert!(
            events
                .iter()
                .any(|event| matches!(event, Event::Update { count: 20, .. }))
        );
        host.take_events();
        seen
    }
}

/// An environment that changes other tables, through a wrapper with the same sink, when it gives a
/// page out and when it takes one back: a kernel whose free pages are invalid does.
struct Watched<'a, E> {
    inner: E,
    other: Traced<E, &'a Kept>,
    table: PhysicalAddress,
}

impl<E: TableEnvironment> Watched<'_, E> {
    fn set(&mut self, descriptor: u64) {
        let descriptor = Descriptor(descriptor);
        // SAFETY: a table of the host's that nothing else uses.
        unsafe {
            self.other
                .store(self.table, 0, descriptor, Visibility::Live);
        }
    }
}

// SAFETY: gives out what `inner` gives out, and forwards the rest.
unsafe impl<E: TableEnvironment> TableEnvironment for Watched<'_, E> {
    forward!(self.inner: reach reserve capabilities invalidate);
    forward!(self.inner: load find_unlike store exchange fill update update_alike);

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        let page = self.inner.allocate()?;
        self.set(0x703);
        Some(page)
    }

    fn free(&mut self, table: FreedTable) {
        self.set(0x702);
        self.inner.free(table);
    }
}

#[test]
fn an_allocation_may_record_in_its_turn() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let host = Host::new(&geometry, 0x4000_0000, 64);
    let kept = Kept {
        page_bytes: PageSize::K4.bytes(),
        ..Kept::default()
    };
    let mut inner = host::environment(&host, TlbCapabilities::BASIC);
    assert_eq!(inner.reserve(1), Reservation::Granted);
    let table = inner.allocate().unwrap();
    let other = host::environment(&host, TlbCapabilities::BASIC);
    let watched = Watched {
        inner,
        other: Traced::new(other, &kept),
        table,
    };
    let environment = Traced::new(watched, &kept);
    let tables = PageTables::<Page4K, _>::new(geometry, environment).unwrap();
    let mut tables = Held::new(tables, true);
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let (start, output) = (geometry.base(), PhysicalAddress(0x8000_0000));
    tables
        .map(start, output, 4096, attributes, Leaves::PAGES)
        .unwrap();
    tables.unmap(start, 4096).unwrap();
    let set = |descriptor: u64| {
        move |event: &Event| {
            matches!(event, Event::Store { address, descriptor: value, .. }
                if *address == table.0 && *value == descriptor)
        }
    };
    let events = kept.events.take();
    // A page is valid before it is a table, and a table no more before it is invalid.
    let place = |what: &dyn Fn(&Event) -> bool| events.iter().position(what);
    let obtained = place(&|event| matches!(event, Event::Obtained { .. }));
    let freed = place(&|event| matches!(event, Event::Freed { .. }));
    assert!(place(&set(0x703)).unwrap() < obtained.unwrap());
    assert!(freed.unwrap() < place(&set(0x702)).unwrap());
}

#[test]
fn the_recorded_events_are_those_that_the_host_sees() {
    for size in PageSize::ALL {
        assert!(size.dispatch(Compare) > 10, "{size}");
    }
}

/// Slots that do nothing.
struct Still(Geometry);

// SAFETY: nothing is reached, and nothing is claimed to be.
unsafe impl FixmapSlots for Still {
    fn geometry(&self) -> &Geometry {
        &self.0
    }
    fn pages(&self) -> Option<TablePages> {
        None
    }
    fn reserve(&mut self, _tables: usize) -> Reservation {
        Reservation::Refused
    }
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        None
    }
    fn issue(&mut self, _instruction: Maintenance) {}
    fn address(&self, slot: Slot) -> VirtualAddress {
        VirtualAddress(0x1000 * (slot.number() + 1) as u64)
    }
    fn close_series(&mut self, _count: usize) {}
    unsafe fn open(&mut self, _slot: Slot, _table: PhysicalAddress) {}
    fn close(&mut self, _slot: Slot) {}
    unsafe fn load(&self, _slot: Slot, _index: usize) -> Descriptor {
        Descriptor::INVALID
    }
    unsafe fn store(&mut self, _slot: Slot, _index: usize, _descriptor: Descriptor) {}
}

#[test]
fn stores_through_slots_are_recorded_by_their_table() {
    let kept = Kept::default();
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut fixmap = TracedFixmap::new(Still(geometry), &kept);
    let slots = [
        (Slot::Level(Level::L2), PhysicalAddress(0xa000)),
        (Slot::Level(Level::L3), PhysicalAddress(0xb000)),
        (Slot::Series(0), PhysicalAddress(0xc000)),
        (Slot::Series(15), PhysicalAddress(0xd000)),
    ];
    // SAFETY: each is opened once, and nothing is mapped.
    (slots.iter()).for_each(|(slot, table)| unsafe { fixmap.open(*slot, *table) });
    let assumed = Event::assume_visible(0x4000, 4096);
    assert_eq!(kept.events.borrow().first(), Some(&assumed));
    let stored = |table: PhysicalAddress, first: u64, count, descriptor, step| Event::Store {
        address: table.0 + 8 * first,
        count,
        descriptor,
        step,
        visibility: granule_trace::Visibility::Live,
    };
    for (slot, table) in slots {
        kept.events.take();
        let mut entries = Entries {
            first: 9,
            count: 3,
            descriptor: Descriptor(0x1003),
            step: 0x1000,
            barriers: false,
        };
        // SAFETY: nothing is stored.
        unsafe {
            fixmap.store(slot, 7, Descriptor(3));
            fixmap.zero(slot);
            assert_eq!(fixmap.write(slot, &entries), entries.count);
            entries.barriers = true;
            assert_eq!(fixmap.write(slot, &entries), entries.count);
        }
        // Entries with barriers between them are recorded one by one, so that the barriers keep
        // their places.
        let expected = [
            stored(table, 7, 1, 3, 0),
            stored(table, 0, 512, 0, 0),
            stored(table, 9, 3, 0x1003, 0x1000),
            stored(table, 9, 1, 0x1003, 0x1000),
            stored(table, 10, 1, 0x2003, 0x1000),
            stored(table, 11, 1, 0x3003, 0x1000),
        ];
        assert_eq!(kept.events.take(), expected);
    }
}

/// Maps, changes and unmaps, recorded in `kept`; what the host noted of it.
fn some_work(kept: &Kept) -> Vec<Noted> {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let host = Host::new(&geometry, 0x4000_0000, 64);
    let inner = host::environment(&host, HINTS);
    let environment = Traced::new(inner, kept);
    let tables = PageTables::<Page4K, _>::new(geometry, environment).unwrap();
    let mut tables = Held::new(tables, true);
    let (start, output) = (geometry.base(), PhysicalAddress(0x8000_0000));
    let attributes = Attributes::normal(Permissions::READ_WRITE);
    let bytes = 40 << 12;
    tables
        .map(start, output, bytes, attributes, Leaves::PAGES)
        .unwrap();
    let change = PermissionChange {
        writable: Some(false),
        ..PermissionChange::NONE
    };
    tables.protect(start, bytes, change, Holes::Refuse).unwrap();
    tables.unmap(start, bytes).unwrap();
    (&kept).assume_visible(start, bytes);
    host.take_events()
}

#[test]
fn a_sink_that_is_off_changes_nothing_and_records_nothing() {
    let on = Kept::default();
    let off = Kept {
        off: true,
        ..Kept::default()
    };
    assert_eq!(some_work(&on), some_work(&off));
    assert!(!on.events.take().is_empty());
    assert!(off.events.take().is_empty());

    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut fixmap = TracedFixmap::new(Still(geometry), &off);
    let slot = Slot::Level(Level::L3);
    let entries = Entries {
        first: 9,
        count: 3,
        descriptor: Descriptor(0x1003),
        step: 0x1000,
        barriers: true,
    };
    // SAFETY: nothing is mapped, and nothing is stored.
    unsafe {
        fixmap.open(slot, PhysicalAddress(0x9000));
        fixmap.store(slot, 7, Descriptor(3));
        fixmap.zero(slot);
        assert_eq!(fixmap.write(slot, &entries), entries.count);
    }
    assert!(off.events.take().is_empty());
}

#[test]
fn no_sink_has_no_size() {
    assert_eq!(size_of::<Traced<u64, NoSink>>(), size_of::<u64>());
    NoSink.assume_visible(VirtualAddress(0), 1);
}

/// The constants that a reader of a trace has for TLBIs are the instructions that page tables
/// request.
#[test]
fn each_tlbi_is_recorded_by_its_name() {
    use Regime::{El1And0, El2, El3};
    use TlbiScope::{AllLevels, LastLevel};
    let address = |scope, all_asids| TlbiOp::Address {
        operand: 5,
        scope,
        all_asids,
    };
    let range = |scope, all_asids| TlbiOp::Range {
        operand: 5,
        scope,
        all_asids,
    };
    let asid = TlbiOp::Asid { operand: 5 };
    for (regime, op, name) in [
        (El1And0, TlbiOp::All, "vmalle1is"),
        (El1And0, asid, "aside1is"),
        (El1And0, address(AllLevels, false), "vae1is"),
        (El1And0, address(AllLevels, true), "vaae1is"),
        (El1And0, address(LastLevel, false), "vale1is"),
        (El1And0, address(LastLevel, true), "vaale1is"),
        (El1And0, range(AllLevels, false), "rvae1is"),
        (El1And0, range(AllLevels, true), "rvaae1is"),
        (El1And0, range(LastLevel, false), "rvale1is"),
        (El1And0, range(LastLevel, true), "rvaale1is"),
        (El2, TlbiOp::All, "alle2is"),
        (El2, asid, "alle2is"),
        (El2, address(AllLevels, false), "vae2is"),
        (El2, address(LastLevel, true), "vale2is"),
        (El2, range(AllLevels, true), "rvae2is"),
        (El2, range(LastLevel, false), "rvale2is"),
        (El3, TlbiOp::All, "alle3is"),
        (El3, asid, "alle3is"),
        (El3, address(AllLevels, true), "vae3is"),
        (El3, address(LastLevel, false), "vale3is"),
        (El3, range(AllLevels, false), "rvae3is"),
        (El3, range(LastLevel, true), "rvale3is"),
    ] {
        let (encoding, operand) = op.instruction(regime);
        assert_eq!(System(encoding).name(), Some(name), "{regime:?} {op:?}");
        assert_eq!(operand, if name.contains("all") { 0 } else { 5 }, "{name}");
    }
    assert_eq!(granule_trace::BitChange::LEAVES, BitChange::LEAVES);
    assert_eq!(granule_trace::BitChange::VALID, Descriptor::VALID);
}
