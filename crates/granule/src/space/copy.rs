//! The first write to a page that may be shared with another space: the page is made writable, or copied,
//! perhaps with its group.

use super::fault::{By, Fault};
use super::frames::{UserFrames, Wanted};
use super::vma::Vma;
use super::{Space, SpaceError, is_writable};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress};
use crate::table::block::Replaced;
use crate::table::choose::any_shared;
use crate::table::page::{PagePlace, Slot};
use crate::table::{FreedFrames, TableEnvironment};

/// A copied neighbour across a multiple of these bytes is not reason enough to copy a group whole: the group is copied
/// page by page, unless its other neighbour was copied too. This bounds useless copies, and concerns one group in
/// sixteen of 16K and of 64K pages.
const MOST_ON_TRUST: u64 = 32 << 20;

/// A copy of a contiguous group.
#[derive(Clone, Copy)]
struct GroupCopy {
    /// The entry of its first page, with the hint.
    entry: Descriptor,
    /// The frame of the page that is written.
    frame: PhysicalAddress,
}

impl<P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'_, P, E, F> {
    /// Makes a page writable that may be shared.
    pub(super) fn first_write(
        &mut self,
        vma: &Vma,
        offset: u64,
        slot: Slot,
        entry: Descriptor,
        by: By,
        frames: &mut F,
    ) -> Result<(Fault, PhysicalAddress), SpaceError> {
        let frame = self.tables.output(entry);
        if !frames.is_shared(frame) {
            if entry.is_contiguous() && self.group_is_shared(slot, frames) {
                // Members of a group must have the same permissions (RJQQTC), so the group is
                // unfolded.
                self.unfold(offset);
            }
            let place = PagePlace {
                slot,
                level: Level::L3,
                entry: self.tables.entry(slot),
            };
            self.allow_writing(offset, &place);
            self.stats.reused += 1;
            self.fold(vma, offset, slot);
            let behind = (offset | (self.group_bytes() - 1)) + 1;
            if behind & (self.tables.block_bytes() - 1) == 0 {
                // A program that reaches the end of a table has probably written all of it.
                self.merge(vma, offset);
            }
            return Ok((Fault::Reused, frame));
        }
        let place = PagePlace {
            slot,
            level: Level::L3,
            entry,
        };
        if let Some(group) = self.copied_group(vma, offset, &place, by, frames) {
            let old = self.tables.replace_group(offset, slot, group.entry);
            return Ok(self.group_copied(old, group, frames));
        }
        let copy = self.new_frame(vma, offset, slot, frames)?;
        frames.copy(frame, copy);
        if vma.rights.execute {
            frames.sync_instructions(copy, 1);
        }
        let new = self.page_entry(copy, vma.rights, true, by);
        let old = if entry.is_contiguous() {
            self.stats.unfolded += 1;
            self.tables.unfold_replacing(offset, slot, new)
        } else {
            self.tables.replace_page(offset, slot, new)
        };
        frames.release(old);
        self.stats.copied += 1;
        self.fold(vma, offset, slot);
        Ok((Fault::Copied, copy))
    }

    /// Makes a page of a block writable that may be shared. If all of the block is this space's, it
    /// stays whole; else it becomes groups.
    pub(super) fn first_write_to_block(
        &mut self,
        vma: &Vma,
        offset: u64,
        place: &PagePlace,
        by: By,
        frames: &mut F,
    ) -> Result<(Fault, PhysicalAddress), SpaceError> {
        let frame = self.frame_in(offset, place);
        let first = self.geometry().address_of(place.entry, place.level);
        let bytes = self.tables.block_bytes();
        if !any_shared(self.size(), first, bytes, |first, count| {
            frames.sharing(first, count)
        }) {
            self.allow_writing(offset, place);
            self.stats.reused += 1;
            return Ok((Fault::Reused, frame));
        }
        let table = self.tables.new_table()?;
        if !frames.is_shared(frame) {
            // Others have other pages of it.
            let _ = self
                .tables
                .split_block(offset, place.slot, table, &[], None);
            self.stats.split += 1;
            let PagePlace { slot, entry, .. } = self.tables.place(offset);
            return self.first_write(vma, offset, slot, entry, by, frames);
        }
        let count = self.size().contiguous_entries(Level::L3) as u64;
        if let Some(group) = self.copied_group(vma, offset, place, by, frames) {
            let replaced = Replaced {
                offset: offset & !(self.group_bytes() - 1),
                new: group.entry,
            };
            let old = self
                .tables
                .split_block(offset, place.slot, table, &[], Some(replaced));
            self.stats.split += 1;
            return Ok(self.group_copied(old, group, frames));
        }
        let wanted = Wanted::Group {
            frames: count,
            index: (offset >> self.size().shift()) & (count - 1),
        };
        let Some(copy) = frames.allocate(wanted) else {
            self.tables.free_new(table);
            return Err(self.out_of_frames(offset));
        };
        frames.copy(frame, copy);
        if vma.rights.execute {
            frames.sync_instructions(copy, 1);
        }
        let replaced = Replaced {
            offset,
            new: self.page_entry(copy, vma.rights, true, by),
        };
        let old = self
            .tables
            .split_block(offset, place.slot, table, &[], Some(replaced));
        frames.release(old);
        self.stats.split += 1;
        self.stats.copied += 1;
        Ok((Fault::Copied, copy))
    }

    /// Copies the whole group of the page at `offset`, which `place` maps, if that pays and memory has a
    /// run of frames. The tables have not changed yet.
    #[inline(always)]
    fn copied_group(
        &mut self,
        vma: &Vma,
        offset: u64,
        place: &PagePlace,
        by: By,
        frames: &mut F,
    ) -> Option<GroupCopy> {
        let may = self.settings.large_leaves.has_groups() && self.copies_group(vma, offset, place);
        if may {
            self.copy_group(vma, offset, place, by, frames)
        } else {
            None
        }
    }

    /// As [`copied_group`](Self::copied_group), where it pays.
    #[inline(never)]
    fn copy_group(
        &mut self,
        vma: &Vma,
        offset: u64,
        place: &PagePlace,
        by: By,
        frames: &mut F,
    ) -> Option<GroupCopy> {
        let count = self.size().contiguous_entries(Level::L3) as u64;
        let inside = offset & (self.group_bytes() - 1);
        let from = PhysicalAddress(self.frame_in(offset, place).0 - inside);
        let some_are_own = any_shared(self.size(), from, self.group_bytes(), |first, count| {
            let (shared, alike) = frames.sharing(first, count);
            (!shared, alike)
        });
        if some_are_own {
            return None;
        }
        let first = frames.allocate_run(count)?;
        for number in 0..count {
            let at = number << self.size().shift();
            frames.copy(from.wrapping_add(at), first.wrapping_add(at));
        }
        if vma.rights.execute {
            frames.sync_instructions(first, count);
        }
        let entry = self.page_entry(first, vma.rights, true, by);
        Some(GroupCopy {
            entry: Descriptor(entry.0 | Descriptor::CONTIGUOUS),
            frame: first.wrapping_add(inside),
        })
    }

    /// Whether a first write to the page at `offset` copies all of its group: if the page is at the end of it
    /// where the next group begins, and that one is a group, or a block, of this space's own. A program that
    /// wrote all of the one probably goes on with the other, and saves a fault and a TLBI for each page.
    ///
    /// Writes here and there copy a page each. But whether all of the group beside was written is not known if it came
    /// whole, by a first touch or a copy, so a program that then writes only the first page of each group that follows
    /// has the rest of them copied in vain, as far as a multiple of [`MOST_ON_TRUST`].
    fn copies_group(&self, vma: &Vma, offset: u64, place: &PagePlace) -> bool {
        let page = self.size().bytes();
        let inside = offset & (self.group_bytes() - 1);
        let beside = if inside == 0 {
            offset.checked_sub(page)
        } else if inside + page == self.group_bytes() {
            Some(offset + page)
        } else {
            None
        };
        let goes_on =
            |beside: &u64| (beside ^ offset) < MOST_ON_TRUST && self.allows_group(vma, *beside);
        let Some(beside) = beside.filter(goes_on) else {
            return false;
        };
        let is_large = |place: &PagePlace| !place.level.is_last() || place.entry.is_contiguous();
        if !is_large(place) || !self.allows_group(vma, offset) {
            return false;
        }
        let beside = self.tables.place(beside);
        beside.entry.is_valid() && is_large(&beside) && is_writable(beside.entry)
    }

    /// Ends a copy of a group, whose frames were `old`.
    fn group_copied(
        &mut self,
        old: FreedFrames,
        copy: GroupCopy,
        frames: &mut F,
    ) -> (Fault, PhysicalAddress) {
        self.stats.copied += old.count();
        frames.release(old);
        (Fault::Copied, copy.frame)
    }

    fn group_is_shared(&self, slot: Slot, frames: &F) -> bool {
        let first = self.tables.group_output(slot);
        any_shared(self.size(), first, self.group_bytes(), |first, count| {
            frames.sharing(first, count)
        })
    }
}
