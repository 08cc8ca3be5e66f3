//! The published strategies for making a linear map, and their barriers: plain values.

use core::fmt;

/// A published strategy for making the linear map, by [`fixmap::create`](super::fixmap::create).
/// Each adds one step to the one before it, so strategies are ordered: a later one includes every
/// step of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Strategy {
    /// The fixmap maps a table once for each contiguous span of its entries, and once more for
    /// zeroing.
    Base,
    /// The fixmap maps a table once for all of its entries, and once more for zeroing.
    NoContRemap,
    /// As `NoContRemap`, and entries of last-level tables are written without their own barriers.
    BatchBarriers,
    /// As `BatchBarriers`, and a new table is zeroed and filled while it is mapped once.
    NoAllocRemap,
    /// As `NoAllocRemap`, and last-level tables use a series of slots, unmapped together.
    LazyUnmap,
}

impl Strategy {
    /// All strategies, in the order of their steps.
    pub const ALL: [Self; 5] = [
        Self::Base,
        Self::NoContRemap,
        Self::BatchBarriers,
        Self::NoAllocRemap,
        Self::LazyUnmap,
    ];

    /// The barriers of the strategy in its last published form.
    #[must_use]
    pub const fn barriers(self) -> Barriers {
        match self {
            Self::Base | Self::NoContRemap => Barriers::Entry,
            _ => Barriers::Table,
        }
    }
}

/// The published name.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Base => "base",
            Self::NoContRemap => "no-cont-remap",
            Self::BatchBarriers => "batch-barriers",
            Self::NoAllocRemap => "no-alloc-remap",
            Self::LazyUnmap => "lazy-unmap",
        })
    }
}

/// When the entries of last-level tables get their DSB and ISB. Entries of upper tables, links and
/// blocks, have their own barriers in every published form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barriers {
    /// One pair for each entry.
    Entry,
    /// No barriers per entry: the barriers of the table's slot serve all of them.
    Table,
}

impl Barriers {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Entry, Self::Table];
}

/// `entry` or `table`.
impl fmt::Display for Barriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Entry => "entry",
            Self::Table => "table",
        })
    }
}
