//! Every way an operation can be refused, with the exact answer.

use crate::bench::{Bench, Setting};
use crate::changes::READ_ONLY;
use granule::arch::bbm::BbmLevel;
use granule::arch::tlbi::TlbiOp;
use granule::arch::{
    AnyPage, Attributes, Level, Page4K, Page16K, Page64K, PageChoice, PageSize, Permissions,
    PhysicalAddress, VaRange, VirtualAddress,
};
use granule::linear::LeafStats;
use granule::table::{Holes, Leaves, PageTables, PermissionChange, Piece, TableError, Visit};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host};
use granule_testing::shape::{LARGE, PLAIN};

const RW: Attributes = Attributes::normal(Permissions::READ_WRITE);

/// One line for people: what, where, and with numbers.
fn one_line(error: TableError, words: &[&str]) {
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.is_empty(), "{text:?}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not contain {word:?}");
    }
}

#[test]
fn misaligned() {
    let geometry = PLAIN.geometry(PageSize::K16, 47, VaRange::Lower);
    let mut bench = Bench::<Page16K>::new(&geometry, Setting::PRIVATE);
    let page = 0x4000;
    let tables = &mut bench.tables;
    // An address that other page sizes would take, and an odd one.
    for odd in [0x1000, 0x2000, page + 1] {
        let expected = Err(TableError::Misaligned {
            value: odd,
            page_size: PageSize::K16,
        });
        let at = VirtualAddress(odd);
        let good = VirtualAddress(page);
        let out = PhysicalAddress(page);
        assert_eq!(tables.map(at, out, page, RW, Leaves::LARGEST), expected);
        assert_eq!(tables.map(good, out, odd, RW, Leaves::LARGEST), expected);
        let odd_out = PhysicalAddress(odd);
        assert_eq!(
            tables.map(good, odd_out, page, RW, Leaves::LARGEST),
            expected
        );
        assert_eq!(tables.unmap(at, page), expected);
        assert_eq!(tables.unmap(good, odd), expected);
        assert_eq!(tables.protect(at, page, READ_ONLY, Holes::Skip), expected);
        assert_eq!(
            tables.visit(at, page, |_| Visit::EVERYTHING).map(|_| ()),
            expected
        );
        one_line(
            TableError::Misaligned {
                value: odd,
                page_size: PageSize::K16,
            },
            &["16k", &format!("{odd:#x}")],
        );
    }
    assert_eq!(bench.host.given_out(), 1);
}

