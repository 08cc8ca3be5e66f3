//! Page faults: the first touch of a page, and the kernel's own accesses. What the first write after a
//! fork does is in `copy`.
//!
//! Only code that is generic over the page size and runs once for each touched page belongs here.

use super::frames::{UserFrames, Wanted};
use super::leaf_size::{LargestLeaf, Touch, choose};
use super::rights::{Access, Rights};
use super::vma::Vma;
use super::{Space, SpaceError, is_writable};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use crate::table::TableEnvironment;
use crate::table::block::{BLOCK, BrokenTables};
use crate::table::group::DIRTY;
use crate::table::page::{PagePlace, Slot};

/// The result of a fault. The program continues in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The page did not exist; it is mapped and zeroed now, perhaps with all of its group or block.
    Mapped,
    /// The page was shared; this space now has a copy that it may write.
    Copied,
    /// The page, or its whole group or block, is no longer shared and may be written now.
    Reused,
    /// The page allows the access already: another CPU was faster.
    Spurious,
}

/// The origin of an access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The program's own access, which sets the access flag.
    User,
    /// The kernel's access for the program, through the kernel's mapping.
    Kernel,
}

impl<P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'_, P, E, F> {
    /// Handles a program's access that the tables did not allow.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotMapped`] and [`SpaceError::Denied`] are errors of the program;
    /// [`SpaceError::OutOfFrames`] and [`SpaceError::Tables`] mean that memory has run out. This and every
    /// other method that takes frames fails with [`SpaceError::WrongFrames`] for those of another page size.
    pub fn fault(
        &mut self,
        address: VirtualAddress,
        access: Access,
        frames: &mut F,
    ) -> Result<Fault, SpaceError> {
        self.touch(address, access, By::User, frames)
            .map(|(fault, _)| fault)
    }

    /// The physical address behind `address`, which the kernel may read or, with [`Access::Write`],
    /// write through its own mapping. The page is made present as by a fault. The address is valid
    /// until the next change of the space.
    ///
    /// # Errors
    ///
    /// As for [`fault`](Self::fault).
    pub fn frame_for(
        &mut self,
        address: VirtualAddress,
        access: Access,
        frames: &mut F,
    ) -> Result<PhysicalAddress, SpaceError> {
        let (_, page) = self.touch(address, access, By::Kernel, frames)?;
        Ok(PhysicalAddress(
            page.0 + (address.0 & (self.size().bytes() - 1)),
        ))
    }

    /// Handles an access. Returns what was done, and the frame.
    fn touch(
        &mut self,
        address: VirtualAddress,
        access: Access,
        by: By,
        frames: &mut F,
    ) -> Result<(Fault, PhysicalAddress), SpaceError> {
        self.check(frames)?;
        let vma = self
            .vmas
            .find_near(address)
            .ok_or(SpaceError::NotMapped { address })?;
        if !vma.rights.allows(access) {
            return Err(SpaceError::Denied { address, access });
        }
        let offset = self
            .geometry()
            .offset(address)
            .ok_or(SpaceError::NotMapped { address })?
            & !(self.size().bytes() - 1);
        let mut place = self.tables.place(offset);
        let PagePlace { slot, entry, .. } = place;
        if !entry.is_valid() {
            let frame = self
                .first_touch(&vma, offset, &mut place, access, by, frames)
                .inspect_err(|_| {
                    // New tables may have been linked although nothing follows.
                    self.tables.publish();
                })?;
            return Ok((Fault::Mapped, frame));
        }
        let frame = self.frame_in(offset, &place);
        if by == By::User && entry.0 & Descriptor::ACCESS_FLAG == 0 {
            self.tables.set_accessed(slot);
            self.tables.publish();
        }
        if access != Access::Write || entry.0 & Descriptor::AP_READ_ONLY == 0 {
            self.stats.spurious += u64::from(by == By::User);
            return Ok((Fault::Spurious, frame));
        }
        if is_writable(entry) {
            // The page is clean, and this writer sets no dirty state: the kernel, or a CPU without
            // TCR.HD.
            self.allow_writing(offset, &place);
            return Ok((Fault::Reused, frame));
        }
        if !place.level.is_last() {
            return self.first_write_to_block(&vma, offset, &place, by, frames);
        }
        self.first_write(&vma, offset, slot, entry, by, frames)
    }

    /// The frame of the page at `offset`, which `place` maps.
    pub(super) fn frame_in(&self, offset: u64, place: &PagePlace) -> PhysicalAddress {
        if place.level.is_last() {
            self.tables.output(place.entry)
        } else {
            let first = self.geometry().address_of(place.entry, place.level);
            first.wrapping_add(offset & (self.tables.block_bytes() - 1))
        }
    }

    /// Maps new, zeroed memory where nothing is mapped: the leaf that pays, or the largest smaller
    /// one that memory has frames for. Returns the page's frame.
    fn first_touch(
        &mut self,
        vma: &Vma,
        offset: u64,
        place: &mut PagePlace,
        access: Access,
        by: By,
        frames: &mut F,
    ) -> Result<PhysicalAddress, SpaceError> {
        let written = access == Access::Write;
        let mut leaf = self.leaf_for(vma, offset, place, LargestLeaf::Block);
        if leaf == LargestLeaf::Block {
            let bytes = self.tables.block_bytes();
            let count = bytes >> self.size().shift();
            let slot = self.tables.make_slot(offset, place, BLOCK)?;
            if let Some(first) = Self::new_run(vma, count, frames) {
                let bits = self.page_bits(vma.rights, written, by == By::User);
                let entry = Descriptor::leaf(self.geometry(), BLOCK, first, bits);
                self.tables.set_page(slot, entry);
                self.stats.blocks += 1;
                self.mapped(count);
                return Ok(first.wrapping_add(offset & (bytes - 1)));
            }
            leaf = self.leaf_for(vma, offset, place, LargestLeaf::Group);
        }
        if leaf == LargestLeaf::Group {
            let count = self.size().contiguous_entries(Level::L3) as u64;
            let slot = self.tables.make_slot(offset, place, Level::L3)?;
            if let Some(first) = Self::new_run(vma, count, frames) {
                let entry = self.page_entry(first, vma.rights, written, by);
                let entry = Descriptor(entry.0 | Descriptor::CONTIGUOUS);
                let start = self.tables.first_of_group(slot);
                self.tables.set_group(start, entry);
                self.stats.groups += 1;
                self.mapped(count);
                return Ok(first.wrapping_add(offset & (self.group_bytes() - 1)));
            }
        }
        let slot = self.tables.make_slot(offset, place, Level::L3)?;
        let frame = self.new_frame(vma, offset, slot, frames)?;
        frames.zero(frame, 1);
        if vma.rights.execute {
            frames.sync_instructions(frame, 1);
        }
        let entry = self.page_entry(frame, vma.rights, written, by);
        self.tables.set_page(slot, entry);
        self.fold(vma, offset, slot);
        self.mapped(1);
        Ok(frame)
    }

    /// The leaf for a first touch.
    fn leaf_for(
        &self,
        vma: &Vma,
        offset: u64,
        place: &PagePlace,
        at_most: LargestLeaf,
    ) -> LargestLeaf {
        if !self.settings.large_leaves.has_groups() {
            // The usual answer where it is always the same.
            return LargestLeaf::Page;
        }
        choose(&self.touch_of(vma, offset, at_most), |leaf| match leaf {
            LargestLeaf::Page => true,
            LargestLeaf::Group => !place.level.is_last() || self.tables.is_group_empty(place.slot),
            LargestLeaf::Block => !place.level.is_last(),
        })
    }

    /// Whether the policy, the advice and the VMA allow the page at `offset` in a group. Pages of two VMAs
    /// never form one, even with equal entries: a write to one page makes its whole group writable.
    pub(super) fn allows_group(&self, vma: &Vma, offset: u64) -> bool {
        let touch = self.touch_of(vma, offset, LargestLeaf::Group);
        choose(&touch, |_| true) == LargestLeaf::Group
    }

    fn touch_of(&self, vma: &Vma, offset: u64, at_most: LargestLeaf) -> Touch {
        Touch {
            page_size: self.size(),
            policy: self.settings.large_leaves,
            advice: vma.advice,
            vma: (vma.start.0, vma.end.0),
            address: self.geometry().base().0 + offset,
            at_most,
        }
    }

    /// New, zeroed frames that follow each other, for one leaf.
    fn new_run(vma: &Vma, count: u64, frames: &mut F) -> Option<PhysicalAddress> {
        let first = frames.allocate_run(count)?;
        frames.zero(first, count);
        if vma.rights.execute {
            frames.sync_instructions(first, count);
        }
        Some(first)
    }

    /// Ends a first touch that mapped `pages` pages.
    fn mapped(&mut self, pages: u64) {
        self.stats.resident += pages;
        self.stats.mapped += pages;
        self.tables.publish();
    }

    /// Makes a page that this space owns alone, and its whole group or block, writable and dirty in
    /// place. Permissions may change without break-before-make (RWHZWS).
    pub(super) fn allow_writing(&mut self, offset: u64, place: &PagePlace) {
        let PagePlace { slot, entry, .. } = *place;
        let set = if self.settings.hardware_dirty {
            DIRTY | Descriptor::DIRTY_MODIFIER
        } else {
            DIRTY
        };
        if !place.level.is_last() {
            self.tables
                .update_block(offset, slot, Descriptor::AP_READ_ONLY, set);
        } else if entry.is_contiguous() {
            self.tables
                .update_group(offset, slot, Descriptor::AP_READ_ONLY, set);
        } else {
            self.tables
                .update_page(offset, slot, Descriptor::AP_READ_ONLY, set);
        }
    }

    pub(super) fn page_entry(
        &self,
        frame: PhysicalAddress,
        rights: Rights,
        written: bool,
        by: By,
    ) -> Descriptor {
        let bits = self.page_bits(rights, written, by == By::User);
        Descriptor::leaf(self.geometry(), Level::L3, frame, bits)
    }

    /// A frame for the page at `offset`, preferably one that continues the page's group.
    pub(super) fn new_frame(
        &self,
        vma: &Vma,
        offset: u64,
        slot: Slot,
        frames: &mut F,
    ) -> Result<PhysicalAddress, SpaceError> {
        let wanted = if self.settings.large_leaves.has_groups() {
            self.wanted(vma, offset, slot)
        } else {
            Wanted::Any
        };
        frames
            .allocate(wanted)
            .ok_or_else(|| self.out_of_frames(offset))
    }

    pub(super) const fn out_of_frames(&self, offset: u64) -> SpaceError {
        SpaceError::OutOfFrames {
            address: VirtualAddress(self.geometry().base().0 + offset),
        }
    }

    /// The frame that would continue the group of a page. Its neighbours and the first member
    /// decide, because programs touch memory upward, downward, or at random.
    fn wanted(&self, vma: &Vma, offset: u64, slot: Slot) -> Wanted {
        let page = self.size().bytes();
        let count = self.size().contiguous_entries(Level::L3);
        let bytes = page * count as u64;
        let start = offset & !(bytes - 1);
        if !self.allows_group(vma, offset) {
            return Wanted::Any;
        }
        let index = slot.index & (count - 1);
        for other in [index.wrapping_sub(1), index + 1, 0] {
            if other >= count || other == index {
                continue;
            }
            let at = start + other as u64 * page;
            let entry = self.tables.entry(Slot {
                table: slot.table,
                index: slot.index - index + other,
            });
            // A shared page will not join a group with a page that is not shared.
            if !entry.is_valid() || (vma.rights.write && !is_writable(entry)) {
                continue;
            }
            let output = self.geometry().address_of(entry, Level::L3).0;
            if (output ^ at) & (bytes - 1) != 0 {
                // The neighbour's frame does not fit a group, so this group cannot be whole any
                // more.
                return Wanted::Any;
            }
            let first = output & !(bytes - 1);
            return Wanted::Exactly(PhysicalAddress(first + index as u64 * page));
        }
        Wanted::Group {
            frames: count as u64,
            index: index as u64,
        }
    }

    /// Sets the contiguous hint if this page completes a group. Inlined, because without large leaves nothing is
    /// done, after each fault.
    #[inline(always)]
    pub(super) fn fold(&mut self, vma: &Vma, offset: u64, slot: Slot) -> bool {
        let folded = self.settings.large_leaves.has_groups()
            && self.allows_group(vma, offset)
            && self.tables.fold(offset, slot);
        self.stats.folded += u64::from(folded);
        folded
    }

    /// Sets the hint on every group that lies wholly between two offsets and qualifies.
    pub(super) fn fold_between(&mut self, from: u64, to: u64) {
        let group = self.group_bytes();
        let end = to & !(group - 1);
        let mut at = from.next_multiple_of(group);
        while self.settings.large_leaves.has_groups() && at < end {
            let (first, next) = self.tables.pages_from(at, end);
            if let Some(Slot { table, mut index }) = first {
                while at < next {
                    let entry = self.tables.entry(Slot { table, index });
                    if entry.is_valid() && !entry.is_contiguous() {
                        self.fold_at(at);
                    }
                    index += self.size().contiguous_entries(Level::L3);
                    at += group;
                }
            }
            at = next;
        }
    }

    /// Sets the hint on the group of the page at `offset`, if all of it is mapped and in one VMA.
    fn fold_at(&mut self, offset: u64) {
        let address = VirtualAddress(self.geometry().base().0 + offset);
        if let (Some((slot, _)), Some(vma)) =
            (self.tables.page(offset), self.vmas.find_near(address))
        {
            self.fold(&vma, offset, slot);
        }
    }

    /// Makes blocks again of the tables that lie wholly between two offsets and whose pages are all alike again, as
    /// the policy, the advice and the VMA allow.
    pub(super) fn merge_between(&mut self, from: u64, to: u64) {
        let bytes = self.tables.block_bytes();
        let end = to & !(bytes - 1);
        let mut at = from.next_multiple_of(bytes);
        if !self.settings.large_leaves.has_groups() || at >= end {
            return;
        }
        let mut broken = BrokenTables::NONE;
        while at < end {
            let (pages, next) = self.tables.pages_from(at, end);
            let address = VirtualAddress(self.geometry().base().0 + at);
            if let (Some(_), Some(vma)) = (pages, self.vmas.find_near(address)) {
                self.break_table(&vma, at, &mut broken);
            }
            at = next;
        }
        self.tables.make_blocks(&mut broken);
    }

    /// As [`merge_between`](Self::merge_between), for the one table of the page at `offset`.
    pub(super) fn merge(&mut self, vma: &Vma, offset: u64) {
        let mut broken = BrokenTables::NONE;
        self.break_table(vma, offset, &mut broken);
        self.tables.make_blocks(&mut broken);
    }

    /// Unlinks the table of the page at `offset` if it may become a block.
    fn break_table(&mut self, vma: &Vma, offset: u64, broken: &mut BrokenTables) {
        let touch = self.touch_of(vma, offset, LargestLeaf::Block);
        let may = choose(&touch, |_| true) == LargestLeaf::Block;
        // The next write to what a fork left read-only would split the block again.
        let page = self.tables.page(offset);
        let may = may && (!vma.rights.write || page.is_some_and(|(_, entry)| is_writable(entry)));
        self.stats.merged += u64::from(may && self.tables.break_table(offset, broken));
    }

    /// Removes the hint from the group of a page, if the group has one.
    pub(super) fn unfold(&mut self, offset: u64) {
        self.stats.unfolded += u64::from(self.tables.unfold(offset));
    }
}
