//! How entries of tables are stored, changed and compared: the values that
//! [`TableEnvironment`](super::TableEnvironment) takes. The code here accesses no table.

use crate::arch::{Descriptor, Level};

/// Whether walkers may read a table while it is written, which decides how its entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "an environment must know all")]
pub enum Visibility {
    /// No walker can reach the table. Plain stores, which compilers may pair.
    Private,
    /// Walkers may read the table at any time. Each entry is stored with one 64-bit access.
    Live,
    /// As [`Live`](Self::Live), and a walker that sees this store also sees every earlier one. The
    /// store-release links filled tables, in place of a DSB ISHST between filling and linking.
    Publish,
    /// As [`Live`](Self::Live), and atomic with the load of the old entry. A recorder reports an
    /// [exchange](super::TableEnvironment::exchange) with this value.
    Exchange,
}

/// A change of some bits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitChange {
    /// The entries to change: those with any of these bits set. [`Descriptor::VALID`],
    /// [`Descriptor::PRESENT_INVALID`], or both.
    pub of: u64,
    /// The bits to clear.
    pub clear: u64,
    /// The bits to set after that.
    pub set: u64,
}

impl BitChange {
    /// The bits that select all leaves, valid and present-invalid.
    pub const LEAVES: u64 = Descriptor::VALID | Descriptor::PRESENT_INVALID;

    /// Whether the change applies to `descriptor`.
    #[must_use]
    pub const fn concerns(self, descriptor: Descriptor) -> bool {
        descriptor.0 & self.of != 0
    }

    /// The descriptor after the change.
    #[must_use]
    pub const fn apply(self, descriptor: Descriptor) -> Descriptor {
        Descriptor((descriptor.0 & !self.clear) | self.set)
    }
}

/// The required value of some bits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitPattern {
    /// The bits to compare.
    pub mask: u64,
    /// Their value; the other bits are clear.
    pub value: u64,
}

impl BitPattern {
    /// An entry that is neither valid nor present-invalid.
    pub const EMPTY: Self = Self {
        mask: BitChange::LEAVES,
        value: 0,
    };
    /// A valid page, in a table of the last level.
    pub const PAGE: Self = Self {
        mask: Descriptor::TABLE_OR_PAGE | Descriptor::VALID,
        value: Descriptor::TABLE_OR_PAGE | Descriptor::VALID,
    };
    /// A pointer to a table, in a table above the last level.
    pub const TABLE: Self = Self::PAGE;
    /// A valid block, in a table above the last level.
    pub const BLOCK: Self = Self {
        mask: Descriptor::TABLE_OR_PAGE | Descriptor::VALID,
        value: Descriptor::VALID,
    };

    /// An entry outside contiguous groups.
    pub(super) const SINGLE: Self = Self {
        mask: Descriptor::CONTIGUOUS,
        value: 0,
    };

    /// Anything.
    pub(super) const ANY: Self = Self { mask: 0, value: 0 };

    /// A valid leaf of a table of `level`.
    pub(super) const fn leaf(level: Level) -> Self {
        if level.is_last() {
            Self::PAGE
        } else {
            Self::BLOCK
        }
    }

    /// This and `other`, which have no bits in common.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            mask: self.mask | other.mask,
            value: self.value | other.value,
        }
    }

    /// Whether `descriptor` has these bits.
    #[must_use]
    pub const fn matches(self, descriptor: Descriptor) -> bool {
        descriptor.0 & self.mask == self.value
    }

    /// Whether no entry matches both this and `other`.
    pub(super) const fn excludes(self, other: Self) -> bool {
        (self.value ^ other.value) & self.mask & other.mask != 0
    }

    /// Whether an entry that matches has none of these bits.
    #[inline(always)]
    pub(super) const fn is_clear(self, bits: u64) -> bool {
        bits & !(self.mask & !self.value) == 0
    }

    /// Whether all of these entries have the bits. Where the code is inlined with a pattern that is
    /// known to be of ones, it takes one instruction an entry.
    #[inline(always)]
    pub(super) fn matches_all(self, entries: impl IntoIterator<Item = u64>) -> bool {
        let entries = entries.into_iter();
        let different = if self.value == self.mask {
            !entries.fold(u64::MAX, |all, entry| all & entry)
        } else {
            entries.fold(0, |any, entry| any | (entry ^ self.value))
        };
        different & self.mask == 0
    }
}
