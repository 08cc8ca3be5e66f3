//! A reader of translation tables, written from the architecture's text alone.
//!
//! Levels are plain numbers, -1 to 3, and every bit position is a literal from the descriptor table
//! (arm64 VMSAv8-64 stage 1). Only the parameters of a shape come from the library.

use super::host::Host;
use granule::arch::{Geometry, OutputFormat, PhysicalAddress, Regime, VaRange};

/// The parameters that the architecture derives from page size, address sizes and format.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// The base-2 logarithm of the page size.
    pub g: u32,
    pub va_bits: u32,
    pub pa_bits: u32,
    /// TCR.DS, for 4K and 16K.
    pub ds: bool,
    /// Output addresses of 52 bits with 64K pages.
    pub lpa: bool,
    pub upper: bool,
    /// The regime is EL1&0: two privilege levels.
    pub user: bool,
    /// The regime is EL3, whose leaves have NSE.
    pub el3: bool,
    /// Stage 2: intermediate physical addresses, and up to 16 root tables.
    pub stage2: bool,
    /// FEAT_S2FWB, at stage 2.
    pub forced_write_back: bool,
    /// FEAT_XNX, at stage 2.
    pub execute_by_privilege: bool,
}

/// One leaf entry. A contiguous group has one for each of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub offset: u64,
    pub bytes: u64,
    pub level: i32,
    pub output: u64,
    pub word: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    pub address: u64,
    pub level: i32,
    pub offset: u64,
    /// The bytes of input address that it translates.
    pub span: u64,
}

/// All tables and leaves below a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub leaves: Vec<Leaf>,
    /// Invalid entries that keep their place and their other bits.
    pub present_invalid: Vec<Leaf>,
    pub tables: Vec<Table>,
}

impl Arch {
    pub fn of(geometry: &Geometry) -> Self {
        Self {
            g: geometry.page_size().bytes().trailing_zeros(),
            va_bits: geometry.va_bits(),
            pa_bits: geometry.pa_bits(),
            ds: geometry.format() == OutputFormat::Lpa2,
            lpa: geometry.format() == OutputFormat::Lpa,
            upper: geometry.va_range() == VaRange::Upper,
            user: geometry.regime() == Regime::El1And0,
            el3: geometry.regime() == Regime::El3,
            stage2: geometry.regime() == Regime::Stage2,
            forced_write_back: geometry.forced_write_back(),
            execute_by_privilege: geometry.execute_by_privilege(),
        }
    }

    pub fn page(&self) -> u64 {
        1 << self.g
    }

    pub fn entries(&self) -> usize {
        1 << (self.g - 3)
    }

    /// The base-2 logarithm of the bytes an entry of `level` covers: g + (3-n)(g-3) for level n.
    pub fn shift(&self, level: i32) -> u32 {
        self.g + (3 - level) as u32 * (self.g - 3)
    }

    pub fn entry_bytes(&self, level: i32) -> u64 {
        1 << self.shift(level)
    }

    pub fn start_level(&self) -> i32 {
        // At stage 2 the start level resolves up to four bits more, by 16 root tables.
        let more = if self.stage2 { 4 } else { 0 };
        let below = (self.va_bits - more).saturating_sub(1 + self.g);
        3 - (below / (self.g - 3)) as i32
    }

    /// The number of root tables that follow each other in memory.
    pub fn root_tables(&self) -> usize {
        (self.span() >> self.shift(self.start_level())).div_ceil(self.entries() as u64) as usize
    }

    pub fn span(&self) -> u64 {
        1 << self.va_bits
    }

    pub fn address(&self, offset: u64) -> u64 {
        if self.upper {
            offset.wrapping_sub(self.span())
        } else {
            offset
        }
    }

    /// Whether a block or page can exist at `level`.
    pub fn leaf_allowed(&self, level: i32) -> bool {
        match (self.g, level) {
            (_, 3) | (_, 2) | (12, 1) => true,
            (12, 0) | (14, 1) => self.ds,
            (16, 1) => self.lpa,
            _ => false,
        }
    }

    /// The number of entries that the contiguous bit joins, or 1 where the bit is reserved.
    pub fn contiguous(&self, level: i32) -> u64 {
        match (self.g, level) {
            (12, 1..=3) => 16,
            (14, 3) => 128,
            (14, 2) => 32,
            (16, 2..=3) => 32,
            _ => 1,
        }
    }

    /// Moves an address to the address bits of a descriptor.
    pub(crate) fn place(&self, address: u64) -> u64 {
        if self.ds {
            address & 0x3_ffff_ffff_f000 | (address >> 50 & 0b11) << 8
        } else if self.lpa {
            address & 0xffff_ffff_0000 | (address >> 48 & 0b1111) << 12
        } else {
            address & 0xffff_ffff_f000
        }
    }

