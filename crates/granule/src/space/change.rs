//! Operations on VMAs and their pages: map, unmap, discard, change of rights.
//!
//! Steps that may fail come first: the change of the VMAs is planned, and a block that an end of the range
//! cuts is split, which takes a table and changes nothing for the program. Then the VMAs change, and last the
//! tables. Neither can fail, because neither needs memory.

#![allow(unsafe_code, reason = "no CPU may walk a space that is destroyed")]

use super::frames::UserFrames;
use super::rights::Rights;
use super::vma::{Advice, Vma};
use super::vmas::plan::Change;
use super::{Space, SpaceError};
use crate::arch::page_size::PageChoice;
use crate::arch::{Descriptor, VirtualAddress};
use crate::table::choose::Choice;
use crate::table::group::DIRTY;
use crate::table::present_invalid::{SET_INVALID, SET_VALID};
use crate::table::{BitChange, TableEnvironment};

impl<P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'_, P, E, F> {
    /// Adds a VMA of `bytes` bytes from `start`. Its pages are mapped at their first touch.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half,
    /// [`SpaceError::Occupied`] where a VMA exists already, [`SpaceError::TooManyVmas`],
    /// [`SpaceError::OutOfVmaNodes`].
    pub fn map(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        rights: Rights,
        label: u8,
    ) -> Result<(), SpaceError> {
        self.tables.offsets(start, bytes)?;
        self.vmas.insert(Vma {
            start,
            end: VirtualAddress(start.0 + bytes),
            rights,
            label,
            advice: Advice::None,
        })
    }

    /// Does as [`map`](Self::map), but what is there already goes as by [`unmap`](Self::unmap): both are done or neither.
    ///
    /// # Errors
    ///
    /// As for [`unmap`](Self::unmap), and [`SpaceError::TooManyVmas`] and [`SpaceError::OutOfVmaNodes`] where the
    /// VMA is one more.
    pub fn map_over(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        rights: Rights,
        label: u8,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.replace(start, bytes, Some((rights, label)), frames)
    }

    /// Changes the advice of the VMAs among `bytes` bytes from `start`. Pages that are mapped stay
    /// as they are.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half,
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::TooManyVmas`] and
    /// [`SpaceError::OutOfVmaNodes`] where VMAs would have to be split. Nothing has changed then.
    pub fn advise(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        advice: Advice,
    ) -> Result<(), SpaceError> {
        self.tables.offsets(start, bytes)?;
        let end = VirtualAddress(start.0 + bytes);
        self.vmas.advise(start, end, advice)
    }

    /// Removes all VMAs, and parts of VMAs, among `bytes` bytes from `start` and releases their
    /// pages. The frames are released after no CPU can reach them.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half, or without memory for
    /// the table of a block that is split; [`SpaceError::TooManyVmas`] and [`SpaceError::OutOfVmaNodes`]
    /// where one VMA becomes two. Nothing has changed then.
    pub fn unmap(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.replace(start, bytes, None, frames)
    }

    /// Removes the VMAs and pages of a range, and perhaps puts a VMA there instead.
    fn replace(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        new: Option<(Rights, u8)>,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.check(frames)?;
        let (from, to) = self.tables.offsets(start, bytes)?;
        let end = VirtualAddress(start.0 + bytes);
        let new = new.map(|(rights, label)| Vma {
            start,
            end,
            rights,
            label,
            advice: Advice::None,
        });
        let plan = self.vmas.plan_replacement(start, end, new)?;
        self.split_blocks(from, to)?;
        self.vmas.carry_out(&plan);
        // A new VMA keeps the tables at its edges.
        let hole = match new {
            Some(_) => (from, to),
            None => {
                let (low, high) = self.vmas.hole_around(start);
                let (base, span) = (self.geometry().base().0, self.geometry().span());
                let offset = |address: VirtualAddress| address.0.wrapping_sub(base);
                (low.map_or(0, offset), high.map_or(span, offset))
            }
        };
        self.release((from, to), hole, frames);
        Ok(())
    }

    /// Releases the pages among `bytes` bytes from `start` but keeps the VMAs. The next touch maps
    /// zeroed pages.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half, or without memory for
    /// the table of a block that is split. Nothing has changed then.
    pub fn discard(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.check(frames)?;
        let (from, to) = self.tables.offsets(start, bytes)?;
        self.split_blocks(from, to)?;
        self.release((from, to), (from, to), frames);
        Ok(())
    }

    /// Changes the rights of the VMAs among `bytes` bytes from `start`. The new rights hold on
    /// every CPU on return, with one exception: pages shared with another space, and groups and
    /// blocks with such a page, become writable at their first write.
    ///
    /// A group or block that an end of the range cuts becomes pages or groups. It becomes whole again
    /// by a later change to writable that covers all of it, and a block of whole groups by any change
    /// that does. Rights that the range has already change nothing.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half,
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::TooManyVmas`] and
    /// [`SpaceError::OutOfVmaNodes`] where VMAs would have to be split; [`SpaceError::Tables`] also
    /// without memory for the table of a block that is split. Nothing has changed then.
    pub fn protect(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        rights: Rights,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.check(frames)?;
        let (from, to) = self.tables.offsets(start, bytes)?;
        let end = VirtualAddress(start.0 + bytes);
        let plan = self.vmas.plan_change(start, end, Change::Rights(rights))?;
        if !plan.changes {
            return Ok(());
        }
        self.split_blocks(from, to)?;
        self.vmas.carry_out(&plan);
        if rights.execute && !plan.all_executable {
            self.tables.visit_frames(from, to, |first, count| {
                frames.sync_instructions(first, count);
            });
        }
        self.unfold_edges(from, to);
        let change = rights_change(rights);
        let choice = Choice {
            alone: self.and_writing(change, rights),
            shared: change,
        };
        let sharing = |first, count| frames.sharing(first, count);
        // With the erratum, no executable entry may be cached while the new entry is stored: the
        // pages are broken first. One call in a loop serves all steps, because the call is compiled
        // into each page size's code.
        let steps = [Choice::all(SET_INVALID), choice, Choice::all(SET_VALID)];
        let breaks = self.settings.break_execute && plan.some_executable && !rights.execute;
        let steps = if breaks { &steps[..] } else { &steps[1..2] };
        for step in steps {
            self.tables.change_by_choice(from, to, *step, sharing);
        }
        // Only what the range covers wholly becomes large again. A program that changes one page back
        // and forth would otherwise pay each time for the TLBIs of all pages round it: their entries
        // may be cached one by one (RLQLSD).
        if rights.write {
            self.fold_between(from, to);
        }
        self.merge_between(from, to);
        Ok(())
    }

    /// The change that also makes exclusively owned pages writable, if `rights` allow writing.
    /// Where hardware notes the first write, the pages stay clean.
    const fn and_writing(&self, change: BitChange, rights: Rights) -> BitChange {
        if !rights.write {
            change
        } else if self.settings.hardware_dirty {
            BitChange {
                set: change.set | Descriptor::DIRTY_MODIFIER,
                ..change
            }
        } else {
            BitChange {
                clear: change.clear | Descriptor::AP_READ_ONLY,
                ..change
            }
        }
    }

    /// Removes all VMAs and pages, and all tables except the root. With frames of another page size it
    /// removes nothing.
    pub fn clear(&mut self, frames: &mut F) {
        if self.check(frames).is_err() {
            return;
        }
        self.vmas.clear();
        let all = (0, self.geometry().span());
        self.release(all, all, frames);
    }

    /// As [`clear`](Self::clear), then frees the root.
    ///
    /// # Safety
    ///
    /// No CPU has the root in a TTBR any more. The frames are of this space's page size.
    pub unsafe fn destroy(mut self, frames: &mut F) -> E {
        self.clear(frames);
        // `clear` freed every table below the root, and the caller vouches that no TTBR holds the
        // root.
        self.tables.free_root()
    }

    /// Unmaps and releases the pages of a range, and frees the tables that translate nothing outside `hole`. In
    /// the hole round the range no VMA is left, so nothing is mapped: the last VMA that a table translates a
    /// part of takes the table along.
    fn release(&mut self, (from, to): (u64, u64), hole: (u64, u64), frames: &mut F) {
        if from >= to {
            return;
        }
        self.unfold_edges(from, to);
        let pages = self
            .tables
            .zap_pages((from, to), hole, |freed| frames.release(freed));
        self.stats.resident -= pages;
    }

    /// Splits the blocks that the ends of a range cut, both or none.
    fn split_blocks(&mut self, from: u64, to: u64) -> Result<(), SpaceError> {
        if from < to {
            self.stats.split += self.tables.split_blocks_at([from, to])?;
        }
        Ok(())
    }

    /// Unfolds the groups that the ends of a range cut.
    fn unfold_edges(&mut self, from: u64, to: u64) {
        let group = self.group_bytes();
        for edge in [from, to] {
            if edge & (group - 1) != 0 && edge < self.geometry().span() {
                self.unfold(edge);
            }
        }
    }

    pub(super) const fn group_bytes(&self) -> u64 {
        self.size().bytes() * self.size().contiguous_entries(crate::arch::Level::L3) as u64
    }
}

/// The change that `rights` make to every entry. Write permission is added elsewhere, because it
/// depends on whether the page is shared.
fn rights_change(rights: Rights) -> BitChange {
    let mut change = BitChange {
        of: BitChange::LEAVES,
        clear: 0,
        set: 0,
    };
    let mut bit = |mask: u64, set: bool| {
        if set {
            change.set |= mask;
        } else {
            change.clear |= mask;
        }
    };
    bit(Descriptor::AP_USER, rights.any());
    bit(Descriptor::UXN, !rights.execute);
    if !rights.write {
        // The hardware dirty state ends here, so the software dirty bit records that the page may
        // be dirty.
        bit(Descriptor::AP_READ_ONLY | DIRTY, true);
        bit(Descriptor::DIRTY_MODIFIER, false);
    }
    change
}
