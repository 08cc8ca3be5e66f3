//! Names of the strategies for making a linear map.
//!
//! Plain values only. The kernel's command line, the builder of the published strategies
//! ([`fixmap`](super::fixmap)) and the cost arithmetic ([`expected`](mod@super::expected)) share
//! them.

use core::fmt;

/// A strategy for making the linear map. Each published strategy adds one step to the one before
/// it, so strategies are ordered: a later one includes every step of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Tables come from memory that the map already covers: no slots, no TLBIs.
    Direct,
}

impl Strategy {
    /// All strategies, the published ones in the order of their steps.
    pub const ALL: [Self; 6] = [
        Self::Base,
        Self::NoContRemap,
        Self::BatchBarriers,
        Self::NoAllocRemap,
        Self::LazyUnmap,
        Self::Direct,
    ];

    /// The name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::NoContRemap => "no-cont-remap",
            Self::BatchBarriers => "batch-barriers",
            Self::NoAllocRemap => "no-alloc-remap",
            Self::LazyUnmap => "lazy-unmap",
            Self::Direct => "direct",
        }
    }

    /// The strategy of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name().as_bytes() == name)
    }

    /// The barriers of the strategy in its last published form.
    #[must_use]
    pub const fn barriers(self) -> Barriers {
        match self {
            Self::Base | Self::NoContRemap => Barriers::Entry,
            _ => Barriers::Table,
        }
    }
}

/// A published strategy: any one except [`Direct`](Strategy::Direct). It maps tables through slots.
///
/// The builder and the cost arithmetic take this type, so they cannot be called with `Direct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Published(Strategy);

impl Published {
    /// The strategy itself.
    #[must_use]
    pub const fn strategy(self) -> Strategy {
        self.0
    }
}

impl Strategy {
    /// The strategy as a published one; `None` for [`Direct`](Strategy::Direct).
    #[must_use]
    pub const fn published(self) -> Option<Published> {
        match self {
            Self::Direct => None,
            _ => Some(Published(self)),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// When the entries of last-level tables get their DSB and ISB. Entries of upper tables, links and
/// blocks, have their own barriers in every published form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// The name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Table => "table",
        }
    }

    /// The barriers of this name, if there are any.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|barriers| barriers.name().as_bytes() == name)
    }
}

impl fmt::Display for Barriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
