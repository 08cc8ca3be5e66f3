//! Setting the contiguous hint on pages that were mapped one by one, and clearing it again.
//!
//! The hint may change in place only where FEAT_BBM allows it (level 1, RPVTFW), and only if
//! nothing else changes. Hardware may set the access flag or the dirty state in one member for the
//! whole group (RXDPXQ, RLCGVS). Before the hint changes, every member therefore gets these bits if
//! any member has them. If hardware may still update a member, or the level forbids a change in
//! place, the group is broken first: one exchange per member makes it invalid and gathers its bits,
//! each member is invalidated (RLQLSD), and then all members are stored anew.

use super::page::Slot;
use super::{BitChange, FreedFrames, Liveness, PageTables, TableEnvironment};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};

/// Software's dirty bit, bit 55: the page was written. It remains when the hardware's dirty state
/// is lost.
pub(crate) const DIRTY: u64 = 1 << 55;

/// The access flag, which hardware may set in one member for the group, and software's dirty bit.
const GATHERED: u64 = Descriptor::ACCESS_FLAG | DIRTY;

/// A descriptor without the bits in which members of a group may differ: the bits that hardware
/// updates in one member, and the hint. AP\[2\] is such a bit only if the dirty modifier makes it
/// the dirty state.
pub(super) const fn comparable(member: Descriptor) -> u64 {
    let clean = if member.0 & Descriptor::DIRTY_MODIFIER != 0 {
        Descriptor::AP_READ_ONLY
    } else {
        0
    };
    member.0 & !(GATHERED | clean | Descriptor::CONTIGUOUS)
}

/// The state of all members of a group together.
#[derive(Clone, Copy)]
pub(super) struct Gathered {
    /// The gathered bits that any member has.
    any: u64,
    /// Whether hardware marked any member dirty.
    dirty: bool,
}

impl Gathered {
    pub(super) const NONE: Self = Self {
        any: 0,
        dirty: false,
    };

    pub(super) const fn add(&mut self, member: Descriptor) {
        self.any |= member.0 & GATHERED;
        let clean = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
        self.dirty |= member.0 & clean == Descriptor::DIRTY_MODIFIER;
    }

