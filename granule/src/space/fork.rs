//! A space that becomes a copy of another: the pages are shared, and copied when they are written.

use super::frames::UserFrames;
use super::{Space, SpaceError};
use crate::arch::Descriptor;
use crate::arch::page_size::Page;
use crate::table::duplicate::Sharing;
use crate::table::group::DIRTY;
use crate::table::{BitChange, Environment};

/// What pages of both spaces are: read-only, and not by way of hardware's dirty state, which may
/// change at any time; that they may have been written is kept.
const SHARED: Sharing = Sharing {
    change: BitChange {
        of: Descriptor::VALID,
        clear: Descriptor::DIRTY_MODIFIER,
        set: Descriptor::AP_READ_ONLY | DIRTY,
    },
    more: 0,
};

impl<P: Page, E: Environment> Space<'_, P, E> {
    /// Makes `child`, a new space of the same geometry, a copy of this one. One pass over the
    /// tables, one invalidation at its end.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotEmpty`] unless `child` is empty and no CPU walks it;
    /// [`SpaceError::AreasFull`] when it has not the room, [`SpaceError::Tables`] when there are not
    /// enough pages for its tables. It is empty then, and nothing has changed here.
    pub fn fork_into(
        &mut self,
        child: &mut Self,
        frames: &mut impl UserFrames,
    ) -> Result<(), SpaceError> {
        let used = !child.areas.all().is_empty() || child.stats.resident != 0;
        if used || child.is_live() || child.geometry() != self.geometry() {
            return Err(SpaceError::NotEmpty);
        }
        child.areas.copy_from(&self.areas)?;
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
                child.areas.clear();
                Err(error.into())
            }
        }
    }
}
