//! Areas made, taken away and given other rights, and what becomes of their pages.
//!
//! First the areas, which may be refused, then the tables, which may not: by then nothing can run
//! out any more.

use super::area::Area;
use super::frames::UserFrames;
use super::rights::Rights;
use super::{Space, SpaceError};
use crate::arch::page_size::Page;
use crate::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use crate::table::choose::Choice;
use crate::table::group::DIRTY;
use crate::table::hide::{HIDE, SHOW};
use crate::table::{BitChange, Environment};

impl<P: Page, E: Environment> Space<'_, P, E> {
    /// Adds an area of `bytes` bytes from `start`. Its pages come when they are touched.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless these are whole pages of the lower half,
    /// [`SpaceError::Occupied`] where there is an area already, [`SpaceError::AreasFull`].
    pub fn map(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        rights: Rights,
        label: u8,
    ) -> Result<(), SpaceError> {
        self.tables.offsets(start, bytes)?;
        self.areas.insert(Area {
            start,
            end: VirtualAddress(start.0 + bytes),
            rights,
            label,
        })
    }

    /// Takes away what there is of areas among `bytes` bytes from `start`, and releases the pages.
    /// Their frames are given back after no CPU can reach them.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless these are whole pages of the lower half;
    /// [`SpaceError::AreasFull`] where one area becomes two. Nothing has changed then.
    pub fn unmap(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        frames: &mut impl UserFrames,
    ) -> Result<(), SpaceError> {
        let (from, to) = self.tables.offsets(start, bytes)?;
        self.areas.remove(start, VirtualAddress(start.0 + bytes))?;
        self.release(from, to, frames);
        Ok(())
    }

    /// Releases the pages among `bytes` bytes from `start`, but leaves the areas: at the next touch
    /// there are zeroed pages.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless these are whole pages of the lower half.
    pub fn discard(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        frames: &mut impl UserFrames,
    ) -> Result<(), SpaceError> {
        let (from, to) = self.tables.offsets(start, bytes)?;
        self.release(from, to, frames);
        Ok(())
    }

    /// Gives the areas among `bytes` bytes from `start` other rights, which hold on return, on every
    /// CPU. But pages that another space has too, and groups with such a page, are made writable
    /// when they are first written.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless these are whole pages of the lower half,
    /// [`SpaceError::NotMapped`] where there is a hole, [`SpaceError::AreasFull`] where areas would
    /// have to be split. Nothing has changed then.
    pub fn protect(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        rights: Rights,
        frames: &mut impl UserFrames,
    ) -> Result<(), SpaceError> {
        let (from, to) = self.tables.offsets(start, bytes)?;
        let end = VirtualAddress(start.0 + bytes);
        let there = self.areas.overlapping(start, end);
        let same = there.iter().all(|area| area.rights == rights);
        let executable = there.iter().all(|area| area.rights.execute);
        let any_executable = there.iter().any(|area| area.rights.execute);
        self.areas.protect(start, end, rights)?;
        if same {
            return Ok(());
        }
        if rights.execute && !executable {
            self.tables.visit_frames(from, to, |first, count| {
                for frame in 0..count {
                    let frame = PhysicalAddress(first.0 + frame * P::SIZE.bytes());
                    frames.sync_instructions(frame);
                }
            });
        }
        self.unfold_edges(from, to);
        let change = rights_change(rights);
        let choice = Choice {
            alone: self.and_writing(change, rights),
            shared: change,
        };
        let sharing = |first, count| frames.sharing(first, count);
        // No entry that could be executed may be cached while the next one is stored. The call stands
        // once, in a loop: it is in each page size's code.
        let steps = [Choice::all(HIDE), choice, Choice::all(SHOW)];
        let breaks = self.settings.break_execute && any_executable && !rights.execute;
        let steps = if breaks { &steps[..] } else { &steps[1..2] };
        for step in steps {
            self.tables.change_by_choice(from, to, *step, sharing);
        }
        if rights.write {
            // No fault of a first write makes the groups whole again that ends cut, now or before.
            self.fold_between(from, to);
        }
        Ok(())
    }

    /// A change that also makes pages writable which this space has alone, if they are to be: clean,
    /// where hardware notes the first write.
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

    /// Takes everything away: all areas, pages and tables but the root.
    pub fn clear(&mut self, frames: &mut impl UserFrames) {
        self.areas.clear();
        self.release(0, self.geometry().span(), frames);
    }

    /// As [`clear`](Self::clear), and gives back the root.
    ///
    /// # Safety
    ///
    /// No CPU has the root in a TTBR any more.
    pub unsafe fn destroy(mut self, frames: &mut impl UserFrames) -> E {
        self.clear(frames);
        // SAFETY: nothing is left below the root; the rest is the caller's promise.
        unsafe { self.tables.free_root() };
        self.tables.into_environment()
    }

    fn release(&mut self, from: u64, to: u64, frames: &mut impl UserFrames) {
        self.unfold_edges(from, to);
        let pages = self
            .tables
            .release_pages(from, to, |freed| frames.release(freed));
        self.stats.resident -= pages;
    }

    /// Takes apart the groups that the ends of a range cut.
    fn unfold_edges(&mut self, from: u64, to: u64) {
        let group = Self::group_bytes();
        for edge in [from, to] {
            if edge & (group - 1) != 0 && edge < self.geometry().span() {
                self.unfold(edge);
            }
        }
    }

    pub(super) const fn group_bytes() -> u64 {
        P::SIZE.bytes() * P::SIZE.contiguous_entries(crate::arch::Level::L3) as u64
    }
}

/// What other rights change in an entry, whatever it was. Writing is not given here: that depends on
/// who has the page.
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
        // Hardware's account of what was written ends here, so software's says that it may be.
        bit(Descriptor::AP_READ_ONLY | DIRTY, true);
        bit(Descriptor::DIRTY_MODIFIER, false);
    }
    change
}
