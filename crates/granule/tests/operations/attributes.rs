//! The exact steps of changes of attributes and of harvests, and their errors. Their effect on
//! random trees is compared in [`random`](crate::random).

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule::arch::{
    Attributes, MemoryType, Page4K, PageSize, Permissions, Shareability, VaRange, VirtualAddress,
};
use granule::table::{Harvest, Holes, Leaves, TableError, Visibility};
use granule_testing::host::Event;
use granule_testing::shape::{LARGE, PLAIN};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

fn device(attributes: &mut Attributes) {
    attributes.memory = MemoryType::Device;
}

/// Makes pages dirty whose dirty state hardware manages.
fn dirty(attributes: &mut Attributes) {
    attributes.permissions.writable |= attributes.permissions.dirty_modifier;
}

/// The steps as letters: a store or change of one entry, DSB ISHST, TLBI, DSB ISH, ISB.
fn steps(events: &[Event]) -> String {
    let letter = |event: &Event| match event {
        Event::Store { count: 1, .. } | Event::Change { .. } => 's',
        Event::DsbIshst => 'd',
        Event::Tlbi(_) => 't',
        Event::DsbIsh => 'D',
        Event::Isb => 'i',
        other => panic!("{other:x?}"),
    };
    events.iter().map(letter).collect()
}

/// Live tables with 40 pages of 4K at 64 KiB, in two groups and eight single pages, without range
/// operations.
fn bench(attributes: Attributes) -> (Bench<Page4K>, VirtualAddress) {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let setting = Setting::LIVE.range(false);
    let mut bench = Bench::<Page4K>::new(&geometry, setting);
    bench.lay(0x1_0000, 0x1_0000, 40 << 12, attributes, Leaves::LARGEST);
    (bench, VirtualAddress(0x1_0000))
}

#[test]
fn another_memory_type_is_one_break_for_the_whole_range() {
    let (mut bench, start) = bench(RW);
    let tables = &mut bench.tables;
    // The last three pages.
    let last = VirtualAddress(start.0 + (37 << 12));
    tables.modify(last, 0x3000, Holes::Refuse, device).unwrap();
    let events = bench.host.take_events();
    assert_eq!(steps(&events), "sssdtttDisssdi");
    // Broken entries are invalid, and each is one whole store.
    for event in &events[..3] {
        let &Event::Change {
            descriptor,
            visibility,
            ..
        } = event
        else {
            panic!("{event:?}")
        };
        assert_eq!((descriptor & 1, visibility), (0, Visibility::Live));
    }
    // One of them has the type already, and is left alone.
    let one = VirtualAddress(last.0 - 0x1000);
    let tables = &mut bench.tables;
    tables.modify(one, 0x2000, Holes::Refuse, device).unwrap();
    assert_eq!(steps(&bench.host.take_events()), "sdtDisdi");
    let tables = &mut bench.tables;
    tables.modify(one, 0x4000, Holes::Refuse, device).unwrap();
    assert_eq!(bench.host.take_events(), []);
    // The whole group: every member is broken and invalidated, and keeps the hint.
    let tables = &mut bench.tables;
    tables
        .modify(start, 0x1_0000, Holes::Refuse, device)
        .unwrap();
    let expected = format!(
        "{}d{}Di{}di",
        "s".repeat(16),
        "t".repeat(16),
        "s".repeat(16)
    );
    assert_eq!(steps(&bench.host.take_events()), expected);
    let found = bench.tables.query(start).unwrap();
    assert!(found.contiguous);
    assert_eq!(found.attributes.memory, MemoryType::Device);
}

#[test]
fn tlbis_that_are_left_to_the_caller_do_not_leave_out_those_of_a_break() {
    let (mut bench, start) = bench(RW);
    let last = VirtualAddress(start.0 + (39 << 12));
    // SAFETY: no CPU walks the tables.
    unsafe { bench.tables.set_deferred_tlbi(true) };
    let tables = &mut bench.tables;
    tables
        .modify(last, 0x1000, Holes::Refuse, |page| page.accessed = false)
        .unwrap();
    assert_eq!(steps(&bench.host.take_events()), "sdi");
    let tables = &mut bench.tables;
    tables.modify(last, 0x1000, Holes::Refuse, device).unwrap();
    assert_eq!(steps(&bench.host.take_events()), "sdtDisdi");
    let tables = &mut bench.tables;
    let read_only = READ_ONLY;
    tables
        .protect(last, 0x1000, read_only, Holes::Refuse)
        .unwrap();
    assert_eq!(steps(&bench.host.take_events()), "sdi");
}

