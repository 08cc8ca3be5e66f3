//! Stage 1 descriptors for the two crates that bring none that compiles here: one is generic over
//! the format, the other has arm64's only where it runs on arm64.

use super::Found;
use page_table_entry::{GenericPTE, MappingFlags};
use page_table_generic::PageTableEntry;

const VALID: u64 = 1;
const TABLE_OR_PAGE: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_FFFF_FFFF_F000;

/// The bits of every leaf that is not executable; memory attribute index 0.
const ALWAYS: u64 = VALID | INNER_SHAREABLE | ACCESSED | PXN | UXN;

/// The attributes of leaves that can be written.
pub(super) const READ_WRITE: u64 = ALWAYS;
/// The attributes of leaves that can not.
pub(super) const READ: u64 = ALWAYS | READ_ONLY;

/// The first of a run of pages, for the floor.
pub(super) const fn page(output: u64) -> u64 {
    output | READ_WRITE | TABLE_OR_PAGE
}

/// The bit that protecting sets, for the floor.
pub(super) const PROTECT: u64 = READ_ONLY;

/// One descriptor.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Entry(u64);

impl Entry {
    const fn leaf(output: u64, attributes: u64, is_block: bool) -> Self {
        let page = if is_block { 0 } else { TABLE_OR_PAGE };
        Self((output & ADDRESS) | attributes | page)
    }
}

/// Returns the query's answer for a leaf with `attributes` at `output`.
pub(super) const fn found(output: u64, bytes: u64, attributes: u64) -> Found {
    Found {
        output,
        bytes,
        writable: attributes & READ_ONLY == 0,
    }
}

/// Two flags are all that the benchmark uses; each costs an instruction.
const fn attributes(flags: MappingFlags) -> u64 {
    if flags.contains(MappingFlags::WRITE) {
        READ_WRITE
    } else {
        READ
    }
}

impl GenericPTE for Entry {
    #[inline(always)]
    fn new_page(paddr: memory_addr::PhysAddr, flags: MappingFlags, is_huge: bool) -> Self {
        Self::leaf(paddr.as_usize() as u64, attributes(flags), is_huge)
    }

    #[inline(always)]
    fn new_table(paddr: memory_addr::PhysAddr) -> Self {
        Self((paddr.as_usize() as u64 & ADDRESS) | VALID | TABLE_OR_PAGE)
    }

    #[inline(always)]
    fn paddr(&self) -> memory_addr::PhysAddr {
        memory_addr::PhysAddr::from((self.0 & ADDRESS) as usize)
    }

    #[inline(always)]
    fn flags(&self) -> MappingFlags {
        if self.0 & READ_ONLY == 0 {
            MappingFlags::READ | MappingFlags::WRITE
        } else {
            MappingFlags::READ
        }
    }

    #[inline(always)]
    fn set_paddr(&mut self, paddr: memory_addr::PhysAddr) {
        self.0 = (self.0 & !ADDRESS) | (paddr.as_usize() as u64 & ADDRESS);
    }

    #[inline(always)]
    fn set_flags(&mut self, flags: MappingFlags, is_huge: bool) {
        *self = Self::leaf(self.0, attributes(flags), is_huge);
    }

    #[inline(always)]
    fn bits(self) -> usize {
        self.0 as usize
    }

    #[inline(always)]
    fn is_unused(&self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    fn is_present(&self) -> bool {
        self.0 & VALID != 0
    }

    // As the crate's own arm64 format: called for what is not a table.
    #[inline(always)]
    fn is_huge(&self) -> bool {
        self.0 & TABLE_OR_PAGE == 0
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.0 = 0;
    }
}

impl PageTableEntry for Entry {
    type PteConfig = u64;

    #[inline(always)]
    fn new_page(paddr: page_table_generic::PhysAddr, config: u64, is_huge: bool) -> Self {
        Self::leaf(paddr.as_usize() as u64, config, is_huge)
    }

    #[inline(always)]
    fn new_table(paddr: page_table_generic::PhysAddr) -> Self {
        Self((paddr.as_usize() as u64 & ADDRESS) | VALID | TABLE_OR_PAGE)
    }

    #[inline(always)]
    fn paddr(&self, _is_dir: bool) -> page_table_generic::PhysAddr {
        page_table_generic::PhysAddr::from_usize((self.0 & ADDRESS) as usize)
    }

    #[inline(always)]
    fn config(&self, _is_dir: bool) -> u64 {
        self.0 & !(ADDRESS | TABLE_OR_PAGE)
    }

    #[inline(always)]
    fn present(&self) -> bool {
        self.0 & VALID != 0
    }

    #[inline(always)]
    fn huge(&self, is_dir: bool) -> bool {
        is_dir && self.0 & (VALID | TABLE_OR_PAGE) == VALID
    }

    #[inline(always)]
    fn unused(&self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.0 = 0;
    }
}