#[test]
fn outside_the_space() {
    // Both halves: one page before and one after, the other half, and a range that runs out.
    let upper = PLAIN.geometry(PageSize::K4, 39, VaRange::Upper);
    let lower = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let top = 1_u64 << 39;
    let cases = [
        (upper, !(top - 1) - 0x1000, 0x1000),
        (upper, 0, 0x1000),
        (upper, 0u64.wrapping_sub(0x1000), 0x2000),
        (upper, !(top - 1), top + 0x1000),
        (upper, !(top - 1), 0u64.wrapping_sub(0x1000)),
        (lower, top, 0x1000),
        (lower, top - 0x1000, 0x2000),
        (lower, !(top - 1), 0x1000),
        (lower, 0x1000, 0u64.wrapping_sub(0x1000)),
    ];
    for (geometry, start, bytes) in cases {
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
        let start = VirtualAddress(start);
        let error = TableError::OutsideSpace {
            start,
            bytes,
            va_bits: 39,
        };
        let out = PhysicalAddress(0);
        let tables = &mut bench.tables;
        assert_eq!(
            tables.map(start, out, bytes, RW, Leaves::LARGEST),
            Err(error)
        );
        assert_eq!(tables.unmap(start, bytes), Err(error));
        let protected = tables.protect(start, bytes, READ_ONLY, Holes::Skip);
        assert_eq!(protected, Err(error));
        let visited = tables.visit(start, bytes, |_| Visit::EVERYTHING);
        assert_eq!(visited.map(|_| ()), Err(error));
        if bytes == 0x1000 {
            assert_eq!(tables.query(start), None);
        }
        one_line(error, &["39-bit", &start.to_string()]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "8192 entries take minutes; 4K runs the same code")]
fn output_too_large() {
    // 40 bits of physical address; then 52, where the format holds them.
    let small = granule_testing::shape::Cpu {
        parange: 2,
        ..PLAIN
    };
    for (cpu, va_bits, pa_bits) in [(small, 48, 40), (PLAIN, 48, 48), (LARGE, 52, 52)] {
        let geometry = cpu.geometry(PageSize::K64, va_bits, VaRange::Lower);
        let mut bench = Bench::<Page64K>::new(&geometry, Setting::PRIVATE);
        let top = 1_u64 << pa_bits;
        let page = 0x1_0000;
        for (output, bytes) in [(top, page), (top - page, 2 * page), (!(page - 1), page)] {
            let error = TableError::OutputTooLarge {
                start: PhysicalAddress(output),
                bytes,
                pa_bits,
            };
            let answer = bench.tables.map(
                VirtualAddress(page),
                PhysicalAddress(output),
                bytes,
                RW,
                Leaves::LARGEST,
            );
            assert_eq!(answer, Err(error));
            one_line(error, &[&pa_bits.to_string(), &format!("{output:#x}")]);
        }
        // The last page there is can be had.
        bench.lay(page, top - page, page, RW, Leaves::LARGEST);
    }
}

#[test]
fn already_mapped() {
    let geometry = LARGE.geometry(PageSize::K4, 48, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let block = 0x20_0000;
    bench.lay(4 * block, 0x4000_0000, block, RW, Leaves::LARGEST);
    bench.lay(block + 0x3000, 0x1000, 0x1000, RW, Leaves::PAGES);
    // Over a block from below, inside it, and over a page in a table that would become a block.
    for (offset, bytes, at) in [
        (3 * block, 4 * block, 4 * block),
        (4 * block + 0x5000, 0x1000, 4 * block + 0x5000),
        (block, block, block + 0x3000),
        (0, 1 << 30, block + 0x3000),
    ] {
        let answer = bench.map(offset, 0, bytes, RW, Leaves::LARGEST);
        let address = bench.reference.address(at);
        let error = TableError::AlreadyMapped { address };
        assert_eq!(answer, Err(error));
        one_line(error, &["already mapped", &address.to_string()]);
    }
}

#[test]
fn not_mapped() {
    let geometry = LARGE.geometry(PageSize::K16, 47, VaRange::Upper);
    let mut bench = Bench::<Page16K>::new(&geometry, Setting::LIVE);
    bench.lay(0x4000, 0x4000, 0x8000, RW, Leaves::PAGES);
    bench.lay(0x1_0000, 0, 0x4000, RW, Leaves::PAGES);
    for (offset, bytes, at) in [
        (0, 0x8000, 0),
        (0x4000, 0x10000, 0xc000),
        (1 << 40, 0x4000, 1 << 40),
    ] {
        let address = bench.reference.address(at);
        let answer = bench.protect(offset, bytes, READ_ONLY, Holes::Refuse);
        let error = TableError::NotMapped { address };
        assert_eq!(answer, Err(error));
        one_line(error, &["not mapped", &address.to_string()]);
        bench
            .protect(offset, bytes, READ_ONLY, Holes::Skip)
            .unwrap();
    }
}

#[test]
fn inside_a_leaf() {
    // A block of each level and a group of each size that 4K pages have, cut at both ends.
    let geometry = LARGE.geometry(PageSize::K4, 52, VaRange::Upper);
    let cases: [(u64, Level, bool); 7] = [
        (16 << 12, Level::L3, true),
        (1 << 21, Level::L2, false),
        (16 << 21, Level::L2, true),
        (1 << 30, Level::L1, false),
        (16 << 30, Level::L1, true),
        (1 << 39, Level::L0, false),
        (2 << 39, Level::L0, false),
    ];
    let count = if cfg!(miri) { 2 } else { cases.len() };
    for (bytes, top, contiguous) in cases.into_iter().take(count) {
        let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
        let leaf = if bytes == 2 << 39 { 1 << 39 } else { bytes };
        let leaves = Leaves { top, contiguous };
        bench.lay(bytes, bytes, bytes, RW, leaves);
        for (start, length, edge) in [
            (bytes + 0x1000, bytes, bytes + 0x1000),
            (0, bytes + 0x1000, bytes + 0x1000),
            (bytes, leaf - 0x1000, bytes + leaf - 0x1000),
        ] {
            let error = TableError::InsideLeaf {
                edge: bench.reference.address(edge),
                leaf: bench.reference.address(bytes),
                leaf_bytes: leaf,
                // Pages, or a page inside a block.
                takes: if top == Level::L3 {
                    BbmLevel::Level1
                } else {
                    BbmLevel::Level2
                },
            };
            assert_eq!(bench.unmap(start, length), Err(error));
            let answer = bench.protect(start, length, READ_ONLY, Holes::Skip);
            assert_eq!(answer, Err(error));
            one_line(error, &["split", "set_bbm", &format!("{leaf:#x}")]);
        }
        bench.unmap(bytes, bytes).unwrap();
    }
}

#[test]
fn unsorted() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Upper);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::LIVE);
    let page = 0x1000;
    let piece = |bench: &Bench<Page4K>, at: u64, pages: u64| {
        bench.piece(at * page, 0, pages * page, RW, Leaves::PAGES)
    };
    for second in [0, 3, 5] {
        // Before, at the start of, and inside the first.
        let pieces = [piece(&bench, 3, 4), piece(&bench, second, 1)];
        let error = TableError::Unsorted {
            address: pieces[1].start,
        };
        assert_eq!(bench.map_pieces(&pieces), Err(error));
        one_line(error, &[&pieces[1].start.to_string()]);
    }
    // One piece that is in the way refuses all of them.
    let pieces = [piece(&bench, 1, 1), piece(&bench, 7, 1)];
    bench.map_pieces(&pieces[1..]).unwrap();
    let error = TableError::AlreadyMapped {
        address: pieces[1].start,
    };
    assert_eq!(bench.map_pieces(&pieces), Err(error));
    // They may touch.
    let pieces = [
        piece(&bench, 1, 1),
        piece(&bench, 2, 3),
        piece(&bench, 5, 2),
    ];
    bench.map_pieces(&pieces).unwrap();
}