#[test]
fn the_access_flag_changes_in_place() {
    let (mut bench, start) = bench(RW);
    let last = VirtualAddress(start.0 + (38 << 12));
    for (accessed, expected) in [(false, "ssdttDi"), (true, "ssdi")] {
        let tables = &mut bench.tables;
        tables
            .modify(last, 0x2000, Holes::Refuse, |page| page.accessed = accessed)
            .unwrap();
        assert_eq!(steps(&bench.host.take_events()), expected, "{accessed}");
        let found = bench.tables.query(last).unwrap();
        assert_eq!(found.attributes.accessed, accessed);
    }
}

/// No TLB holds an entry with a clear access flag, but it may hold the block: hardware may have set
/// the flag before the split (TCR.HA), or a harvest cleared it without an invalidation. Later TLBIs
/// for pages have the hint of level 3, which does not reach a block (RSQXYZ).
#[test]
fn a_block_that_is_split_for_an_access_flag_is_invalidated_at_every_level() {
    for valid in [true, false] {
        let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
        let setting = Setting::LIVE.level_hint(true).bbm(2);
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        let unused = Attributes {
            accessed: false,
            ..RW
        };
        bench.lay(0, 0, 1 << 21, unused, Leaves::LARGEST);
        if !valid {
            bench.set_invalid(0, 1 << 21).unwrap();
        }
        let page = VirtualAddress(0x5000);
        bench
            .tables
            .modify(page, 0x1000, Holes::Refuse, |page| page.accessed = true)
            .unwrap();
        let events = bench.host.take_events();
        let operations = events.iter().filter_map(|event| match event {
            Event::Tlbi(op) => Some(*op),
            _ => None,
        });
        // An address of the block, without a hint. A block that is invalid is in no TLB.
        let expected = TlbiOp::Address {
            operand: 0,
            scope: TlbiScope::LastLevel,
            all_asids: true,
        };
        let expected: &[TlbiOp] = if valid { &[expected] } else { &[] };
        assert_eq!(operations.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn private_tables_change_in_one_store_for_each_leaf() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    bench.lay(0, 0, 0x8000, RW, Leaves::PAGES);
    let start = VirtualAddress(0x2000);
    let tables = &mut bench.tables;
    tables
        .modify(start, 0x5000, Holes::Refuse, |page| {
            page.memory = MemoryType::NormalNonCacheable;
            page.shareability = Shareability::Outer;
            page.accessed = false;
        })
        .unwrap();
    assert_eq!(steps(&bench.host.take_events()), "sssss");
    let found = bench.tables.query(start).unwrap().attributes;
    assert_eq!(found.memory, MemoryType::NormalNonCacheable);
    assert_eq!(found.shareability, Shareability::Outer);
    assert!(!found.accessed);
}

#[test]
fn with_lpa2_shareability_is_no_part_of_a_leaf() {
    // Bits 9:8 are address bits there.
    let geometry = LARGE.geometry(PageSize::K4, 52, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let output = 3 << 50;
    bench.lay(0, output, 0x1000, RW, Leaves::PAGES);
    let start = VirtualAddress(0);
    let tables = &mut bench.tables;
    tables
        .modify(start, 0x1000, Holes::Refuse, |page| {
            page.shareability = Shareability::None;
        })
        .unwrap();
    assert_eq!(bench.host.take_events(), []);
    assert_eq!(bench.tables.query(start).unwrap().output.0, output);
}

#[test]
fn a_break_that_would_cut_a_leaf_is_refused_or_runs_out_unchanged() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let block = 2 << 20;
    for bbm in [0, 2] {
        let setting = Setting::LIVE.bbm(bbm);
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        bench.lay(block, block, 2 * block, RW, Leaves::LARGEST);
        let from = 2 * block - 0x1000;
        let dump = bench.dump();
        let start = VirtualAddress(from);
        for budget in 0..2 {
            bench.host.set_budget(budget);
            let error = if bbm == 0 {
                TableError::InsideLeaf {
                    edge: start,
                    leaf: VirtualAddress(block),
                    leaf_bytes: block,
                    takes: BbmLevel::Level2,
                }
            } else {
                TableError::OutOfTables { needed: 2 }
            };
            let tables = &mut bench.tables;
            let found = tables.modify(start, 0x2000, Holes::Refuse, device);
            assert_eq!(found, Err(error));
            assert_eq!(bench.dump(), dump);
            let hole = TableError::NotMapped {
                address: VirtualAddress(3 * block),
            };
            let tables = &mut bench.tables;
            let found = tables.modify(start, 3 * block, Holes::Refuse, device);
            assert_eq!(found, Err(hole));
            assert_eq!(bench.dump(), dump);
            bench.host.take_events();
        }
        bench.host.set_budget(2);
        let found = bench.tables.modify(start, 0x2000, Holes::Refuse, device);
        assert_eq!(found.is_ok(), bbm == 2);
    }
}

#[test]
fn a_harvest_reports_whole_leaves_once_and_invalidates_once() {
    let (mut bench, start) = bench(RW);
    let mut found = Vec::new();
    // From inside the first group to inside the second one; what is beside them stays.
    let middle = VirtualAddress(start.0 + 0x3000);
    let what = Harvest::Accessed { invalidate: true };
    let mut harvest = |bench: &mut Bench<Page4K>, what, expected: &str| {
        found.clear();
        let report = |start: VirtualAddress, bytes| found.push((start.0, bytes));
        bench.tables.harvest(middle, 0xe000, what, report).unwrap();
        assert_eq!(steps(&bench.host.take_events()), expected);
        found.clone()
    };
    let all = format!("{}d{}Di", "s".repeat(32), "t".repeat(32));
    assert_eq!(harvest(&mut bench, what, &all), [(0x1_0000, 0x2_0000)]);
    // Nothing is noted any more.
    assert_eq!(harvest(&mut bench, what, ""), []);
    assert_eq!(harvest(&mut bench, Harvest::Dirty, ""), []);
    // Hardware notes one member for the group (RXDPXQ).
    let table = bench.tree.tables.iter().find(|t| t.level == 3).unwrap();
    let word = bench.host.word(table.address, 0x2a);
    bench.host.set_word(table.address, 0x2a, word | 1 << 10);
    let what = Harvest::Accessed { invalidate: false };
    assert_eq!(harvest(&mut bench, what, "s"), [(0x2_0000, 0x1_0000)]);
}

#[test]
fn changes_of_the_members_of_a_split_group_are_published() {
    // Hardware noted a write in the fourth member alone, and it holds for all of the group. So the
    // page that is to become dirty is dirty once the group is split, and nothing more changes.
    let managed = Attributes::normal(Permissions {
        dirty_modifier: true,
        ..Permissions::READ_WRITE
    });
    let (mut bench, start) = bench(managed);
    // SAFETY: no CPU walks the tables.
    unsafe { bench.tables.set_bbm(BbmLevel::Level1) };
    let table = bench.tree.tables.iter().find(|t| t.level == 3).unwrap();
    for index in (0x10..0x20).filter(|index| *index != 0x13) {
        let word = bench.host.word(table.address, index);
        bench.host.set_word(table.address, index, word | 1 << 7);
    }
    let page = VirtualAddress(start.0 + 0x5000);
    bench
        .tables
        .modify(page, 0x1000, Holes::Refuse, dirty)
        .unwrap();
    let (hints, pages) = ("s".repeat(16), "t".repeat(16));
    let expected = format!("{hints}d{pages}Di{}di", "s".repeat(15));
    assert_eq!(steps(&bench.host.take_events()), expected);
}

/// A note of hardware in any member holds for all (RXDPXQ), so the members of a group change alike.
#[test]
fn the_members_of_a_group_change_by_the_notes_of_all() {
    let managed = Attributes {
        accessed: false,
        ..Attributes::normal(Permissions {
            dirty_modifier: true,
            ..Permissions::READ
        })
    };
    let (mut bench, start) = bench(managed);
    let table = bench.tree.tables.iter().find(|t| t.level == 3).unwrap();
    let table = table.address;
    let dirty = 1 << 7;
    // Hardware noted a write in one member of the second group.
    let noted = bench.host.word(table, 0x23) & !dirty | 1 << 10;
    bench.host.set_word(table, 0x23, noted);
    let groups = |bench: &mut Bench<Page4K>, modify: fn(&mut Attributes), left: u64| {
        bench
            .tables
            .modify(start, 0x2_0000, Holes::Refuse, modify)
            .unwrap();
        [0x10, 0x20].map(|first| {
            let word = |index: u64| bench.host.word(table, index as usize) & !(index << 12);
            let words: Vec<u64> = (first..first + 0x10).map(word).collect();
            let alike = words.iter().all(|word| (word ^ words[0]) & !left == 0);
            assert!(alike, "{words:x?}");
            words[0]
        })
    };
    // What hardware notes besides stays where it was noted. An access flag is set in all members, even if
    // one has it.
    let marked = groups(
        &mut bench,
        |leaf| {
            leaf.accessed |= leaf.permissions.writable;
            leaf.permissions.software = if leaf.permissions.writable { 5 } else { 3 };
        },
        dirty,
    );
    assert_eq!(marked.map(|word| word >> 55 & 0b1111), [3, 5]);
    assert_eq!(marked.map(|word| word >> 10 & 1), [0, 1]);
    // What the first member lost decides about the others too: in place, and by break-before-make.
    let changes: [fn(&mut Attributes); 2] = [
        |leaf| {
            if core::mem::take(&mut leaf.accessed) {
                leaf.permissions.software = 6;
            }
        },
        |leaf| {
            if core::mem::take(&mut leaf.accessed) {
                leaf.memory = MemoryType::Device;
            }
        },
    ];
    for (change, expected) in changes.into_iter().zip([6 << 55, 1 << 2]) {
        let accessed = bench.host.word(table, 0x10) | 1 << 10;
        bench.host.set_word(table, 0x10, accessed);
        let [first, _] = groups(&mut bench, change, dirty);
        assert_eq!(first & expected, expected, "{first:x}");
    }
    let unmanaged = groups(
        &mut bench,
        |leaf| leaf.permissions.dirty_modifier = false,
        0,
    );
    assert_eq!(
        unmanaged.map(|word| word & dirty),
        [dirty, 0],
        "writable, as noted"
    );
}

/// A broken leaf would become an entry of another kind by `set_valid`.
#[test]
fn a_panic_in_a_modify_leaves_no_leaf_broken() {
    let mut late = 0;
    for calls in 1..20 {
        let (mut bench, start) = bench(RW);
        let left = Cell::new(calls);
        let tables = &mut bench.tables;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            tables.modify(start, 40 << 12, Holes::Refuse, |leaf| {
                left.set(left.get() - 1);
                assert_ne!(left.get(), 0, "no more calls");
                leaf.memory = MemoryType::Device;
            })
        }));
        let events = bench.host.take_events();
        late += u32::from(panicked.is_err() && !events.is_empty());
        let mut bytes = 0;
        let all = bench
            .tables
            .for_each(start, 40 << 12, |leaf| bytes += leaf.bytes);
        assert_eq!((all, bytes), (Ok(()), 40 << 12), "{calls}");
        let steps = steps(&events);
        let flushed = steps.ends_with("di") || steps.ends_with("Di") || steps.is_empty();
        assert!(flushed, "{calls}: {steps}");
    }
    assert!(late > 3, "{late} panics after a store");
}

