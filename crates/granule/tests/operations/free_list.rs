//! The allocator of table pages that is kept in the pages: against a set of addresses, and below
//! page tables that run out of pages.

use granule::arch::{
    Attributes, Dispatch, Geometry, Page, Page4K, Page64K, PageSize, Permissions, PhysicalAddress,
    VaRange, VirtualAddress,
};
use granule::forward;
use granule::linear::Arena;
use granule::table::{
    FreeList, FreedTable, Leaves, Maintenance, PageTables, PhysToVirt, Reservation,
    TableEnvironment, TableError, Visit,
};
use granule_testing::{cases, shape};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Where the memory of these tests lies for the allocator.
const FIRST: u64 = 0x4000_0000;

/// Pages of host memory that stand for physical memory from `FIRST` on.
#[derive(Clone, Copy)]
struct Room {
    words: *mut u64,
    count: usize,
}

impl Room {
    /// No memory.
    const NONE: Self = Self {
        words: std::ptr::null_mut(),
        count: 0,
    };

    fn new(pages: u64, size: PageSize) -> Self {
        // What memory holds before it is given to an allocator means nothing. Miri takes minutes to
        // write words that are not zero.
        let held = if cfg!(miri) {
            0
        } else {
            0x5555_5555_5555_5555_u64
        };
        let words = vec![held; (pages * size.bytes() / 8) as usize];
        let count = words.len();
        Self {
            words: Box::into_raw(words.into_boxed_slice()).cast(),
            count,
        }
    }

    /// Ends the room's memory.
    fn end(self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.words, self.count);
        // SAFETY: the pointer and length are those of `Box::into_raw`, and each test ends a room
        // once, after its last use.
        drop(unsafe { Box::from_raw(slice) });
    }
}

// SAFETY: the words exist until `end`; an address outside them panics.
unsafe impl PhysToVirt for Room {
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        let word = (table.0.wrapping_sub(FIRST) / 8) as usize;
        assert!(word < self.count, "{table} is not a page of the allocator");
        self.words.wrapping_add(word)
    }
}

/// One call of the allocator. Numbers pick among what is there, so that every sequence is valid.
#[derive(Clone, Debug)]
enum Call {
    /// Give the next so many pages, or what is left of them, with a part of a page at both ends.
    Add(u64),
    /// Leave out so many pages, which stay somebody else's.
    Skip(u64),
    Allocate(usize),
    /// Take so many pages in a row, a power of two, aligned to their bytes.
    AllocateAligned(usize),
    Reserve(usize),
    /// Free so many of the pages that are in use, from a place on, upwards or downwards.
    Free(usize, usize, bool),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        2 => (0..9u64).prop_map(Call::Add),
        1 => (0..3u64).prop_map(Call::Skip),
        4 => (0..7usize).prop_map(Call::Allocate),
        4 => (0..4u32).prop_map(|power| Call::AllocateAligned(1 << power)),
        1 => (0..40usize).prop_map(Call::Reserve),
        4 => (any::<usize>(), 1..6usize, any::<bool>())
            .prop_map(|(at, count, up)| Call::Free(at, count, up)),
    ]
}

const PAGES: u64 = 48;

