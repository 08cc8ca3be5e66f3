//! How the walker reaches the memory of a table: the first of the three traits it stands on.
//!
//! [`TableMemory`] is what the walker calls; [`Reached`](super::Reached) implements it over plain
//! pointers for anyone who can turn a table's physical address into one. A model of the hardware
//! implements it otherwise. Nothing in here knows what a descriptor means.

use crate::arch::{Descriptor, PhysicalAddress};

/// Who may see a table while it is written, and so how its entries must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Visibility {
    /// Nobody: the table is not linked yet. Plain stores, which compilers may pair.
    Private,
    /// Walkers may read it at any time: each entry is stored whole.
    Live,
    /// As [`Live`](Self::Live), and every store made before is visible to a walker that sees
    /// this one: links tables that were filled before (a store-release, in place of a DSB ISHST
    /// between filling and linking).
    Publish,
    /// As [`Live`](Self::Live), in one step with loading what was there: what a recorder tells of an
    /// [exchange](TableMemory::exchange).
    Exchange,
}

/// A change of some bits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitChange {
    /// Only entries in which any of these bits is set are changed: [`Descriptor::VALID`],
    /// [`Descriptor::HIDDEN`], or both.
    pub of: u64,
    /// The bits to clear first.
    pub clear: u64,
    /// The bits to set then.
    pub set: u64,
}

impl BitChange {
    /// The entries that hold a leaf, hidden ones included.
    pub const LEAVES: u64 = Descriptor::VALID | Descriptor::HIDDEN;

    /// Whether `descriptor` is one of those that are changed.
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

/// Access to the memory of translation tables.
///
/// Indices count descriptors of 8 bytes. The bulk operations are there so that nothing need be
/// called once an entry, and so that a model or a trace sees one event for a whole run.
///
/// # Safety
///
/// An implementation must read and write exactly the entries named, and for
/// [`Visibility::Live`] and [`Visibility::Publish`] store each entry with a single 64-bit access
/// in the order asked for.
pub unsafe trait TableMemory {
    /// Loads one entry.
    ///
    /// # Safety
    ///
    /// `table` must be a table that this memory reaches, `index` inside it.
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor;

    /// How far behind index `first` the first one of `count` entries is that holds something,
    /// valid or hidden, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), for each of them.
    unsafe fn find_mapped(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        // SAFETY: the caller vouches for all of the entries.
        (0..count)
            .find(|index| unsafe { self.load(table, first + index) }.0 & BitChange::LEAVES != 0)
    }

    /// Stores one entry.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and the caller is the only one who writes the table. A
    /// [`Visibility::Private`] store is only for a table that no walker can reach.
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
    );

    /// Stores one entry and gives back what was there, in one step: an update by hardware (of the
    /// access flag or the dirty state) comes either before it, and is in what is given back, or
    /// finds the new entry.
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
    ) -> Descriptor;

    /// Changes bits of those among `count` entries from index `first` that the change concerns,
    /// and gives back how many those were. The others stay as they are.
    ///
    /// An update by hardware that comes in between is not lost: entries that hardware may update
    /// ([`Descriptor::may_be_updated`]) are changed in one step each (RWLTNL).
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
    ) -> usize;
}