#[test]
fn an_empty_range_inside_a_leaf_changes_nothing() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let dirty = Attributes {
        permissions: Permissions {
            dirty_modifier: true,
            ..Permissions::READ_WRITE
        },
        ..RW
    };
    for setting in [Setting::PRIVATE, Setting::LIVE] {
        let mut bench = Bench::<Page4K>::new(&geometry, setting);
        bench.lay(0, 0, 2 << 20, dirty, Leaves::LARGEST);
        bench.host.take_events();
        let inside = VirtualAddress(0x1000);
        for holes in [Holes::Refuse, Holes::Skip] {
            let tables = &mut bench.tables;
            let changed = tables.modify(inside, 0, holes, device);
            assert_eq!(changed, Ok(()));
            assert_eq!(tables.query(inside).unwrap().bytes, 2 << 20);
        }
        assert_eq!(bench.host.take_events(), []);
    }
}

#[test]
fn a_panic_in_a_harvest_leaves_no_stale_entry() {
    let dirty = Attributes {
        permissions: Permissions {
            dirty_modifier: true,
            ..Permissions::READ_WRITE
        },
        ..RW
    };
    let (mut bench, start) = bench(dirty);
    let pages = VirtualAddress(start.0 + (37 << 12));
    bench.host.take_events();
    let tables = &mut bench.tables;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        tables.harvest(pages, 0x1000, Harvest::Dirty, |_, _| panic!("on purpose"))
    }));
    assert!(panicked.is_err());
    assert_eq!(steps(&bench.host.take_events()), "sdtDi");
}
