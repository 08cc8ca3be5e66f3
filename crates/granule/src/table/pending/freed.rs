//! Tables and frames that may be released: the values that only a flush makes.
//!
//! Their fields are visible in [`pending`](super) alone, so no other code makes one.

#![allow(unsafe_code, reason = "tables that the caller answers for")]

use crate::arch::PhysicalAddress;

/// A table page that no CPU can reach any more, for
/// [`TableEnvironment::free`](crate::table::TableEnvironment::free).
///
/// The operations of [`PageTables`](crate::table::PageTables) make this value after they invalidated the TLB. A table that
/// may still be walked cannot be freed, because its address alone is not enough:
///
/// ```compile_fail,E0308
/// use granule::arch::PhysicalAddress;
/// use granule::table::TableEnvironment;
///
/// fn too_early(tables: &mut impl TableEnvironment, table: PhysicalAddress) {
///     tables.free(table);
/// }
/// ```
///
/// Other code cannot make one:
///
/// ```compile_fail,E0423
/// use granule::arch::PhysicalAddress;
/// use granule::table::{FreedTable, TableEnvironment};
///
/// fn forged(tables: &mut impl TableEnvironment, table: PhysicalAddress) {
///     tables.free(FreedTable(table));
/// }
/// ```
///
/// A wrapper passes it on once:
///
/// ```
/// use granule::table::{FreedTable, TableEnvironment};
///
/// fn once(tables: &mut impl TableEnvironment, table: FreedTable) {
///     tables.free(table);
/// }
/// ```
///
/// ```compile_fail,E0382
/// use granule::table::{FreedTable, TableEnvironment};
///
/// fn twice(tables: &mut impl TableEnvironment, table: FreedTable) {
///     tables.free(table);
///     tables.free(table);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a table that is not given to `TableEnvironment::free` is lost"]
pub struct FreedTable(pub(super) PhysicalAddress);

impl FreedTable {
    /// An allocated table that no operation unlinked: the root of a tree that no CPU uses, or a
    /// page that never became part of a tree.
    ///
    /// # Safety
    ///
    /// No CPU can walk the table: no entry points to it, no TTBR holds it, and no TLB caches an
    /// entry of it. It is given to the environment that it came from, or to one that may have it and
    /// can reach it, because an environment may write to free pages.
    pub const unsafe fn unreachable(table: PhysicalAddress) -> Self {
        Self(table)
    }

    /// The address of the page.
    #[must_use]
    pub const fn address(&self) -> PhysicalAddress {
        self.0
    }
}

/// Consecutive frames that no CPU can reach through one address space any more, for
/// [`UserFrames::release`](crate::space::UserFrames::release).
///
/// Only an operation of [`Space`](crate::space::Space) makes this value, after it invalidated the
/// TLB for the pages. Addresses alone are not enough:
///
/// ```compile_fail,E0308
/// use granule::arch::PhysicalAddress;
/// use granule::space::UserFrames;
///
/// fn too_early(frames: &mut impl UserFrames, frame: PhysicalAddress) {
///     frames.release(frame);
/// }
/// ```
///
/// ```compile_fail,E0451
/// use granule::arch::PhysicalAddress;
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn forged(frames: &mut impl UserFrames, first: PhysicalAddress) {
///     frames.release(FreedFrames { first, count: 1 });
/// }
/// ```
///
/// A wrapper passes it on once:
///
/// ```
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn once(frames: &mut impl UserFrames, freed: FreedFrames) {
///     frames.release(freed);
/// }
/// ```
///
/// ```compile_fail,E0382
/// use granule::space::UserFrames;
/// use granule::table::FreedFrames;
///
/// fn twice(frames: &mut impl UserFrames, freed: FreedFrames) {
///     frames.release(freed);
///     frames.release(freed);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "frames that are not given to `UserFrames::release` are lost"]
pub struct FreedFrames {
    pub(super) first: PhysicalAddress,
    pub(super) count: u64,
}

impl FreedFrames {
    /// The first frame.
    #[must_use]
    pub const fn first(&self) -> PhysicalAddress {
        self.first
    }

    /// The number of frames.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// No frames.
    pub(in super::super) const fn none() -> Self {
        Self {
            first: PhysicalAddress(0),
            count: 0,
        }
    }

    /// Adds `next`, frames of `bytes` bytes each, if they follow these, and returns no frames.
    /// Otherwise `next` replaces these frames, which are returned.
    pub(in super::super) fn append(&mut self, next: Self, bytes: u64) -> Self {
        if self.count > 0 && self.first.0 + self.count * bytes == next.first.0 {
            self.count += next.count;
            return Self::none();
        }
        core::mem::replace(self, next)
    }
}