fn sequence(size: PageSize, calls: &[Call]) {
    let page = size.bytes();
    let room = Room::new(PAGES, size);
    let mut list = FreeList::new(room, size);
    let (mut free, mut used) = (BTreeSet::new(), BTreeSet::new());
    let mut next = FIRST;
    let end = FIRST + PAGES * page;
    for call in calls {
        match *call {
            Call::Add(pages) => {
                let until = (next + pages * page).min(end);
                // Rounded inward: the parts of pages at both ends are not the allocator's.
                let from = if next > FIRST && pages > 1 {
                    next - 8
                } else {
                    next
                };
                // SAFETY: each page of the room is given once.
                unsafe { list.add(PhysicalAddress(from), PhysicalAddress(until + page / 2)) };
                free.extend((next..until).step_by(page as usize));
                next = until;
            }
            Call::Skip(pages) => next = (next + pages * page).min(end),
            Call::Allocate(most) => match list.allocate_run(most) {
                None => assert!(free.is_empty() || most == 0),
                Some(run) => {
                    assert!(run.count >= 1 && run.count <= most);
                    for index in 0..run.count as u64 {
                        let address = run.first.0 + index * page;
                        assert!(free.remove(&address), "{address:#x} was not free");
                        used.insert(address);
                        scribble(room, address, page);
                    }
                }
            },
            Call::AllocateAligned(count) => match list.allocate_aligned(count) {
                // Runs that adjoin may be apart in the list, so a larger group need not be found.
                None => assert!(free.is_empty() || count > 1, "{free:x?} are free"),
                Some(first) => {
                    let bytes = count as u64 * page;
                    assert_eq!(first.0 % bytes, 0, "{first} of {count} pages");
                    for address in (first.0..first.0 + bytes).step_by(page as usize) {
                        assert!(free.remove(&address), "{address:#x} was not free");
                        used.insert(address);
                        scribble(room, address, page);
                    }
                }
            },
            Call::Reserve(tables) => {
                let answer = if tables <= free.len() {
                    Reservation::Granted
                } else {
                    Reservation::Refused
                };
                assert_eq!(list.reserve(tables), answer);
            }
            Call::Free(at, count, up) => {
                let all: Vec<u64> = used.iter().copied().collect();
                let at = if all.is_empty() { 0 } else { at % all.len() };
                let mut some: Vec<u64> = all.into_iter().skip(at).take(count).collect();
                if !up {
                    some.reverse();
                }
                for address in some {
                    used.remove(&address);
                    free.insert(address);
                    // SAFETY: no page of this list is ever a table.
                    list.free(unsafe { FreedTable::unreachable(PhysicalAddress(address)) });
                }
            }
        }
        assert_eq!(list.available(), free.len() as u64, "after {call:?}");
    }
    while let Some(run) = list.allocate_run(usize::MAX) {
        for index in 0..run.count as u64 {
            assert!(free.remove(&(run.first.0 + index * page)));
        }
    }
    assert!(free.is_empty(), "lost: {free:x?}");
    room.end();
}

/// Fills a page that its user may fill.
fn scribble(room: Room, address: u64, page: u64) {
    let first = room.pointer(PhysicalAddress(address));
    for word in 0..(page / 8) as usize {
        // Under Miri only the words that the list uses.
        if word < 4 || !cfg!(miri) {
            // SAFETY: a word of an allocated page of the room.
            unsafe { first.wrapping_add(word).write(0xdead_0000_0000_0001) };
        }
    }
}

proptest! {
    #![proptest_config(cases::config(256, 2))]

    #[test]
    fn each_page_is_free_or_in_use_and_none_is_lost(
        size in prop_oneof![Just(PageSize::K4), Just(PageSize::K16), Just(PageSize::K64)],
        calls in proptest::collection::vec(call(), 1..60),
    ) {
        sequence(size, &calls);
    }
}

#[test]
fn a_group_from_any_place_of_the_list_leaves_the_others_in_it() {
    /// Runs of one page, between pages that are never added. The run of four is at `place` of the list.
    const RUNS: u64 = 4;
    let size = PageSize::K4;
    let page = size.bytes();
    for place in 0..RUNS {
        let room = Room::new(8 * (RUNS + 1), size);
        let mut list = FreeList::new(room, size);
        let mut free = BTreeSet::new();
        // The first range is the run in use. Of the others the last added is the first of the list.
        let large = RUNS - place;
        for run in 0..=RUNS {
            let start = FIRST + 8 * run * page;
            let end = start + if run == large { 4 * page } else { page };
            // SAFETY: the room is nobody else's, and its parts do not overlap.
            unsafe { list.add(PhysicalAddress(start), PhysicalAddress(end)) };
            free.extend((start..end).step_by(page as usize));
        }
        let group = FIRST + 8 * large * page;
        let what = format!("from place {place} of {RUNS}");
        let found = list.allocate_aligned(4);
        assert_eq!(found, Some(PhysicalAddress(group)), "{what}");
        assert_eq!(list.allocate_aligned(2), None, "{what}");
        free.retain(|&address| address < group || address >= group + 4 * page);
        assert_eq!(list.available(), free.len() as u64, "{what}");
        while let Some(page) = list.allocate() {
            assert!(free.remove(&page.0), "{what}: {page} again");
        }
        assert!(free.is_empty(), "lost {what}: {free:x?}");
        room.end();
    }
}

