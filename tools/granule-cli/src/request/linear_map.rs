//! The linear map that a boot asks for: the way to make it, its protection, and the library's values for it.

use clap::ValueEnum;
use granule::linear::{self, Strategy};

/// The strategies for making the linear map: the published ones, each a step on the one
/// before it, and `direct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinearMap {
    /// Each table through a fixmap slot, for each contiguous span of its entries.
    Base,
    /// Each table through a slot once to be zeroed and once to be filled.
    NoContRemap,
    /// Barriers once a table instead of once an entry.
    BatchBarriers,
    /// Each table through a slot once.
    NoAllocRemap,
    /// Slots are emptied sixteen at a time.
    LazyUnmap,
    /// Tables from memory that is mapped already.
    Direct,
}

/// The place of the barriers for page entries in the published strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Barriers {
    /// With each entry.
    Entry,
    /// With each table.
    Table,
}

/// The changes to permissions that the kernel may make after boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rodata {
    /// Nothing is protected.
    Off,
    /// The kernel image and its alias in the linear map; largest leaves.
    Noalias,
    /// Any page's permission may change later.
    On,
    /// The same as `on`.
    Full,
}

impl LinearMap {
    /// All strategies, the published ones in the order of their steps.
    pub const ALL: [Self; 6] = [
        Self::Base,
        Self::NoContRemap,
        Self::BatchBarriers,
        Self::NoAllocRemap,
        Self::LazyUnmap,
        Self::Direct,
    ];

    /// The library's value; `None` for `direct`.
    pub fn strategy(self) -> Option<Strategy> {
        match self {
            Self::Base => Some(Strategy::Base),
            Self::NoContRemap => Some(Strategy::NoContRemap),
            Self::BatchBarriers => Some(Strategy::BatchBarriers),
            Self::NoAllocRemap => Some(Strategy::NoAllocRemap),
            Self::LazyUnmap => Some(Strategy::LazyUnmap),
            Self::Direct => None,
        }
    }

    /// The barriers that the strategy was published with.
    pub fn barriers(self) -> Barriers {
        match self.strategy().map(Strategy::barriers) {
            Some(linear::Barriers::Entry) => Barriers::Entry,
            _ => Barriers::Table,
        }
    }

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::NoContRemap => "no-cont-remap",
            Self::BatchBarriers => "batch-barriers",
            Self::NoAllocRemap => "no-alloc-remap",
            Self::LazyUnmap => "lazy-unmap",
            Self::Direct => "direct",
        }
    }
}

impl Barriers {
    /// The library's value.
    pub fn value(self) -> linear::Barriers {
        match self {
            Self::Entry => linear::Barriers::Entry,
            Self::Table => linear::Barriers::Table,
        }
    }

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Table => "table",
        }
    }
}

impl Rodata {
    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Noalias => "noalias",
            Self::On => "on",
            Self::Full => "full",
        }
    }
}
