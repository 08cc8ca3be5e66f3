//! The sizes of leaves, and of the pages and tables that belong to them.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// A size of leaf: a page, or the block so many levels above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    page_shift: u32,
    above: u32,
}

impl Leaf {
    pub const PAGE_4K: Self = Self::page(12);
    pub const PAGE_16K: Self = Self::page(14);
    pub const PAGE_64K: Self = Self::page(16);
    pub const BLOCK_2M: Self = Self::PAGE_4K.block(1);
    pub const BLOCK_1G: Self = Self::PAGE_4K.block(2);

    const fn page(page_shift: u32) -> Self {
        Self {
            page_shift,
            above: 0,
        }
    }

    /// Returns the block so many levels above this page.
    pub(super) const fn block(self, above: u32) -> Self {
        Self { above, ..self }
    }

    /// Returns the bytes of a page, and so of a table.
    pub const fn page_bytes(self) -> u64 {
        1 << self.page_shift
    }

    /// Returns the levels between this leaf and a page.
    pub const fn above(self) -> u32 {
        self.above
    }

    pub const fn is_page(self) -> bool {
        self.above == 0
    }

    /// Returns the binary logarithm of the bytes that an entry so many levels above this leaf translates.
    pub(super) const fn shift(self, levels: u32) -> u32 {
        self.page_shift + (self.above + levels) * (self.page_shift - 3)
    }

    pub const fn bytes(self) -> u64 {
        1 << self.shift(0)
    }

    /// Returns the bytes that a table of such leaves translates.
    pub const fn span(self) -> u64 {
        1 << self.shift(1)
    }
}

/// Writes a size in the largest unit that fits.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{}K", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{}M", bytes >> 20),
        _ => format!("{}G", bytes >> 30),
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_page() { "leaves" } else { "blocks" };
        write!(f, "{} {kind}", size(self.bytes()))
    }
}
