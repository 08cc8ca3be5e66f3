//! Fork: a new space becomes a copy of another. Pages are shared, and copied at the first write.

use super::frames::UserFrames;
use super::{Space, SpaceError};
use crate::arch::Descriptor;
use crate::arch::page_size::PageChoice;
use crate::table::duplicate::Sharing;
use crate::table::group::DIRTY;
use crate::table::{BitChange, TableEnvironment};

/// Pages of both spaces become read-only. DBM is cleared, because hardware could change the dirty
/// state at any time; the software dirty bit keeps that the page may have been written.
const SHARED: Sharing = Sharing {
    change: BitChange {
        of: Descriptor::VALID,
        clear: Descriptor::DIRTY_MODIFIER,
        set: Descriptor::AP_READ_ONLY | DIRTY,
    },
    more: 0,
};

impl<P: PageChoice, E: TableEnvironment, F: UserFrames> Space<'_, P, E, F> {
    /// Makes `child`, a new space of the same geometry, a copy of this one, with one pass over the
    /// tables and one invalidation at the end.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotEmpty`] unless `child` is empty and no CPU walks it;
    /// [`SpaceError::OutOfVmaNodes`] when it was lent fewer [nodes](super::Vmas::nodes) than this one uses, and
    /// [`SpaceError::TooManyVmas`] when it may have fewer VMAs; [`SpaceError::Tables`]
    /// when there are not enough pages for its tables. On error `child` is empty and this space is
    /// unchanged.
    pub fn fork_into(&mut self, child: &mut Self, frames: &mut F) -> Result<(), SpaceError> {
        self.check(frames)?;
        let used = !child.vmas.is_empty() || child.stats.resident != 0;
        if used || child.is_live() || child.geometry() != self.geometry() {
            return Err(SpaceError::NotEmpty);
        }
        child.vmas.copy_from(&self.vmas)?;
        let mut pages = 0;
        let shared = self
            .tables
            .duplicate(&mut child.tables, SHARED, |first, count| {
                pages += count;
                frames.share(first, count);
            });
        match shared {
            Ok(()) => {
                child.stats.resident = pages;
                Ok(())
            }
            Err(error) => {
                child.vmas.clear();
                Err(error.into())
            }
        }
    }
}