#[test]
fn wrong_page_size() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let host = Host::new(&geometry, 0x4000_0000, 4);
    let capabilities = Setting::PRIVATE.capabilities();
    let error = TableError::WrongPageSize {
        geometry: PageSize::K4,
        page: PageSize::K64,
    };
    let environment = host::environment(&host, capabilities);
    let answer = PageTables::<Page64K, _>::new(geometry, environment);
    assert_eq!(answer.err(), Some(error));
    let environment = host::environment(&host, capabilities);
    // SAFETY: the geometry is refused, so the root is never looked at.
    let answer = unsafe {
        PageTables::<Page64K, _>::from_root(PhysicalAddress(0x4000_0000), geometry, environment)
    };
    assert_eq!(answer.err(), Some(error));
    assert_eq!(host.given_out(), 0);
    one_line(error, &["4k", "64k"]);
}

#[test]
fn nothing_at_all() {
    // Ranges of no bytes are fine everywhere and do nothing.
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    bench.lay(0x1000, 0x1000, 0, RW, Leaves::LARGEST);
    bench.unmap(0x1000, 0).unwrap();
    bench.protect(0x1000, 0, READ_ONLY, Holes::Refuse).unwrap();
    let nothing = PermissionChange::default();
    bench
        .protect(0x1000, 0x1000, nothing, Holes::Refuse)
        .unwrap();
    assert_eq!(bench.host.given_out(), 1);
}

