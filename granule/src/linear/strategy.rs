//! The names of the ways to make a linear map, and what sets each apart from the one before.
//!
//! Plain values, shared by the command line of a kernel, by the builder of the published ones
//! ([`window`](super::window)) and by the arithmetic that says what each costs
//! ([`expected`](mod@super::expected)).

use core::fmt;

/// A way to make the linear map. Each published one is the one before it and a step more, so
/// they compare: a later one does all that an earlier one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A table is shown anew for each contiguous span of its entries, and once more to be zeroed.
    Base,
    /// A table is shown once for all of its entries, and once more to be zeroed.
    NoContRemap,
    /// Entries of last-level tables are written without barriers of their own.
    BatchBarriers,
    /// A new table is shown once, zeroed and filled in that one showing.
    NoAllocRemap,
    /// Last-level tables are shown in a series of slots, which are emptied together.
    LazyUnmap,
    /// Tables from memory that the map already covers: no slots, no TLBIs.
    Direct,
}

impl Strategy {
    /// All of them, the published ones in the order of their steps.
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

    /// The barriers that go with it as it was last published.
    #[must_use]
    pub const fn barriers(self) -> Barriers {
        match self {
            Self::Base | Self::NoContRemap => Barriers::Entry,
            _ => Barriers::Table,
        }
    }
}

/// A strategy that is not [`Direct`](Strategy::Direct): one that shows tables through slots.
///
/// What makes and counts those takes this, so that none of it can be asked for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Published(Strategy);

impl Published {
    /// Which one.
    #[must_use]
    pub const fn strategy(self) -> Strategy {
        self.0
    }
}

impl Strategy {
    /// It as one of the published ways, if it is one.
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

/// When the entries of last-level tables get their DSB and ISB. Entries above, links and blocks,
/// have their own in every published form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Barriers {
    /// A pair for each entry.
    Entry,
    /// None of their own: those of the table's slot serve all.
    Table,
}

impl Barriers {
    /// Both.
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
