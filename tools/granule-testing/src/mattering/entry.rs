//! An entry of a table, as walkers and TLBs have it. What holds it is not known here.

pub(super) const NOT_GLOBAL: u64 = 1 << 11;

/// A valid entry, as a walk of a tree finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) upper: bool,
    /// `None` for global leaves, and in the upper half.
    pub(super) asid: Option<u16>,
    pub(super) page_shift: u32,
    pub(super) va: u64,
    pub(super) shift: u32,
    pub(super) level: u8,
    pub(super) leaf: bool,
    pub(super) raw: u64,
}

impl Entry {
    pub(super) const fn last(&self) -> u64 {
        self.va + ((1 << self.shift) - 1)
    }

    /// The physical address of the leaf, or of the table.
    pub(super) const fn output(&self) -> u64 {
        let low = if self.leaf {
            self.shift
        } else {
            self.page_shift
        };
        self.raw & 0x0000_ffff_ffff_ffff & (u64::MAX << low)
    }
}