#[test]
fn pages_that_come_back_in_order_become_one_run_again() {
    for up in [true, false] {
        let size = PageSize::K4;
        let page = size.bytes();
        let room = Room::new(40, size);
        let mut list = FreeList::new(room, size);
        // SAFETY: the room is nobody else's.
        unsafe { list.add(PhysicalAddress(FIRST), PhysicalAddress(FIRST + 40 * page)) };
        let all = list.allocate_run(40).unwrap();
        assert_eq!((all.first.0, all.count, list.available()), (FIRST, 40, 0));
        // One page far away, so that the others are not the run in use.
        let give_back = |list: &mut FreeList<Room>, index: u64| {
            let address = PhysicalAddress(FIRST + index * page);
            // SAFETY: no page of this list is ever a table.
            list.free(unsafe { FreedTable::unreachable(address) });
        };
        give_back(&mut list, 39);
        for index in 0..30 {
            give_back(&mut list, if up { index } else { 29 - index });
        }
        assert_eq!(list.available(), 31);
        assert_eq!(list.allocate_run(40).map(|run| run.count), Some(1));
        let run = list.allocate_run(40).unwrap();
        assert_eq!((run.first.0, run.count), (FIRST, 30));
        room.end();
    }
}

/// An environment that shows its list.
struct Listed(FreeList<Room>);

// SAFETY: the list keeps the promises. No CPU walks the tables.
unsafe impl TableEnvironment for Listed {
    forward!(self.0: reach allocate free pages reserve allocate_run allocate_aligned);
    fn invalidate(&mut self, _: Maintenance) {}
}

type Tables<P> = PageTables<P, Listed>;

/// Empty tables whose list has so many pages; the last are apart from the others.
fn tables<P: Page>(geometry: Geometry, pages: u64) -> (Room, Result<Tables<P>, TableError>) {
    let page = P::SIZE.bytes();
    let room = Room::new(pages + 1, P::SIZE);
    let mut list = FreeList::new(room, P::SIZE);
    let half = FIRST + pages / 2 * page;
    let end = FIRST + (pages + 1) * page;
    // SAFETY: the room is nobody else's; the page between is left out.
    unsafe {
        list.add(PhysicalAddress(FIRST), PhysicalAddress(half));
        list.add(PhysicalAddress(half + page), PhysicalAddress(end));
    }
    assert_eq!(list.available(), pages);
    (room, PageTables::new(geometry, Listed(list)))
}

/// All valid entries of the tables: the table, the index and the descriptor.
fn entries<P: Page>(tables: &Tables<P>) -> Vec<(u64, usize, u64)> {
    let mut all = Vec::new();
    tables.visit_all(|entry| {
        all.push((entry.table.0, entry.index, entry.descriptor.0));
        Visit::EVERYTHING
    });
    all
}

struct EveryShortage;

impl Dispatch for EveryShortage {
    type Output = ();

