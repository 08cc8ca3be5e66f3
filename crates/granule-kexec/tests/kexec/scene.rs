//! Physical memory as a map of words, and pages out of it.

use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, Maintenance, Reservation, TableEnvironment};
use granule_kexec::{
    ListError, ListHeader, ListMemory, MemoryMap, PhysRange, Refusal, RelocationList, Segment,
    Transition, Way,
};
use std::collections::{BTreeMap, BTreeSet};

/// RAM of the tests: 64 MiB, with a hole from 48 to 52 MiB.
pub const RAM: [PhysRange; 2] = [
    PhysRange::new(0x4000_0000, 48 << 20),
    PhysRange::new(0x4340_0000, 12 << 20),
];

/// Memory, in which every word has a value of its own until it is written.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Memory {
    pub written: BTreeMap<u64, u64>,
}

/// Returns the contents of a word that nobody has written.
pub fn untouched(address: u64) -> u64 {
    (address ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Memory {
    pub fn read(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0, "{address:#x} is read");
        assert!(is_ram(address), "{address:#x} is read, and is not RAM");
        self.written
            .get(&address)
            .copied()
            .unwrap_or_else(|| untouched(address))
    }

    pub fn write(&mut self, address: u64, word: u64) {
        assert_eq!(address % 8, 0, "{address:#x} is written");
        assert!(is_ram(address), "{address:#x} is written, and is not RAM");
        self.written.insert(address, word);
    }
}

pub fn is_ram(address: u64) -> bool {
    RAM.iter()
        .any(|bank| bank.start <= address && address - bank.start < bank.bytes)
}

// SAFETY: every word has its place in the map.
unsafe impl ListMemory for Memory {
    fn load(&self, address: u64) -> Option<u64> {
        is_ram(address).then(|| self.read(address))
    }

    unsafe fn store(&mut self, address: u64, word: u64) {
        self.write(address, word);
    }
}

/// Pages for the list, a few at a time and not in order.
pub struct Pages {
    pub free: Vec<u64>,
    /// The number that is still given out; reserved ones count.
    pub budget: usize,
    pub out: BTreeSet<u64>,
    /// `reserve` accepts every request.
    pub lies: bool,
}

impl Pages {
    /// `count` pages from `first` on, every second one.
    pub fn new(page: PageSize, first: u64, count: u64) -> Self {
        let all = (0..count).map(|index| first + 2 * index * page.bytes());
        Self {
            free: all.rev().collect(),
            budget: usize::MAX,
            out: BTreeSet::new(),
            lies: false,
        }
    }
}

// SAFETY: pages come from a list, in which each is once. No tables are made of them.
unsafe impl TableEnvironment for Pages {
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        panic!("{table} is a page of a list, and no table")
    }

    fn reserve(&mut self, tables: usize) -> Reservation {
        if self.lies || tables <= self.budget.min(self.free.len()) {
            Reservation::Granted
        } else {
            Reservation::Refused
        }
    }

    fn allocate(&mut self) -> Option<PhysicalAddress> {
        if self.budget == 0 {
            return None;
        }
        let page = self.free.pop()?;
        self.budget -= 1;
        assert!(self.out.insert(page));
        Some(PhysicalAddress(page))
    }

    fn invalidate(&mut self, instruction: Maintenance) {
        panic!("{instruction:?} is issued for a list");
    }

    fn free(&mut self, table: FreedTable) {
        let table = table.address();
        assert!(self.out.remove(&table.0), "{table} was not given out");
        self.budget = self.budget.saturating_add(1);
        self.free.push(table.0);
    }
}

/// Writes a list. Memory and pages are of this scene, so they fit.
pub fn write(
    memory: &mut Memory,
    pages: &mut Pages,
    segments: &[Segment<'_>],
    memory_map: &MemoryMap<'_>,
) -> Result<RelocationList, Refusal> {
    // SAFETY: the memory has a place for each word of RAM, where the pages are.
    unsafe { RelocationList::write(memory, pages, segments, memory_map) }
}

/// Seals a list.
pub fn seal(
    list: &mut RelocationList,
    memory: &mut Memory,
    way: &Way,
    transition: &Transition,
    tcr: u64,
) -> Result<ListHeader, ListError> {
    // SAFETY: as for `write`.
    unsafe { list.seal(memory, way, transition, tcr) }
}

/// Frees a list.
pub fn free(list: RelocationList, memory: &Memory, pages: &mut Pages) -> Result<(), ListError> {
    // SAFETY: as for `write`. Pages that are not out are noticed.
    unsafe { list.free(memory, pages) }
}
