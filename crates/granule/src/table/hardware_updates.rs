//! Splitting leaves that hardware may update at the same time (TCR.HA, TCR.HD), without losing an
//! update. The two steps of a split that touch such leaves are here: a group loses its hint, and a
//! table replaces a leaf. The decision what to split is elsewhere.
//!
//! An update by hardware is one atomic change of an entry (RWLTNL), so both steps change entries
//! atomically too. Hardware never undoes its updates. An update that comes late is therefore found
//! by reading once more, and it then holds for everything that the old leaf translated.
//!
//! Merging needs none of this, because it leaves entries that hardware may update as they are.

use super::pending::Pending;
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, Liveness, PageTables, TableEnvironment};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, Geometry, PhysicalAddress};

/// The bits by which hardware notes an access, and those that allow it to: bit 7 is that of both stages.
const NOTES: u64 = Descriptor::VALID
    | Descriptor::ACCESS_FLAG
    | Descriptor::AP_READ_ONLY
    | Descriptor::DIRTY_MODIFIER;

/// Clears the contiguous hint of leaves.
const UNGROUP: BitChange = BitChange {
    of: BitChange::LEAVES,
    clear: Descriptor::CONTIGUOUS,
    set: 0,
};

/// The change that marks leaves dirty or clean, where hardware manages their dirty state (DBM). It
/// concerns only some leaves, so each is looked at by itself.
pub(super) const fn dirty_bits(geometry: &Geometry, dirty: bool) -> BitChange {
    let (clear, set) = geometry.dirty_state(dirty);
    BitChange {
        of: Descriptor::DIRTY_MODIFIER,
        clear,
        set,
    }
}

/// The notes of hardware in the members of a group.
pub(super) struct Noted {
    /// The bits to clear and to set in each member, so that it has the notes of all.
    give: BitChange,
    /// The bits to clear and to set in a member whose dirty state hardware manages.
    dirty: BitChange,
    /// Whether hardware may still update a member.
    may_change: bool,
    /// Whether each member has the notes of all.
    alike: bool,
}

impl Noted {
    /// The member with the notes of all members: a note in any member holds for all (RXDPXQ).
    pub(super) const fn give(&self, member: Descriptor) -> Descriptor {
        let member = self.give.apply(member);
        if self.dirty.concerns(member) {
            self.dirty.apply(member)
        } else {
            member
        }
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Reads the notes in the members of the group that begins at `first`, or in one leaf.
    #[inline(never)]
    pub(super) fn noted(&self, first: Slot, level: Level) -> Noted {
        const NOTHING: BitChange = BitChange {
            of: 0,
            clear: 0,
            set: 0,
        };
        let mut noted = Noted {
            give: NOTHING,
            dirty: NOTHING,
            may_change: false,
            alike: true,
        };
        // Neighbours are usually alike, so that most members cost a comparison.
        let mut last = u64::MAX;
        for index in first.index..first.index + self.size().contiguous_entries(level) {
            let member = Descriptor(self.load(first.table, index).0 & NOTES);
            if member.0 == last {
                continue;
            }
            noted.alike &= last == u64::MAX;
            last = member.0;
            noted.give.set |= member.0 & Descriptor::ACCESS_FLAG;
            if self.geometry.is_dirty(member) {
                noted.dirty = dirty_bits(&self.geometry, true);
            }
            noted.may_change |= self.may_be_updated(member);
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
    #[inline(never)]
    pub(super) fn level_groups(&mut self, from: u64, to: u64) {
        let writable = BitChange {
            of: BitChange::LEAVES,
            ..dirty_bits(&self.geometry, true)
        };
        let mut at = from;
        while at < to {
            let Place { slot, level, entry } = self.place(at);
            let (first, count) = self.group_at(slot.index, level, entry);
            let is_leaf = self.is_whole(at, level, to) && entry.0 & BitChange::LEAVES != 0;
            let is_group = is_leaf && entry.is_contiguous();
            if !is_group || first != slot.index || self.whole(at, level, to) < count {
                at = self.end_of(at, level);
                continue;
            }
            let (mut any, mut all) = (false, true);
            for index in first..first + count {
                let differs = Self::changes(self.load(slot.table, index), writable);
                any |= !differs;
                all &= !differs;
            }
            if any && !all {
                self.update(slot.table, first, count, writable);
            }
            at = self.behind(at, level, count);
        }
    }

    /// Clears the hint of the group at `first`, whose first offset is `offset`. All members get the
    /// access flag and the dirty state that hardware noted in any of them.
    #[inline(never)]
    pub(super) fn clear_hint(&mut self, first: Slot, level: Level, offset: u64) {
        let count = self.size().contiguous_entries(level);
        let live = self.liveness == Liveness::Live;
        let mut noted = self.noted(first, level);
        self.update(first.table, first.index, count, UNGROUP);
        if live && noted.may_change {
            // Until no TLB holds the group, hardware may note a write to one member in another.
            let end = self.behind(offset, level, count);
            self.pending
                .entries(offset, end, self.size().entry_bytes(level));
            self.flush_now();
            noted = self.noted(first, level);
        }
        if noted.alike {
            return;
        }
        for index in first.index..first.index + count {
            let member = self.load(first.table, index);
            let given = noted.give(member);
            if given != member {
                // No TLBI: no TLB holds an entry without the flag, and a clean entry that is cached
                // allows less. Walkers must see the store, even if the operation does nothing more.
                self.update(
                    first.table,
                    index,
                    1,
                    BitChange {
                        of: BitChange::LEAVES,
                        clear: member.0 & !given.0,
                        set: given.0 & !member.0,
                    },
                );
                if member.is_valid() {
                    self.pending.made_valid();
                }
            }
        }
    }

    /// Links `child` in place of the leaf at `slot`, whose first offset is `offset`. The table
    /// must translate as the leaf did when it was `built_from`.
    #[inline(never)]
    pub(super) fn link_in_place_of(
        &mut self,
        built_from: Descriptor,
        slot: Slot,
        level: Level,
        offset: u64,
        child: PhysicalAddress,
    ) {
        let link = Descriptor::table(&self.geometry, child);
        let how = self.linking();
        if self.liveness == Liveness::Private || !self.may_be_updated(built_from) {
            self.store(slot.table, slot.index, link, how);
            return;
        }
        let last = self.exchange_as(slot.table, slot.index, link, how);
        // Hardware clears bit 7 of a page that becomes dirty, or sets it at stage 2.
        let noted = Descriptor::ACCESS_FLAG | Descriptor::AP_READ_ONLY;
        let late = BitChange {
            of: Descriptor::VALID,
            clear: built_from.0 & !last.0 & noted,
            set: last.0 & !built_from.0 & noted,
        };
        if late.clear | late.set != 0 {
            // No TLBI, as in `clear_hint`, so the change is not recorded.
            let pending = core::mem::replace(&mut self.pending, Pending::NOTHING);
            self.change_leaves(offset, self.end_of(offset, level), late, None);
            core::mem::replace(&mut self.pending, pending).flushed();
        }
    }
}
