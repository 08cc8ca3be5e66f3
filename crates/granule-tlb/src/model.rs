//! A model of one CPU's TLBs: two levels of set-associative TLBs with LRU replacement.
//!
//! It models virtual addresses only: the presence of entries, not their outputs.

use granule::arch::PageSize;
use granule_plugin::accesses::AccessKind;
use granule_trace::System;

use super::cpus::{Cpu, Tlb};

/// A virtual address in an address space. The upper half is taken to be global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub va: u64,
    /// The ASID, of an address in the lower half.
    pub asid: u16,
}

/// An entry in a word: valid or not, its size, ASID, half, and its page number in units of 4 KiB.
type Entry = u64;

const PAGE_BITS: u32 = 12;
const NUMBER_BITS: u32 = 40;
const UPPER: u64 = 1 << NUMBER_BITS;
const ASID_SHIFT: u32 = NUMBER_BITS + 1;
const SIZE_SHIFT: u32 = ASID_SHIFT + 16;

impl Address {
    /// The entry of a size that translates the address. No size is 0, so neither is an entry.
    const fn entry(self, bits: u8) -> Entry {
        let number = (self.va >> bits << bits >> PAGE_BITS) & (UPPER - 1);
        let space = if self.is_upper() {
            UPPER
        } else {
            (self.asid as u64) << ASID_SHIFT
        };
        number | space | (bits as u64) << SIZE_SHIFT
    }

    const fn is_upper(self) -> bool {
        self.va >> 63 != 0
    }
}

/// The entries that a TLBI removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Everything.
    All,
    /// The entries of an ASID.
    Asid(u16),
    /// The entries that translate one of these addresses, in one address space or in all.
    Range {
        /// The first address.
        first: u64,
        /// The number of bytes.
        bytes: u64,
        /// The ASID; `None` for all.
        asid: Option<u16>,
    },
}

impl Invalidation {
    /// Decodes a TLBI of EL1&0 from a kernel with pages of `page_bits` bits; `None` for any other.
    #[must_use]
    pub const fn of(op: System, operand: u64, page_bits: u8) -> Option<Self> {
        let range = match op.crm() {
            1 | 3 | 7 => false,
            2 | 5 | 6 => true,
            // By intermediate physical address.
            _ => return None,
        };
        let asid = (operand >> 48) as u16;
        match (op.op1(), op.op2(), range) {
            (0, 0, false) | (4, 4 | 6, false) => Some(Self::All),
            (0, 2, false) => Some(Self::Asid(asid)),
            (0, op2 @ (1 | 3 | 5 | 7), _) => {
                let asid = if op2 & 2 == 0 { Some(asid) } else { None };
                let (first, bytes) = if range {
                    // TG, SCALE, NUM and a signed base in pages. With TCR.DS the base counts 64 KiB:
                    // no CPU here has it.
                    let page = match operand >> 46 & 3 {
                        1 => 12,
                        2 => 14,
                        _ => 16,
                    };
                    let scale = 5 * (operand >> 44 & 3) + 1;
                    let pages = ((operand >> 39 & 31) + 1) << scale;
                    (
                        (((operand << 27) as i64 >> 27) << page) as u64,
                        pages << page,
                    )
                } else {
                    let address = ((operand << 20) as i64 >> 8) as u64;
                    (address >> page_bits << page_bits, 1 << page_bits)
                };
                Some(Self::Range { first, bytes, asid })
            }
            _ => None,
        }
    }

    const fn removes(&self, entry: Entry) -> bool {
        let is_upper = entry & UPPER != 0;
        let asid = (entry >> ASID_SHIFT) as u16;
        match *self {
            Self::All => true,
            Self::Asid(other) => !is_upper && asid == other,
            Self::Range {
                first,
                bytes,
                asid: other,
            } => {
                if is_upper != (first >> 63 != 0) {
                    return false;
                }
                if let Some(other) = other
                    && !is_upper
                    && asid != other
                {
                    return false;
                }
                // Compared within the bits that an entry has.
                let start = (entry & (UPPER - 1)) << PAGE_BITS;
                let end = start + (1 << (entry >> SIZE_SHIFT));
                let first = first & ((UPPER << PAGE_BITS) - 1);
                start < first.saturating_add(bytes) && first < end
            }
        }
    }
}

