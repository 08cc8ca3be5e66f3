//! Making single pages invalid and valid again without the lock of the tables and without memory.
//!
//! This works where the tables are already split to pages and stay so: the operation is one store
//! into an entry that no other code changes. It serves guard pages that move in code that must not
//! wait.

#![allow(unsafe_code, reason = "entries that only the caller changes")]

use super::present_invalid::{SET_INVALID, SET_VALID};
use super::{Live, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, Page};
use crate::arch::{Geometry, Kind, PhysicalAddress, VirtualAddress};

/// Makes the pages of `bytes` bytes from `start` invalid or valid again, in the tables below
/// `root`, with one store for each page. Every access to an invalid page faults; the entry keeps
/// its address and permissions. If pages became invalid, the TLB is invalidated once, after the
/// stores and before this function returns. Pages that became valid need no TLBI (IWZCBG). Pages
/// that are already in the requested state stay as they are, at no cost.
///
/// # Errors
///
/// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
/// [`NotMapped`](TableError::NotMapped), and [`InsideLeaf`](TableError::InsideLeaf) for a block or
/// contiguous group in the range, present-invalid or not: this function splits nothing, and a
/// member of a group may not differ from the others. The tables are then unchanged.
///
/// # Safety
///
/// `root` must be a full table page of `geometry`'s start level, and `environment` must reach every
/// table on the way to the pages; its allocator is not used. While this function runs, other code
/// may change the tree, except the entries of these pages and those on the way to them. Pages that
/// become invalid must not be in use.
pub unsafe fn set_valid<P: Page, E: TableEnvironment>(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: E,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<(), TableError> {
    // SAFETY: the code below accesses only the entries of the pages and those on the way to them;
    // the caller promises that no other code changes these meanwhile.
    let mut tables = unsafe { Live::<PageTables<P, _>>::from_root(root, geometry, environment)? };
    // SAFETY: the caller promises that pages that become invalid are not in use.
    unsafe { tables.changes() }.set_valid_pages(start, bytes, valid)
}

impl<P: Page, E: TableEnvironment> PageTables<P, E> {
    fn set_valid_pages(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        valid: bool,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let level = self.geometry.start_level();
        self.check_pages(self.root, level, from, to)?;
        let change = if valid { SET_VALID } else { SET_INVALID };
        self.change_in(self.root, level, from, to, change);
        self.pending.within(from, to);
        self.flush();
        Ok(())
    }

    /// Checks that all offsets from `from` to `to` are mapped by pages outside contiguous groups.
    fn check_pages(
        &self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
    ) -> Result<(), TableError> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let first = at & !(bytes - 1);
            let next = to.min(first + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Invalid => {
                    return Err(TableError::NotMapped {
                        address: self.address(at),
                    });
                }
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    self.check_pages(below, level.next(), at, next)?;
                }
                Kind::Leaf | Kind::PresentInvalid if level.is_last() && !entry.is_contiguous() => {}
                Kind::Leaf | Kind::PresentInvalid => {
                    let group = if entry.is_contiguous() {
                        P::SIZE.contiguous_entries(level) as u64
                    } else {
                        1
                    };
                    let leaf_bytes = bytes * group;
                    let leaf = at & !(leaf_bytes - 1);
                    return Err(TableError::InsideLeaf {
                        // The first page boundary that a split would need inside the leaf.
                        edge: self.address(from.max(leaf + P::SIZE.bytes())),
                        leaf: self.address(leaf),
                        leaf_bytes,
                        takes: if level.is_last() {
                            BbmLevel::Level1
                        } else {
                            BbmLevel::Level2
                        },
                    });
                }
            }
            at = next;
        }
        Ok(())
    }
}
