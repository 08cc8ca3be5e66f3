//! The trait that accesses the memory of tables: the first of the three traits of
//! [`PageTables`](super::PageTables).
//!
//! [`DirectMapped`](super::DirectMapped) implements [`TableMemory`] over plain pointers, for code
//! that can convert a table's physical address to a pointer. A model of the hardware implements the
//! trait in its own way. The code here does not interpret descriptors.

#![allow(
    unsafe_code,
    reason = "the trait of table memory, whose callers keep its rules"
)]

use crate::arch::{Descriptor, Level, PhysicalAddress};

/// Whether walkers may read a table while it is written, which decides how its entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an implementation of `TableMemory` must know all"
)]
pub enum Visibility {
    /// No walker can reach the table. Plain stores, which compilers may pair.
    Private,
    /// Walkers may read the table at any time. Each entry is stored with one 64-bit access.
    Live,
    /// As [`Live`](Self::Live), and a walker that sees this store also sees every earlier one. The
    /// store-release links filled tables, in place of a DSB ISHST between filling and linking.
    Publish,
    /// As [`Live`](Self::Live), and atomic with the load of the old entry. A recorder reports an
    /// [exchange](TableMemory::exchange) with this value.
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

/// Access to the memory of translation tables.
///
/// Indices count descriptors of 8 bytes. The bulk operations avoid a call for each entry, and they
/// give a model or a trace one event for a whole run.
///
/// # Safety
///
/// An implementation must access exactly the named entries, and a distance or a number that it returns
/// must not lie behind them. For [`Visibility::Live`] and
/// [`Visibility::Publish`] it must store each entry with a single 64-bit access in the requested
/// order. The default bodies of [`exchange`](Self::exchange) and [`update`](Self::update) are a load
/// and a store, so memory whose entries hardware or another CPU may change meanwhile needs its own.
pub unsafe trait TableMemory {
    /// Loads one entry.
    ///
    /// # Safety
    ///
    /// This memory must reach `table`, and `index` must lie inside it.
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor;

    /// The distance from index `first` to the first one of `count` entries that does not match
    /// `pattern`, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), for each of the entries. With [`Visibility::Private`] nothing
    /// may write them meanwhile, neither code nor hardware.
    unsafe fn find_unlike(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        _visibility: Visibility,
    ) -> Option<usize> {
        // SAFETY: the caller promises that all of the entries lie inside a reached table.
        (0..count).find(|index| !pattern.matches(unsafe { self.load(table, first + index) }))
    }

    /// Stores one entry.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and no other code may write the table. The table of a
    /// [`Visibility::Private`] store must be out of reach of all walkers.
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    );

    /// Stores `count` entries from index `first`: `descriptor`, `descriptor + step`, and so on.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        let mut next = descriptor;
        for index in first..first.wrapping_add(count) {
            // SAFETY: the caller promises this for each of the entries.
            unsafe { self.store(table, index, next, visibility) };
            next.0 = next.0.wrapping_add(step);
        }
    }

    /// Stores one entry and returns the old one, atomically. An update by hardware (of the access
    /// flag or the dirty state) either comes before and is in the returned entry, or finds the new
    /// entry.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store).
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller keeps the rules of both.
        unsafe {
            let old = self.load(table, index);
            self.store(table, index, descriptor, visibility);
            old
        }
    }

    /// Applies `change` to those of `count` entries from index `first` that it concerns, and
    /// returns their number. The other entries stay as they are.
    ///
    /// No concurrent update by hardware is lost: each entry that hardware may update
    /// ([`Descriptor::changes_atomically`]) is changed atomically (RWLTNL).
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let mut changed = 0;
        for index in first..first.wrapping_add(count) {
            // SAFETY: the caller promises this for each of the entries.
            unsafe {
                let old = self.load(table, index);
                if change.concerns(old) {
                    self.store(table, index, change.apply(old), visibility);
                    changed += 1;
                }
            }
        }
        changed
    }

    /// As [`update`](Self::update), but of the entries before the first one that does not match
    /// `pattern`, whose bits make `change` concern each entry that matches. Returns their number.
    ///
    /// # Safety
    ///
    /// As for [`update`](Self::update).
    unsafe fn update_alike(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller promises this for each of the entries.
        unsafe {
            let unlike = self.find_unlike(table, first, count, pattern, visibility);
            self.update(table, first, unlike.unwrap_or(count), change, visibility)
        }
    }
}