/// One TLB.
#[derive(Debug)]
struct Structure {
    /// The entries, set by set, each set from most to least recently used; 0 for none.
    entries: Vec<Entry>,
    ways: usize,
    sizes: &'static [u8],
}

impl Structure {
    fn new(tlb: &Tlb, page_size: PageSize) -> Self {
        Self {
            entries: vec![0; tlb.entries],
            ways: tlb.ways,
            sizes: tlb.sizes_with(page_size),
        }
    }

    fn set(&mut self, address: Address, bits: u8) -> &mut [Entry] {
        let sets = self.entries.len() / self.ways;
        let first = (address.va >> bits) as usize % sets * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// Accesses an address through a leaf of a size. Returns whether it hits; after a miss the
    /// entry is present.
    fn access(&mut self, address: Address, leaf_bits: u8) -> bool {
        let fitting = self.sizes.iter().rev().find(|bits| **bits <= leaf_bits);
        let bits = fitting.copied().unwrap_or(leaf_bits);
        let entry = address.entry(bits);
        let set = self.set(address, bits);
        let found = set.iter().position(|other| *other == entry);
        let at = found.unwrap_or(set.len() - 1);
        set[..=at].rotate_right(1);
        set[0] = entry;
        found.is_some()
    }

    fn invalidate(&mut self, what: &Invalidation) {
        // The entries of one small page can only be in one set for each size.
        if let Invalidation::Range { first, bytes, asid } = *what
            && bytes <= 1 << PAGE_BITS
            && (asid.is_some() || first >> 63 != 0)
        {
            for &bits in self.sizes {
                let asid = asid.unwrap_or_default();
                let set = self.set(Address { va: first, asid }, bits);
                remove(set, what);
            }
            return;
        }
        for set in self.entries.chunks_mut(self.ways) {
            remove(set, what);
        }
    }
}

/// Removes entries from a set, whose order stays.
fn remove(set: &mut [Entry], what: &Invalidation) {
    for entry in set.iter_mut() {
        if *entry != 0 && what.removes(*entry) {
            *entry = 0;
        }
    }
    // Places without an entry come last, so that they are taken first.
    set.sort_by_key(|entry| *entry == 0);
}

/// The numbers of misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    /// In the first level, of fetches.
    pub fetch: u64,
    /// In the first level, of data.
    pub data: u64,
    /// In both levels, of addresses of programs: the tables are walked.
    pub program: u64,
    /// In both levels, of addresses of the kernel.
    pub kernel: u64,
}

impl Misses {
    /// In both levels.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.program + self.kernel
    }
}

/// The TLBs of a CPU.
#[derive(Debug)]
pub struct Tlbs {
    fetch: Structure,
    data: Structure,
    second: Structure,
    misses: Misses,
}

impl Tlbs {
    /// Empty TLBs for tables with pages of a size.
    #[must_use]
    pub fn new(cpu: &Cpu, page_size: PageSize) -> Self {
        Self {
            fetch: Structure::new(&cpu.fetch, page_size),
            data: Structure::new(&cpu.data, page_size),
            second: Structure::new(&cpu.second, page_size),
            misses: Misses::default(),
        }
    }

    /// An access through a leaf of a size.
    pub fn access(&mut self, kind: AccessKind, address: Address, leaf_bits: u8) {
        let (first, missed) = match kind {
            AccessKind::Fetch => (&mut self.fetch, &mut self.misses.fetch),
            AccessKind::Data => (&mut self.data, &mut self.misses.data),
        };
        if first.access(address, leaf_bits) {
            return;
        }
        *missed += 1;
        if self.second.access(address, leaf_bits) {
            return;
        }
        let missed = if address.is_upper() {
            &mut self.misses.kernel
        } else {
            &mut self.misses.program
        };
        *missed += 1;
    }

    /// A TLBI.
    pub fn invalidate(&mut self, what: &Invalidation) {
        for structure in [&mut self.fetch, &mut self.data, &mut self.second] {
            structure.invalidate(what);
        }
    }

    /// Returns the misses so far.
    #[must_use]
    pub const fn misses(&self) -> Misses {
        self.misses
    }
}

#[cfg(test)]
mod tests;
