//! Changing the memory type, shareability, access flag and dirty state of mapped leaves.
//!
//! A change of the access flag or the dirty state is made in place, as a change of permissions is.
//! A change of memory type or shareability needs break-before-make on live tables (RWHZWS). It
//! breaks all leaves that it concerns, invalidates once, and then makes them valid again. A leaf is
//! broken like a present-invalid one, and bit 1 tells the two apart, so no memory is needed to
//! remember which leaves to make valid again. Each break is atomic, so no update by hardware is
//! lost.
//!
//! [`AttributeChange`] becomes a [`BitChange`] in one place. The rest handles any change of bits,
//! and asks [`classify`] what each leaf needs.

use super::protect::Holes;
use super::stage::Stage;
use super::walk::{Place, Slot};
use super::{BitChange, Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::{self, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Geometry, MemoryType, OutputFormat, Shareability};

/// A change of attributes. `None` leaves an attribute unchanged, for example
/// `AttributeChange { accessed: Some(true), ..AttributeChange::NONE }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange<M = MemoryType> {
    /// The kind of memory, of the type that the stage has for it
    /// ([`Stage::Memory`](super::Stage::Memory)).
    pub memory: Option<M>,
    /// The shareability; no effect where TCR.DS is set, because TCR gives it for every leaf.
    pub shareability: Option<Shareability>,
    /// The access flag.
    pub accessed: Option<bool>,
}

impl<M: Copy> AttributeChange<M> {
    /// No change.
    pub const NONE: Self = Self {
        memory: None,
        shareability: None,
        accessed: None,
    };

    /// The change as descriptor bits.
    pub(super) fn bits<S: Stage<Memory = M>>(self, geometry: &Geometry) -> BitChange {
        let mut change = BitChange {
            of: BitChange::LEAVES,
            clear: 0,
            set: 0,
        };
        let mut field = |mask: u64, value: u64| {
            change.clear |= mask & !value;
            change.set |= value;
        };
        if let Some(memory) = self.memory {
            field(S::MEMORY, S::encode_memory(memory, geometry));
        }
        // With TCR.DS the field holds bits of the address.
        let is_there = geometry.format() != OutputFormat::Lpa2;
        if let Some(shareability) = self.shareability.filter(|_| is_there) {
            field(Descriptor::SHAREABILITY, shareability.bits() << 8);
        }
        if let Some(accessed) = self.accessed {
            let flag = Descriptor::ACCESS_FLAG;
            field(flag, if accessed { flag } else { 0 });
        }
        change
    }
}

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

/// A leaf that is broken and will be made valid again: present-invalid, with the other value of the
/// bit that tells a page from a block.
const fn is_broken(entry: Descriptor, level: Level) -> bool {
    let invalid = entry.0 & Descriptor::VALID == 0 && entry.0 & Descriptor::PRESENT_INVALID != 0;
    invalid && (entry.0 & Descriptor::TABLE_OR_PAGE != 0) != level.is_last()
}

/// The change that breaks a valid leaf.
const fn breaking(level: Level) -> BitChange {
    let of = Descriptor::VALID;
    let set = Descriptor::PRESENT_INVALID;
    if level.is_last() {
        let clear = Descriptor::VALID | Descriptor::TABLE_OR_PAGE;
        BitChange { of, clear, set }
    } else {
        let clear = Descriptor::VALID;
        let set = set | Descriptor::TABLE_OR_PAGE;
        BitChange { of, clear, set }
    }
}

