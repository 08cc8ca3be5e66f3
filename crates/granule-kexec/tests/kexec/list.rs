//! The list in memory: written, found again, its digest, and every allocation that fails.

use crate::scene::{Memory, Pages, RAM, free, seal, write};
use crate::segments::{BASE, memory_map};
use crate::tables::transition;
use granule::arch::{PageSize, PhysicalAddress};
use granule_kexec::{
    Clean, ListError, ListHeader, ListMemory, ListRecord, MemoryMap, PhysRange, Refusal,
    RelocationList, Segment, Way, plan, verify,
};
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
const FREE: u64 = BASE + 30 * MIB;

/// Runs of one page each that nothing joins: as many copies.
fn scattered(page: PageSize, count: u64) -> Vec<PhysRange> {
    let bytes = page.bytes();
    let (first, all) = (RAM[1].start, RAM[1].bytes / bytes);
    // Two strides that never follow each other.
    (0..count)
        .map(|index| PhysRange::new(first + (index * 2 % all) * bytes, bytes))
        .collect()
}

fn segment<'a>(page: PageSize, pages: &'a [PhysRange]) -> Segment<'a> {
    let bytes = page.bytes() * pages.len() as u64;
    Segment {
        name: "image",
        destination: BASE,
        bytes,
        memory: bytes,
        pages,
        clean: Clean::All,
    }
}

pub fn way() -> Way {
    Way {
        uncached: false,
        el2: false,
        sctlr: 0x30d0_0800,
        sctlr_el2: 0x30c5_0830,
        entry: PhysicalAddress(BASE),
        tree: PhysicalAddress(BASE + 8 * MIB),
        code: PhysicalAddress(FREE + 16 * MIB),
    }
}