#[test]
fn a_tree_is_taken_over_from_its_root() {
    let geometry = LARGE.geometry(PageSize::K4, 52, VaRange::Lower);
    let mut bench = Bench::<Page4K>::new(&geometry, Setting::PRIVATE);
    bench.lay(0x1000, 0x1000, 0x3000, RW, Leaves::PAGES);
    let before = bench.dump();
    let Held::Private(tables) = bench.tables else {
        panic!("the setting is private");
    };
    let (root, environment) = tables.into_parts();
    // SAFETY: the root and environment are those of a tree that nothing else uses any more.
    let taken = unsafe { PageTables::<Page4K, _>::from_root(root, geometry, environment) };
    bench.tables = Held::Private(taken.unwrap());
    assert_eq!(bench.dump(), before);
    bench.unmap(0x1000, 0x3000).unwrap();
    assert_eq!(bench.host.given_out(), 1);
}

#[test]
fn a_census_passes_over_what_cannot_be_mapped() {
    let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
    let (base, page) = (geometry.base().0, 4096);
    let piece = |offset: u64, bytes: u64| Piece {
        start: VirtualAddress(base.wrapping_add(offset)),
        output: PhysicalAddress(0),
        bytes,
        attributes: RW,
        leaves: Leaves::PAGES,
    };
    let good = [piece(8 * page, page), piece(10 * page, 2 * page)];
    let all = [
        good[0],
        // Before what there was, over the end of the half, over the end of all addresses,
        // elsewhere.
        piece(7 * page, page),
        piece(8 * page, page),
        good[1],
        piece(geometry.span() - page, 2 * page),
        piece(20 * page, u64::MAX - page + 1),
        piece(geometry.span(), page),
        piece(12 * page, 0),
    ];
    let (wanted, found) = (
        LeafStats::new(&geometry, &good),
        LeafStats::new(&geometry, &all),
    );
    assert_eq!(found, wanted);
    assert_eq!((found.bytes, found.tables), (3 * page, 3));
}

#[test]
fn a_tree_keeps_its_settings_when_another_cannot_begin() {
    settings_are_kept::<Page4K>();
    // The environment's pages have a size even where the type has none.
    settings_are_kept::<AnyPage>();
}

fn settings_are_kept<P: PageChoice>() {
    let geometry = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let other_size = PLAIN.geometry(PageSize::K16, 47, VaRange::Lower);
    let own = Attributes {
        global: false,
        ..Attributes::normal(Permissions::READ_WRITE)
    };
    for deferred in [false, true] {
        let host = Host::new(&geometry, 0x4000_0000, 16);
        let environment = host::environment(&host, Setting::LIVE.capabilities());
        let mut tables = PageTables::<P, _>::new(geometry, environment).unwrap();
        let group = VirtualAddress(0x1_0000);
        let output = PhysicalAddress(0x1_0000);
        tables
            .map(group, output, 0x1_0000, own, Leaves::LARGEST)
            .unwrap();
        // SAFETY: no CPU walks the tables, and all of their leaves are of one address space.
        unsafe {
            tables.set_bbm(BbmLevel::Level1);
            tables.set_asid(Some(3));
            if deferred {
                tables.set_deferred_tlbi(true);
            }
        }
        let (error, tables) = tables.begin_another(other_size).err().unwrap();
        assert!(matches!(error, TableError::WrongPageSize { .. }));
        // SAFETY: no CPU walks the tables.
        let mut live = unsafe { tables.make_live() };
        host.take_events();
        let read_only = READ_ONLY;
        // SAFETY: nobody uses the memory.
        let changed = unsafe { live.changes() };
        // At level 0 the group could not be split.
        assert_eq!(
            changed.protect(group, 0x1000, read_only, Holes::Refuse),
            Ok(())
        );
        let tlbis: Vec<Event> = host.take_events();
        let tlbis = tlbis.iter().filter_map(|event| match event {
            Event::Tlbi(TlbiOp::Address { operand, .. }) => Some(operand >> 48),
            _ => None,
        });
        let expected: &[u64] = if deferred { &[] } else { &[3] };
        assert_eq!(tlbis.collect::<Vec<_>>(), expected);
    }
}