/// The leaf that was broken, valid again.
const fn mended(broken: Descriptor) -> Descriptor {
    let bits = (broken.0 ^ Descriptor::TABLE_OR_PAGE) & !Descriptor::PRESENT_INVALID;
    Descriptor(bits | Descriptor::VALID)
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Changes attributes of `bytes` bytes from `start`. A leaf that an end of the range cuts is
    /// split first, where the rules allow it. Present-invalid leaves change and stay
    /// present-invalid.
    ///
    /// On live tables a change of the access flag is made in place, and cleared flags are
    /// invalidated before this method returns. A change of the memory type or shareability uses
    /// break-before-make: all concerned leaves are made invalid, the range is invalidated once, and
    /// the new leaves are stored. **Every access to these leaves faults meanwhile**, so the range
    /// must hold no code, stack or data that this CPU uses here or to handle the fault, and none of
    /// these tables. Leaves that already have the attributes never fault.
    ///
    /// The caller cleans or invalidates caches, because memory whose type changes may have lines in
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect).
    pub fn change_attributes(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: AttributeChange<S::Memory>,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.change_or_break(start, bytes, change.bits::<S>(&self.geometry), holes)
    }

    /// Marks the leaves of `bytes` bytes from `start` as dirty or clean. This concerns leaves with
    /// [`dirty_modifier`](crate::arch::Permissions::dirty_modifier) only. On live tables leaves
    /// that became clean are invalidated before this method returns, so hardware notes the next
    /// write.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect).
    pub fn set_dirty(
        &mut self,
        start: S::Input,
        bytes: u64,
        dirty: bool,
        holes: Holes,
    ) -> Result<(), TableError> {
        self.change_or_break(start, bytes, dirty_bits(&self.geometry, dirty), holes)
    }

    /// Whether each leaf must be looked at by itself: the change may need break-before-make, or
    /// concerns only some leaves.
    pub(super) const fn one_by_one(&self, change: BitChange) -> bool {
        let live = matches!(self.liveness, Liveness::Live);
        change.of & BitChange::LEAVES == 0
            || (live && !bbm::in_place(&self.geometry, change.clear | change.set))
    }

    /// Returns the steps that `change` of a leaf needs.
    pub(super) fn way(&self, level: Level, entry: Descriptor, change: BitChange) -> Change {
        if !Self::changes(entry, change) {
            Change::Nothing
        } else if self.liveness == Liveness::Private {
            Change::Store
        } else {
            let new = change.apply(entry);
            classify(&self.geometry, level, entry, new, self.bbm)
        }
    }

    /// Changes bits of all leaves of a range that the change concerns, by break-before-make where
    /// the rules need it.
    pub(super) fn change_or_break(
        &mut self,
        start: S::Input,
        bytes: u64,
        change: BitChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        if !self.one_by_one(change) {
            return self.change(start, bytes, change, holes);
        }
        let (from, to) = self.offsets(start, bytes)?;
        if from == to {
            return Ok(());
        }
        if holes == Holes::Refuse {
            self.check_mapped(from, to)?;
        }
        self.split_edges(from, to, change)?;
        if !self.break_leaves(from, to, change) {
            self.flush();
        } else {
            self.flush_now();
            self.mend_leaves(from, to, change);
            self.pending.made_valid();
            self.publish();
        }
        Ok(())
    }

    /// Changes the whole leaves between two offsets in place where the rules allow it, and breaks
    /// the others. Returns whether a leaf was broken.
    fn break_leaves(&mut self, from: u64, to: u64, change: BitChange) -> bool {
        let stored = BitChange {
            of: BitChange::LEAVES,
            ..change
        };
        let mut broken = false;
        let mut at = from;
        let mut place = self.place(at);
        loop {
            if at > from {
                if at >= to {
                    return broken;
                }
                place = self.beside(&place, at);
            }
            let Place { slot, level, entry } = place;
            let Slot { table, index } = slot;
            let bytes = P::SIZE.entry_bytes(level);
            let (start, next) = (at, Self::end_of(at, level));
            at = next;
            // A leaf that is only partly in the range was not split, because it already has the
            // change.
            if !self.is_leaf(level, entry) || !Self::is_whole(start, level, to) {
                continue;
            }
            match self.way(level, entry, change) {
                Change::Nothing => {}
                Change::BreakBeforeMake => {
                    self.update(table, index, 1, breaking(level));
                    self.pending.leaves(start, next, level, bytes);
                    broken = true;
                }
                Change::Store => {
                    self.update(table, index, 1, stored);
                    if entry.is_valid() {
                        self.pending.made_valid();
                    }
                }
                Change::StoreThenInvalidate | Change::StoreResized { .. } => {
                    self.update(table, index, 1, stored);
                    self.pending.leaves(start, next, level, bytes);
                }
            }
        }
    }

    /// Stores the broken leaves between two offsets again, with the change. Hardware updates no
    /// invalid entry.
    fn mend_leaves(&mut self, from: u64, to: u64, change: BitChange) {
        let how = self.visibility();
        let mut at = from;
        let mut place = self.place(at);
        loop {
            let Place { slot, level, entry } = place;
            if is_broken(entry, level) {
                let mended = change.apply(mended(entry));
                self.store(slot.table, slot.index, mended, how);
            }
            at = Self::end_of(at, level);
            if at >= to {
                return;
            }
            place = self.beside(&place, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_leaf_is_neither_valid_nor_present_invalid_and_can_be_mended() {
        for level in [Level::L1, Level::L2, Level::L3] {
            let page = if level.is_last() { 0b10 } else { 0 };
            // The smallest leaf possible: every other bit is clear.
            for bits in [0, 0x0060_0000_4000_0704] {
                let leaf = Descriptor(bits | page | 1);
                assert!(!is_broken(leaf, level));
                assert!(!is_broken(leaf.present_invalid(), level));
                let broken = breaking(level).apply(leaf);
                assert!(is_broken(broken, level) && !broken.is_valid());
                assert_eq!(mended(broken), leaf);
            }
            assert!(!is_broken(Descriptor::INVALID, level));
        }
    }
}
