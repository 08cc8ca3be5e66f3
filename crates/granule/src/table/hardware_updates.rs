//! Splitting leaves that hardware may update at the same time (TCR.HA, TCR.HD), without losing an
//! update. The two steps of a split that touch such leaves are here: a group loses its hint, and a
//! table replaces a leaf. The decision what to split is elsewhere.
//!
//! An update by hardware is one atomic change of an entry (RWLTNL), so both steps change entries
//! atomically too. Hardware never undoes its updates. An update that comes late is therefore found
//! by reading once more, and it then holds for everything that the old leaf translated.
//!
//! Merging needs none of this, because it leaves entries that hardware may update as they are.

use super::change_attributes::dirty_bits;
use super::pending::Pending;
use super::stage::Stage;
use super::{BitChange, Liveness, PageTables, TableEnvironment};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, PhysicalAddress};

/// Clears the contiguous hint of leaves.
const UNGROUP: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: Descriptor::CONTIGUOUS,
    set: 0,
};

/// The notes of hardware in the members of a group.
struct Noted {
    /// Whether any member has the access flag.
    accessed: bool,
    /// Whether any member is marked dirty.
    dirty: bool,
    /// Whether hardware may still update a member.
    may_change: bool,
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Returns the change of one member that gives it the notes of all members of its group: a
    /// note in any member holds for all (RXDPXQ).
    pub(super) fn gathering(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> impl Fn(Descriptor) -> BitChange + use<P, E, S> {
        let noted = self.noted(table, first, count);
        let marked = dirty_bits(&self.geometry, true);
        move |member| {
            let mut change = BitChange {
                of: BitChange::LEAVES,
                clear: 0,
                set: 0,
            };
            if noted.dirty && marked.concerns(member) {
                (change.clear, change.set) = (marked.clear, marked.set);
            }
            if noted.accessed {
                change.set |= Descriptor::ACCESS_FLAG;
            }
            change
        }
    }

    /// Whether hardware may update a member of this group now. Once it may not, it never may until
    /// software changes the members.
    pub(super) fn may_be_updated(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> bool {
        self.liveness == Liveness::Live && self.noted(table, first, count).may_change
    }

    fn noted(&self, table: PhysicalAddress, first: usize, count: usize) -> Noted {
        let mut noted = Noted {
            accessed: false,
            dirty: false,
            may_change: false,
        };
        for index in first..first + count {
            let member = self.load(table, index);
            noted.accessed |= member.0 & Descriptor::ACCESS_FLAG != 0;
            noted.dirty |= self.geometry.is_dirty(member);
            noted.may_change |= self.geometry.may_be_updated(member);
        }
        noted
    }

    /// Whether a change ends hardware's management of the dirty state, and each leaf stays as
    /// hardware noted it.
    pub(super) const fn ends_dirty_state(&self, change: BitChange) -> bool {
        let (cleared, set) = self.geometry.dirty_state(true);
        change.clear & !change.set & Descriptor::DIRTY_MODIFIER != 0
            && (change.clear | change.set) & (cleared | set) == 0
    }

    /// Makes all members of a group writable if any is, for each whole group between two offsets
    /// whose dirty state hardware manages no more. A note in any member was one of the group
    /// (RXDPXQ), but now it is a permission, in which members must not differ (RJQQTC).
    pub(super) fn level_groups(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
    ) {
        let writable = BitChange {
            of: BitChange::LEAVES,
            ..dirty_bits(&self.geometry, true)
        };
        let bytes = P::SIZE.entry_bytes(level);
        let count = P::SIZE.contiguous_entries(level);
        let group = bytes * count as u64;
        let mut at = from;
        while at < to {
            let mut next = to.min((at & !(bytes - 1)) + bytes);
            let first = Self::index(at, level);
            let entry = self.load(table, first);
            if entry.is_table(level) {
                let below = self.geometry.address_of(entry, level);
                self.level_groups(below, level.next(), at, next);
            } else if entry.0 & BitChange::LEAVES != 0
                && entry.is_contiguous()
                && at & (group - 1) == 0
                && to - at >= group
            {
                next = at + group;
                let members = first..first + count;
                let any = members.clone().any(|index| {
                    let member = self.load(table, index);
                    writable.apply(member) == member
                });
                let differs = |index| Self::changes(self.load(table, index), writable);
                if any && members.clone().any(differs) {
                    self.update(table, first, count, writable);
                }
            }
            at = next;
        }
    }

    /// Clears the hint of the group at index `first`, whose first offset is `offset`. All members
    /// get the access flag and the dirty state that hardware noted in any of them.
    pub(super) fn clear_hint(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        level: Level,
        offset: u64,
    ) {
        let count = P::SIZE.contiguous_entries(level);
        let updated = self.may_be_updated(table, first, count);
        self.update(table, first, count, UNGROUP);
        if updated {
            // Until no TLB holds the group, hardware may note a write to one member in another.
            let bytes = P::SIZE.entry_bytes(level);
            self.pending
                .entries(offset, offset + bytes * count as u64, bytes);
            self.flush_now();
        }
        let gathering = self.gathering(table, first, count);
        for index in first..first + count {
            let member = self.load(table, index);
            let change = gathering(member);
            if change.apply(member) != member {
                // No TLBI: no TLB holds an entry without the flag, and a clean entry that is cached
                // allows less. Walkers must see the store, even if the operation does nothing more.
                self.update(table, index, 1, change);
                if member.is_valid() {
                    self.pending.made_valid();
                }
            }
        }
    }

    /// Links `child` in place of the leaf at `index`, whose first offset is `offset`. The table
    /// must translate as the leaf did when it was `built_from`.
    pub(super) fn link_in_place_of(
        &mut self,
        built_from: Descriptor,
        table: PhysicalAddress,
        index: usize,
        level: Level,
        offset: u64,
        child: PhysicalAddress,
    ) {
        let link = Descriptor::table(&self.geometry, child);
        let how = self.linking();
        if self.liveness == Liveness::Private || !self.geometry.may_be_updated(built_from) {
            self.store(table, index, link, how);
            return;
        }
        let last = self.exchange_as(table, index, link, how);
        // Hardware clears bit 7 of a page that becomes dirty, or sets it at stage 2.
        let noted = Descriptor::ACCESS_FLAG | Descriptor::AP_READ_ONLY;
        let late = BitChange {
            of: Descriptor::VALID,
            clear: built_from.0 & !last.0 & noted,
            set: last.0 & !built_from.0 & noted,
        };
        if late.clear | late.set != 0 {
            let end = offset + P::SIZE.entry_bytes(level);
            // No TLBI, as in `clear_hint`, so the change is not recorded.
            let pending = core::mem::replace(&mut self.pending, Pending::NOTHING);
            self.change_in(child, level.next(), offset, end, late);
            core::mem::replace(&mut self.pending, pending).flushed();
        }
    }
}
