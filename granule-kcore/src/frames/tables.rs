//! Pages for page tables, from the frame allocator.
//!
//! An operation on tables reserves before it allocates, and other CPUs allocate in
//! between: so reservations stand in [`Frames`] itself, and [`Tables`] asks for the
//! frames anew ([`Source`]) on each call instead of holding their lock meanwhile.

use super::{Frame, Frames};
use granule::table::{FreedTable, TableAllocator, TableRun};

/// Reaches the frames, always the same ones: a lock around them, or a plain reference.
pub trait Source {
    /// Calls `what` with the frames.
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R;
}

impl Source for &mut Frames<'_> {
    fn with<R>(&mut self, what: impl FnOnce(&mut Frames<'_>) -> R) -> R {
        what(self)
    }
}

/// Gives and takes back single frames for page tables, of the frames' page size.
#[derive(Debug)]
pub struct Tables<S: Source> {
    source: S,
    /// Frames reserved for this one and not allocated yet.
    held: u64,
}

impl<S: Source> Tables<S> {
    /// An allocator of tables in the frames of `source`.
    ///
    /// # Safety
    ///
    /// The memory of every frame that was or will be given to `source` must be used by nobody who
    /// did not allocate it there, be reachable by the [`TableMemory`](granule::table::TableMemory)
    /// that this is used with, and lie below the physical address size of its tables, whose page
    /// size must be that of the frames.
    pub const unsafe fn new(source: S) -> Self {
        Self { source, held: 0 }
    }

    /// Frames that are reserved for this one now.
    pub const fn held(&self) -> u64 {
        self.held
    }
}

// SAFETY: the caller of `new` vouched for the memory, and a frame is allocated to one at a time.
unsafe impl<S: Source> TableAllocator for Tables<S> {
    fn reserve(&mut self, tables: usize) -> bool {
        // What an earlier operation left over counts.
        let more = (tables as u64).saturating_sub(self.held);
        let enough = more == 0 || self.source.with(|frames| frames.reserve(more));
        if enough {
            self.held += more;
        }
        enough
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
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

    fn free(&mut self, table: FreedTable) {
        self.source.with(|frames| {
            let frame = Frame::containing(table.address(), frames.page_size());
            // There is nobody to tell here: the frames count what they refuse.
            let _ = frames.free(frame, 0);
        });
    }
}

impl<S: Source> Drop for Tables<S> {
    fn drop(&mut self) {
        let held = self.held;
        if held > 0 {
            self.source.with(|frames| frames.unreserve(held));
        }
    }
}