fn records_of(segments: &[Segment<'_>], memory_map: &MemoryMap<'_>) -> Vec<ListRecord> {
    let mut records = Vec::new();
    plan(segments, memory_map, |record| records.push(record)).unwrap();
    records
}

#[test]
fn a_written_list_reads_back_with_every_page_size() {
    // Records that fill a page exactly, one less, one more, two pages, for the smallest pages.
    let room = (4096 - 128) / 32 - 1;
    let next = 4096 / 32 - 1;
    let ends = [1, room - 1, room, room + 1, room + next];
    let counts = [&ends[..], &[room + next + 1, 3 * next]].concat();
    let counts = if cfg!(miri) { &counts[2..4] } else { &counts };
    for size in PageSize::ALL {
        let memory_map = MemoryMap {
            page: size,
            kept: &[],
            ..memory_map()
        };
        for &count in counts {
            let most = if size == PageSize::K4 {
                count
            } else {
                count.min(if cfg!(miri) { 3 } else { 60 })
            };
            let pages = scattered(size, most);
            let segments = [segment(size, &pages)];
            let mut memory = Memory::default();
            let mut allocator = Pages::new(size, FREE, 10);
            let mut list = write(&mut memory, &mut allocator, &segments, &memory_map).unwrap();
            assert_eq!(list.totals().records, most);
            let expected = 1 + most
                .saturating_sub((size.bytes() - 128) / 32 - 1)
                .div_ceil(size.bytes() / 32 - 1);
            assert_eq!(list.pages() as u64, expected);
            let mut found = BTreeSet::new();
            list.each_page(&memory, |page| assert!(found.insert(page.0)))
                .unwrap();
            assert_eq!(found, allocator.out);
            // Only in its pages is anything written.
            let page_of = |at: &u64| at & !(size.bytes() - 1);
            let mut words = memory.written.keys();
            assert!(words.all(|at| allocator.out.contains(&page_of(at))));

            let header = seal(&mut list, &mut memory, &way(), transition(), 0).unwrap();
            let mut read = Vec::new();
            let again = verify(&memory, list.head(), |record| read.push(*record));
            assert_eq!(again, Ok(header));
            assert_eq!(read, records_of(&segments, &memory_map));
            assert_eq!(free(list, &memory, &mut allocator), Ok(()));
            assert!(allocator.out.is_empty());
        }
    }
}

#[test]
fn every_allocation_that_fails_is_refused_and_takes_nothing() {
    let count = if cfg!(miri) { 150 } else { 400 };
    let pages = scattered(PageSize::K4, count);
    let segments = [segment(PageSize::K4, &pages)];
    let needed = 1 + (count as usize - 123).div_ceil(127);
    for lies in [false, true] {
        for budget in 0..needed {
            let mut memory = Memory::default();
            let mut allocator = Pages::new(PageSize::K4, FREE, 20);
            (allocator.budget, allocator.lies) = (budget, lies);
            let list = write(&mut memory, &mut allocator, &segments, &memory_map());
            let why = Refusal::OutOfPages {
                what: "list",
                needed,
            };
            assert_eq!(list, Err(why), "{budget} pages");
            assert_eq!((allocator.out.len(), allocator.budget), (0, budget));
            // Without a reservation not even a page is written to.
            assert!(lies || memory == Memory::default());
        }
    }
    let mut allocator = Pages::new(PageSize::K4, FREE, 20);
    allocator.budget = needed;
    let mut memory = Memory::default();
    assert!(write(&mut memory, &mut allocator, &segments, &memory_map()).is_ok());
}

#[test]
fn a_page_where_a_segment_is_to_be_is_refused() {
    let pages = scattered(PageSize::K4, 300);
    let segments = [segment(PageSize::K4, &pages)];
    for wrong in 0..3 {
        let mut allocator = Pages::new(PageSize::K4, FREE, 20);
        let at = allocator.free.len() - 1 - wrong;
        allocator.free[at] = BASE + 0x3000;
        let mut memory = Memory::default();
        let list = write(&mut memory, &mut allocator, &segments, &memory_map());
        let page = BASE + 0x3000;
        assert_eq!(list, Err(Refusal::PageInTheWay { what: "list", page }));
        assert!(allocator.out.is_empty());
    }
}

/// A sealed list of two pages.
fn sealed() -> (Memory, RelocationList, ListHeader) {
    let pages = scattered(PageSize::K4, 130);
    let segments = [segment(PageSize::K4, &pages)];
    let mut memory = Memory::default();
    let mut allocator = Pages::new(PageSize::K4, FREE, 4);
    let mut list = write(&mut memory, &mut allocator, &segments, &memory_map()).unwrap();
    let header = seal(&mut list, &mut memory, &way(), transition(), 0).unwrap();
    (memory, list, header)
}

#[test]
fn every_word_that_is_written_over_is_noticed() {
    let (mut memory, list, header) = sealed();
    let mut words: Vec<u64> = memory.written.keys().copied().collect();
    words.sort_unstable();
    // Words behind the end are not followed: the last page's link, where its room is not filled.
    let followed = |at: &u64| {
        let second = memory.load(list.head().0 + 4096 - 32).unwrap();
        *at < list.head().0 + 4096 || *at < second + (130 - 123 + 1) * 32
    };
    let words: Vec<u64> = words.into_iter().filter(followed).collect();
    assert_eq!(words.len() as u64, 512 + (130 - 123 + 1) * 4);
    let bits: &[u32] = if cfg!(miri) {
        &[63]
    } else {
        &[0, 1, 2, 5, 12, 30, 52, 63]
    };
    let step = if cfg!(miri) { 170 } else { 1 };
    for &at in words.iter().step_by(step) {
        let old = memory.read(at);
        for bit in bits {
            memory.write(at, old ^ 1 << bit);
            let found = verify(&memory, list.head(), |_| {});
            match found {
                Err(ListError::NoList { address }) => assert_eq!(at, address),
                Err(why) => assert_eq!(why.to_string().lines().count(), 1),
                Ok(found) => panic!("word {at:#x}, bit {bit}: {found:?}"),
            }
        }
        memory.write(at, old);
    }
    assert_eq!(verify(&memory, list.head(), |_| {}), Ok(header));
}

#[test]
fn a_list_that_leads_astray_ends() {
    let (mut memory, list, _) = sealed();
    let first = list.head().0 + 128;
    let second = list.head().0 + 4096 - 32;
    for (at, words) in [
        // A link to itself, to the header, to no RAM, to no word.
        (second, [second, 0, 0, 4]),
        (second, [list.head().0, 0, 0, 4]),
        (second, [0x10, 0, 0, 4]),
        (second, [list.head().0 + 4, 0, 0, 4]),
        (second, [u64::MAX - 7, 0, 0, 4]),
        // A record without bytes, one with half a page, one that wraps, kinds there are not.
        (first, [BASE, FREE, 0, 1]),
        (first, [BASE, FREE, 100, 1]),
        (first, [u64::MAX - 0xfff, FREE, 0x2000, 1]),
        (first, [BASE, FREE, 0x1000, 8]),
        (first, [BASE, FREE, 0x1000, 5]),
        (first, [0, 0, 0, 0]),
    ] {
        let before = memory.clone();
        for (index, word) in words.into_iter().enumerate() {
            memory.write(at + 8 * index as u64, word);
        }
        let found = verify(&memory, list.head(), |_| {});
        assert!(
            matches!(found, Err(ListError::Lost { .. })),
            "{words:x?}: {found:?}"
        );
        memory = before;
    }
    // Nothing at all.
    let address = FREE + 8 * MIB;
    let nothing = verify(&memory, PhysicalAddress(address), |_| {});
    assert_eq!(nothing, Err(ListError::NoList { address }));
    let nowhere = verify(&memory, PhysicalAddress(0), |_| {});
    assert_eq!(nowhere, Err(ListError::Lost { address: 0 }));
}

#[test]
fn no_page_is_given_back_if_the_links_are_wrong() {
    let mut allocator = Pages::new(PageSize::K4, FREE, 4);
    let mut wrong = |change: &dyn Fn(&mut Memory, u64, u64)| {
        let (mut memory, list, _) = sealed();
        let link = list.head().0 + 4096 - 32;
        let to = memory.read(link);
        change(&mut memory, link, to);
        let freed = free(list, &memory, &mut allocator);
        assert!(matches!(freed, Err(ListError::Lost { .. })), "{freed:?}");
    };
    wrong(&|memory, link, to| memory.write(link, to + 8));
    wrong(&|memory, link, to| memory.write(link, to + 4096));
    wrong(&|memory, link, _| memory.write(link + 24, 0));
    wrong(&|memory, link, _| memory.write(link + 24, 1));
    // A page that ends as the list does, and is not of the list.
    wrong(&|memory, link, to| {
        let other = to + 4096;
        memory.write(link, other);
        for word in 0..4 {
            let end = 4096 - 32 + 8 * word;
            let last = memory.read(to + end);
            memory.write(other + end, last);
        }
    });
}

#[test]
fn the_header_contains_what_it_is_given() {
    let (memory, mut list, header) = sealed();
    let transition = transition();
    assert_eq!(header.magic.to_le_bytes(), *b"granKEXC");
    assert_eq!(header.first, list.head().0 + 128);
    assert_eq!((header.entry, header.tree), (BASE, BASE + 8 * MIB));
    assert_eq!(header.code, way().code.0 + 2048);
    assert_eq!(
        (header.ttbr0, header.ttbr1),
        (transition.ttbr0().bits(), transition.ttbr1().bits())
    );
    assert_eq!(header.distance, transition.distance());
    assert_eq!((header.records, header.bytes_copied), (130, 130 * 4096));
    assert_eq!(header.bytes_cleaned, 130 * 4096);
    assert_eq!(memory.read(list.head().0 + 8), header.digest);
    for (uncached, el2) in [(true, false), (false, true), (true, true)] {
        let way = Way {
            uncached,
            el2,
            ..way()
        };
        let header = seal(&mut list, &mut memory.clone(), &way, transition, 0).unwrap();
        assert_eq!(header.flags, u64::from(uncached) | u64::from(el2) << 1);
    }
}