    /// Maps pages on both sides of a boundary of the largest tables, with ever more pages.
    fn run<P: Page>(self) {
        let geometry = shape::PLAIN.geometry(P::SIZE, 48, VaRange::Upper);
        let page = P::SIZE.bytes();
        let attributes = Attributes::normal(Permissions::READ_WRITE);
        let at = VirtualAddress(geometry.base().0 + geometry.span() / 2 - 4 * page);
        let mut failures = 0;
        // The largest has seven tables; Miri begins shortly before.
        for pages in if cfg!(miri) { 5 } else { 0 }.. {
            let (room, made) = tables::<P>(geometry, pages);
            let Ok(mut tables) = made else {
                assert_eq!(
                    (pages, made.err()),
                    (0, Some(TableError::OutOfTables { needed: 1 }))
                );
                room.end();
                continue;
            };
            let before = entries(&tables);
            let free = tables.environment().0.available();
            assert_eq!(free, pages - 1);
            let output = PhysicalAddress(16 * page);
            let mapped = tables.map(at, output, 8 * page, attributes, Leaves::PAGES);
            if let Err(error) = mapped {
                let TableError::OutOfTables { needed } = error else {
                    panic!("{error}");
                };
                assert!(needed as u64 > free);
                assert_eq!(entries(&tables), before);
                assert_eq!(tables.environment().0.available(), free);
                failures += 1;
                room.end();
                continue;
            }
            // Exactly enough: nothing is left, and all of it comes back, again and again.
            assert_eq!(tables.environment().0.available(), 0);
            for _ in 0..if cfg!(miri) { 1 } else { 100 } {
                tables.unmap(at, 8 * page).unwrap();
                assert_eq!(entries(&tables), before);
                assert_eq!(tables.environment().0.available(), free);
                tables
                    .map(at, output, 8 * page, attributes, Leaves::PAGES)
                    .unwrap();
            }
            room.end();
            break;
        }
        assert!(failures >= 2, "{failures}");
    }
}

#[test]
fn tables_run_out_of_pages_without_a_change_and_get_all_of_them_back() {
    // The larger tables take Miri minutes, and no other way through the code.
    let sizes = if cfg!(miri) {
        &PageSize::ALL[..1]
    } else {
        &PageSize::ALL
    };
    for size in sizes {
        size.dispatch(EveryShortage);
    }
}

/// The error with which tables of `P`'s size refuse an environment for its pages.
fn refusal<P: Page>(environment: impl TableEnvironment) -> Option<TableError> {
    let geometry = shape::PLAIN.geometry(P::SIZE, 39, VaRange::Upper);
    PageTables::<P, _>::new(geometry, environment).err()
}

/// An environment of an arena.
struct Early(Arena<Room>);

// SAFETY: the arena keeps the promises. No CPU walks the tables.
unsafe impl TableEnvironment for Early {
    forward!(self.0: reach allocate free pages reserve allocate_run allocate_aligned);
    fn invalidate(&mut self, _: Maintenance) {}
}

/// A list and an arena of pages of `size` that end at `end`; each is refused before a page is taken.
fn refusals<P: Page>(size: PageSize, end: u64) -> [Option<TableError>; 2] {
    let (start, end) = (PhysicalAddress(end - size.bytes()), PhysicalAddress(end));
    let mut list = FreeList::new(Room::NONE, size);
    // SAFETY: the range is not a page of anything, and the tables refuse it before they access it.
    let arena = unsafe {
        list.add(start, end);
        let mut arena = Arena::new(Room::NONE, PhysicalAddress(0), PhysicalAddress(0), size);
        arena.extend_mapped(start, end);
        arena
    };
    [refusal::<P>(Listed(list)), refusal::<P>(Early(arena))]
}

#[test]
fn pages_of_another_size_or_too_high_are_refused() {
    let wrong = TableError::WrongTablePages {
        given: PageSize::K4,
        page: PageSize::K64,
    };
    let low = FIRST + (1 << 16);
    assert_eq!(refusals::<Page64K>(PageSize::K4, low), [Some(wrong); 2]);
    let pa_bits = shape::PLAIN
        .geometry(PageSize::K4, 39, VaRange::Upper)
        .pa_bits();
    let end = PhysicalAddress((1 << pa_bits) + 4096);
    let high = TableError::TablesTooHigh { end, pa_bits };
    assert_eq!(refusals::<Page4K>(PageSize::K4, end.0), [Some(high); 2]);
}