    /// The address in a descriptor; `low` is the lowest address bit.
    fn address_in(&self, word: u64, low: u32) -> u64 {
        let keep = u64::MAX << low;
        if self.ds {
            word & 0x3_ffff_ffff_ffff & keep | (word >> 8 & 0b11) << 50
        } else if self.lpa {
            word & 0xffff_ffff_ffff & keep | (word >> 12 & 0b1111) << 48
        } else {
            word & 0xffff_ffff_ffff & keep
        }
    }

    /// Reads the whole tree below `root`. Panics on an entry that no table may hold.
    pub fn walk(&self, host: &Host, root: PhysicalAddress) -> Tree {
        let mut tree = Tree::default();
        let level = self.start_level();
        let entries = 1 << (self.va_bits - self.shift(level));
        let bytes = self.entries() as u64 * self.entry_bytes(level);
        for table in 0..self.root_tables() as u64 {
            let address = root.0 + table * self.page();
            let entries = self.entries().min(entries);
            self.walk_table(host, address, level, table * bytes, entries, &mut tree);
        }
        tree
    }

    fn walk_table(
        &self,
        host: &Host,
        address: u64,
        level: i32,
        offset: u64,
        entries: usize,
        tree: &mut Tree,
    ) {
        let bytes = self.entry_bytes(level);
        tree.tables.push(Table {
            address,
            level,
            offset,
            span: entries as u64 * bytes,
        });
        // Most entries are zero, and a comparison of slices is one step under Miri.
        let words = host.table(address);
        let zeroes = [0; 64];
        let full = words.chunks(64).enumerate();
        let full = full.filter(|(_, chunk)| *chunk != zeroes);
        let entries_in = |(number, chunk): (usize, &[u64])| {
            let words = chunk.iter().copied().enumerate();
            words
                .map(|(index, word)| (number * 64 + index, word))
                .filter(|&(_, word)| word != 0)
                .collect::<Vec<_>>()
        };
        for (index, word) in full.flat_map(entries_in) {
            let at = offset + index as u64 * bytes;
            match word & 0b11 {
                _ if index >= entries => {
                    assert_eq!(word, 0, "an entry beyond the input addresses is not zero");
                }
                0b11 if level < 3 => {
                    let below = self.address_in(word, self.g);
                    assert_eq!(
                        word & !self.place(below) & !0b11,
                        0,
                        "a table descriptor with more than an address"
                    );
                    self.walk_table(host, below, level + 1, at, self.entries(), tree);
                }
                0b11 => tree.leaves.push(self.leaf(at, level, word)),
                0b01 if level < 3 && self.leaf_allowed(level) => {
                    tree.leaves.push(self.leaf(at, level, word));
                }
                0b01 => panic!("a block at level {level}, where none is decoded"),
                kind if word >> 63 != 0 => {
                    // A present-invalid leaf has bit 0 clear and bit 63 set. A CPU sees only that
                    // the entry is invalid.
                    let page = kind == 0b10;
                    assert_eq!(page, level == 3, "a present-invalid entry of another level");
                    assert!(
                        self.leaf_allowed(level),
                        "a present-invalid block at level {level}"
                    );
                    tree.present_invalid.push(self.leaf(at, level, word));
                }
                _ => assert_eq!(word, 0, "an invalid entry that is not zero"),
            }
        }
    }

    pub fn leaf(&self, offset: u64, level: i32, word: u64) -> Leaf {
        Leaf {
            offset,
            bytes: self.entry_bytes(level),
            level,
            output: self.address_in(word, self.shift(level)),
            word,
        }
    }

    /// The table that a table descriptor points to.
    pub fn table_address(&self, word: u64) -> u64 {
        self.address_in(word, self.g)
    }

    /// A page as hardware marks it dirty: bit 7 is clear, at stage 2 set.
    pub fn made_dirty(&self, word: u64) -> u64 {
        if self.stage2 {
            word | 1 << 7
        } else {
            word & !(1 << 7)
        }
    }

    /// Whether hardware may set the access flag of a valid leaf, or mark a page with the dirty
    /// modifier dirty.
    pub fn may_be_updated(&self, word: u64) -> bool {
        word >> 10 & 1 == 0 || word >> 51 & 1 == 1 && self.made_dirty(word) != word
    }

    /// The attributes of a leaf: every bit except the address, the validity and the contiguous bit.
    pub fn attributes_in(&self, word: u64) -> u64 {
        word & !(self.place(u64::MAX) | 0b11 | 1 << 52 | 1 << 63)
    }
}