    /// `member` with the gathered state.
    pub(super) const fn give(self, member: Descriptor) -> Descriptor {
        let clean = if self.dirty {
            Descriptor::AP_READ_ONLY
        } else {
            0
        };
        Descriptor((member.0 & !clean) | self.any)
    }
}

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// The size in bytes of a contiguous group of pages.
    pub(crate) const fn group_bytes(&self) -> u64 {
        self.size().bytes() * self.size().contiguous_entries(Level::L3) as u64
    }

    /// The entry of the first member of a page's group.
    pub(crate) const fn first_of_group(&self, slot: Slot) -> Slot {
        Slot {
            table: slot.table,
            index: slot.index & !(self.size().contiguous_entries(Level::L3) - 1),
        }
    }

    /// Whether the group that begins at `first` may get the hint: all members are valid pages
    /// without the hint, they differ only in bits that hardware updates, and their outputs form one
    /// aligned group.
    fn foldable(&self, first: Slot) -> bool {
        let count = self.size().contiguous_entries(Level::L3);
        // Pages are usually mapped and copied in ascending or descending order, so the first and
        // last entries rule out most incomplete groups.
        if !self.load(first.table, first.index + count - 1).is_valid() {
            return false;
        }
        let start = self.load(first.table, first.index);
        let output = self.geometry.address_of(start, Level::L3).0;
        if !start.is_valid() || start.is_contiguous() || output & (self.group_bytes() - 1) != 0 {
            return false;
        }
        let goes_on = |member: usize| {
            let expected = comparable(start).wrapping_add(member as u64 * self.size().bytes());
            let entry = self.load(first.table, first.index + member);
            comparable(entry) == expected && !entry.is_contiguous()
        };
        goes_on(count - 1) && (1..count).all(goes_on)
    }

    /// Sets the hint on the group of the page at `offset` if the group is complete. Returns whether
    /// it did.
    #[inline(never)]
    pub(crate) fn fold(&mut self, offset: u64, slot: Slot) -> bool {
        let first = self.first_of_group(slot);
        if self.group_bytes() > self.geometry.span() {
            // An implementation may fault on a group that is larger than the space (RWMNPV).
            return false;
        }
        if !self.foldable(first) {
            return false;
        }
        let _ = self.regroup(offset & !(self.group_bytes() - 1), first, true, None);
        true
    }

    /// Clears the hint on the group of the page at `offset`, and gives every member the bits that
    /// hardware set in any of them. Returns false if the page is in no group.
    pub(crate) fn unfold(&mut self, offset: u64) -> bool {
        let Some((slot, entry)) = self.page(offset) else {
            return false;
        };
        if !entry.is_contiguous() || entry.0 & BitChange::LEAVES == 0 {
            return false;
        }
        let start = offset & !(self.group_bytes() - 1);
        let _ = self.regroup(start, self.first_of_group(slot), false, None);
        true
    }

    /// As [`unfold`](Self::unfold) for the group of `slot`, and replaces the page at `slot`: one
    /// break serves both. Returns the old page's frame.
    pub(crate) fn unfold_replacing(
        &mut self,
        offset: u64,
        slot: Slot,
        new: Descriptor,
    ) -> FreedFrames {
        let start = offset & !(self.group_bytes() - 1);
        self.regroup(start, self.first_of_group(slot), false, Some((slot, new)))
    }

    /// Replaces the pages of the group of `slot` by those of another group with break-before-make (RDDMVT),
    /// and returns the old frames. `new` is the entry of the first page, with the hint.
    pub(crate) fn replace_group(
        &mut self,
        offset: u64,
        slot: Slot,
        new: Descriptor,
    ) -> FreedFrames {
        let count = self.size().contiguous_entries(Level::L3);
        let first = self.first_of_group(slot);
        let old = self.group_output(slot);
        for index in first.index..first.index + count {
            self.exchange(first.table, index, Descriptor::INVALID);
        }
        let start = offset & !(self.group_bytes() - 1);
        let broken = self.flush_pages(start, start + self.group_bytes());
        let freed = broken.frames(old, count as u64);
        self.set_group(first, new);
        self.publish();
        freed
    }

    /// Stores the members of a group anew, with or without the hint. `replaced` gives one member
    /// another page; the old page's frame is returned.
    fn regroup(
        &mut self,
        offset: u64,
        first: Slot,
        hint: bool,
        replaced: Option<(Slot, Descriptor)>,
    ) -> FreedFrames {
        let count = self.size().contiguous_entries(Level::L3);
        let (clear, set) = if hint {
            (0, Descriptor::CONTIGUOUS)
        } else {
            (Descriptor::CONTIGUOUS, 0)
        };
        if replaced.is_none() && self.hint_may_change(first, count) {
            let of = BitChange::LEAVES;
            self.update(
                first.table,
                first.index,
                count,
                BitChange { of, clear, set },
            );
            self.flush_pages(offset, offset + self.group_bytes());
            return FreedFrames::none();
        }
        let mut gathered = Gathered::NONE;
        let mut old = None;
        let mut start = Descriptor::INVALID;
        for member in 0..count {
            let index = first.index + member;
            let entry = self.exchange(first.table, index, Descriptor::INVALID);
            gathered.add(entry);
            if member == 0 {
                start = entry;
            }
            if replaced.is_some_and(|(slot, _)| slot.index == index) {
                old = Some(self.geometry.address_of(entry, Level::L3));
            }
        }
        let broken = self.flush_pages(offset, offset + self.group_bytes());
        let freed = old.map_or(FreedFrames::none(), |frame| broken.frames(frame, 1));
        // Members differ only in the gathered bits, so the first one and a step give all.
        let start = gathered.give(start);
        let start = Descriptor((start.0 & !clear) | set);
        let how = self.visibility();
        let step = self.size().bytes();
        if let Some((slot, new)) = replaced {
            let before = slot.index - first.index;
            let behind = Descriptor(start.0.wrapping_add(step * (before as u64 + 1)));
            self.fill(first.table, first.index, before, start, step, how);
            self.set_page(slot, new);
            let rest = count - before - 1;
            self.fill(first.table, slot.index + 1, rest, behind, step, how);
        } else {
            self.fill(first.table, first.index, count, start, step, how);
        }
        self.pending.made_valid();
        self.publish();
        freed
    }

    /// Whether the hint of these members may change in place: the CPUs' level of FEAT_BBM allows
    /// it, the members are alike, and hardware does not update any of them.
    fn hint_may_change(&self, first: Slot, count: usize) -> bool {
        if self.liveness == Liveness::Live && self.bbm == BbmLevel::Level0 {
            return false;
        }
        let mut expected = self.load(first.table, first.index).0 & !Descriptor::CONTIGUOUS;
        (0..count).all(|member| {
            let entry = self.load(first.table, first.index + member);
            let same = entry.0 & !Descriptor::CONTIGUOUS == expected;
            expected = expected.wrapping_add(self.size().bytes());
            same && !entry.may_be_updated()
        })
    }

    /// Changes bits of all members of the group of `slot` in place, and invalidates the TLB for
    /// them.
    pub(crate) fn update_group(&mut self, offset: u64, slot: Slot, clear: u64, set: u64) {
        let count = self.size().contiguous_entries(Level::L3);
        let first = self.first_of_group(slot);
        let of = Descriptor::VALID;
        self.update(
            first.table,
            first.index,
            count,
            BitChange { of, clear, set },
        );
        let start = offset & !(self.group_bytes() - 1);
        self.flush_pages(start, start + self.group_bytes());
    }

    /// The output of the first member of a page's group.
    pub(crate) fn group_output(&self, slot: Slot) -> PhysicalAddress {
        let first = self.first_of_group(slot);
        self.geometry
            .address_of(self.load(first.table, first.index), Level::L3)
    }
}
