//! The SRAT: which CPUs and which memory are near each other.

use super::super::bytes::{le32, le64};
use super::super::tree::Range;
use super::entries::Entries;

/// Offset of the entries.
const ENTRIES_AT: usize = 48;
/// Types of entries.
const MEMORY: u8 = 1;
const GICC: u8 = 3;
/// A flag: the entry counts.
const ENABLED: u32 = 1;

/// A CPU and its proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearCpu {
    /// The CPU, by the number that the MADT has for it.
    pub uid: u32,
    /// The domain.
    pub domain: u32,
}

impl NearCpu {
    /// The CPU of an entry, if it is an entry of one.
    fn of((kind, entry): (u8, &[u8])) -> Option<Self> {
        let is_enabled = kind == GICC && le32(entry, 10)? & ENABLED != 0;
        let cpu = Self {
            uid: le32(entry, 6)?,
            domain: le32(entry, 2)?,
        };
        is_enabled.then_some(cpu)
    }
}

/// Memory and its proximity domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearMemory {
    /// The memory. Firmware may list more than there is.
    pub range: Range,
    /// The domain.
    pub domain: u32,
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Srat<'a> {
    table: &'a [u8],
}

impl<'a> Srat<'a> {
    /// The table in these bytes.
    #[must_use]
    pub const fn new(table: &'a [u8]) -> Self {
        Self { table }
    }

    /// All entries.
    #[must_use]
    pub fn entries(self) -> Entries<'a> {
        Entries::behind(self.table, ENTRIES_AT)
    }

    /// The CPUs.
    pub fn cpus(self) -> impl Iterator<Item = NearCpu> + 'a {
        self.entries().filter_map(NearCpu::of)
    }

    /// The memory. A range that does not end inside 64 bits is none.
    pub fn memory(self) -> impl Iterator<Item = NearMemory> + 'a {
        self.entries().filter_map(|(kind, entry)| {
            let is_enabled = kind == MEMORY && le32(entry, 28)? & ENABLED != 0;
            let range = Range::new(le64(entry, 8)?, le64(entry, 16)?);
            range.start.checked_add(range.bytes)?;
            let domain = le32(entry, 2)?;
            is_enabled.then_some(NearMemory { range, domain })
        })
    }
}

/// The domains of CPUs, looked up one after the other. Tables name their CPUs in the same order, so that a look-up
/// begins where the last one ended. All of them together look at a limited number of entries.
#[derive(Clone, Debug)]
pub struct Domains<'a> {
    all: Entries<'a>,
    rest: Entries<'a>,
    left: u32,
}

impl<'a> Domains<'a> {
    /// The most entries that are looked at: a thousand CPUs in any order.
    pub const MOST_LOOKS: u32 = 1 << 22;

    /// The domains of the table; of none there are no domains.
    #[must_use]
    pub fn new(srat: Option<Srat<'a>>) -> Self {
        let all = srat.map_or(Entries::behind(&[], 0), Srat::entries);
        Self {
            rest: all.clone(),
            all,
            left: Self::MOST_LOOKS,
        }
    }

    /// The domain of a CPU.
    pub fn of(&mut self, uid: u32) -> Option<u32> {
        // To the end, and once more from the start.
        for _ in 0..2 {
            for entry in self.rest.by_ref() {
                self.left = self.left.checked_sub(1)?;
                if let Some(near) = NearCpu::of(entry).filter(|near| near.uid == uid) {
                    return Some(near.domain);
                }
            }
            self.rest = self.all.clone();
        }
        None
    }

    /// Whether a look-up ended because there were too many entries to look at.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.left == 0
    }
}
