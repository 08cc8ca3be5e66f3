//! Pages for page tables, from the frame allocator.
//!
//! An operation on tables reserves pages before it allocates them, and other CPUs allocate in between.
//! So the reservations are kept in [`Frames`] itself. [`Tables`] borrows the frames anew on each call
//! ([`Source`]) and does not hold their lock in between.

#![allow(unsafe_code, reason = "frames for tables have no other owner")]

use super::{Frame, Frames};
use granule::table::{FreedTable, TableRun};

/// Access to the frames, always the same ones: through a lock, or a plain reference.
pub trait Source {
    /// Calls `what` with the frames.
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R;
}

impl Source for &mut Frames<'_> {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        what(self)
    }
}

/// Allocates and frees single frames for page tables, of the frames' page size.
#[derive(Debug)]
pub struct Tables<S: Source> {
    source: S,
    /// Frames reserved for this allocator and not allocated yet.
    held: u64,
}

impl<S: Source> Tables<S> {
    /// A table allocator over the frames of `source`.
    ///
    /// # Safety
    ///
    /// For the memory of every frame that was or will be given to `source`: only the code that
    /// allocated a frame there uses it, the environment of the tables reaches it, and it lies below the
    /// physical address size of the tables. The page size of the tables must be that of the frames.
    pub const unsafe fn new(source: S) -> Self {
        Self { source, held: 0 }
    }

    /// Frames that are reserved for this allocator now.
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Ensures that the next `tables` pages can be allocated; false, without a change, if not.
    pub fn reserve(&mut self, tables: usize) -> bool {
        // Reservations left over from an earlier operation count.
        let more = (tables as u64).saturating_sub(self.held);
        let enough = more == 0 || self.source.with(|frames| frames.reserve(more));
        if enough {
            self.held += more;
        }
        enough
    }

    /// Allocates at least one and at most `most` pages in one run.
    pub fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        if most == 0 || (self.held == 0 && !self.reserve(1)) {
            return None;
        }
        let most = self.held.min(most as u64);
        let (first, count) = self.source.with(|frames| {
            let (first, count) = frames.take_reserved(most)?;
            Some((first.address(frames.page_size()), count))
        })?;
        self.held -= count;
        Some(TableRun {
            first,
            count: count as usize,
        })
    }

    /// Frees one page.
    pub fn free(&mut self, table: FreedTable) {
        self.source.with(|frames| {
            let frame = Frame::containing(table.address(), frames.page_size());
            // This function cannot return an error; the frames count their refusals.
            let _ = frames.free(frame, 0);
        });
    }

    /// Gives back what was reserved and not allocated.
    pub fn release_reserved(&mut self) {
        let held = core::mem::take(&mut self.held);
        if held > 0 {
            self.source.with(|frames| frames.unreserve(held));
        }
    }
}

impl<S: Source> Drop for Tables<S> {
    fn drop(&mut self) {
        self.release_reserved();
    }
}
