//! Frames that have an owner already and are mapped into a space as well, such as the content of a
//! file. The program reads the owner's frames; where its VMA allows writing, its first write copies,
//! as after a fork.

#![allow(unsafe_code, reason = "frames of other owners, which the caller keeps")]

use super::frames::UserFrames;
use super::rights::Rights;
use super::{Space, SpaceError};
use crate::arch::page_size::{Level, PageChoice};
use crate::arch::{Descriptor, PhysicalAddress, VirtualAddress};
use crate::table::TableEnvironment;

impl<P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'_, P, E, F> {
    /// Maps the `bytes` bytes of frames from `first` at `start`, and adds an owner to each page of
    /// them. The program cannot write to these frames. Where the VMA allows execution, their content
    /// must be visible to instruction fetches already.
    ///
    /// # Safety
    ///
    /// Another owner keeps the frames, which come from the account of `F`, during the call; they are
    /// whole pages of this space's size, and aligned to it. While the owner keeps them, no one writes
    /// what the program must not see.
    ///
    /// # Errors
    ///
    /// [`SpaceError::Tables`] unless the range is whole pages of the lower half, or when there are
    /// not enough pages for tables; [`SpaceError::NotMapped`] where there is no VMA;
    /// [`SpaceError::Occupied`] where a page is mapped already. The pages before stay mapped.
    pub unsafe fn map_shared(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        first: PhysicalAddress,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        self.check(frames)?;
        let (from, to) = self.tables.offsets(start, bytes)?;
        let mut at = from;
        let mut done = Ok(());
        while at < to && done.is_ok() {
            done = self.map_one_shared(at, first.wrapping_add(at - from), frames);
            at += self.size().bytes();
        }
        self.tables.publish();
        done
    }

    fn map_one_shared(
        &mut self,
        offset: u64,
        frame: PhysicalAddress,
        frames: &mut F,
    ) -> Result<(), SpaceError> {
        let address = VirtualAddress(self.geometry().base().0 + offset);
        let not_mapped = SpaceError::NotMapped { address };
        let vma = self.vmas.find_near(address).ok_or(not_mapped)?;
        let mut place = self.tables.place(offset);
        if place.entry.is_valid() {
            return Err(SpaceError::Occupied { address });
        }
        let slot = self.tables.make_slot(offset, &mut place, Level::L3)?;
        frames.share(frame, 1);
        let rights = Rights {
            write: false,
            ..vma.rights
        };
        // Not by the program: a page that it never uses has no access flag.
        let bits = self.page_bits(rights, false, false);
        let entry = Descriptor::leaf(self.geometry(), Level::L3, frame, bits);
        self.tables.set_page(slot, entry);
        self.fold(&vma, offset, slot);
        self.stats.resident += 1;
        self.stats.mapped += 1;
        Ok(())
    }
}
