//! Making single pages invalid and valid again beside everyone else: without the lock that other
//! operations on the tables are made under, and without memory.
//!
//! That is possible where the tables are split to pages beforehand and stay so: one store in an
//! entry that nobody else changes. For guard pages that are moved from where nothing may wait.

use super::hide::{HIDE, SHOW};
use super::{Environment, Liveness, PageTables, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, Page};
use crate::arch::{Geometry, Kind, PhysicalAddress, VirtualAddress};

/// Makes the pages of `bytes` bytes from `start`, in the tables below `root`, invalid (every access
/// faults; address and permissions are kept) or valid again: one store a page. The TLB is
/// invalidated once, after the stores and before this returns, when pages became invalid; never
/// when they became valid (IWZCBG). Pages that are so already stay as they are, at no cost.
///
/// # Errors
///
/// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
/// [`NotMapped`](TableError::NotMapped), and [`InsideLeaf`](TableError::InsideLeaf) where there are
/// no pages by themselves, but blocks or contiguous groups, hidden or not: nothing is split here, and
/// a member of a group may not differ from the others. Nothing has changed then.
///
/// # Safety
///
/// `root` must be a full table page of `geometry`'s start level, and every table on the way to the
/// pages one that `environment` reaches; its allocator is not asked. While this runs others may change the tree, but neither an
/// entry of these pages nor one on the way to them; what is hidden must not be in use.
pub unsafe fn set_valid<P: Page, E: Environment>(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: E,
    start: VirtualAddress,
    bytes: u64,
    valid: bool,
) -> Result<(), TableError> {
    // SAFETY: what others change meanwhile is not looked at, let alone written: below, only the
    // entries of the pages and those on the way to them are.
    let mut tables =
        unsafe { PageTables::<P, _>::from_root(root, geometry, Liveness::Live, environment)? };
    tables.flip(start, bytes, valid)
}

impl<P: Page, E: Environment> PageTables<P, E> {
    fn flip(&mut self, start: VirtualAddress, bytes: u64, valid: bool) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let level = self.geometry.start_level();
        self.check_pages(self.root, level, from, to)?;
        let change = if valid { SHOW } else { HIDE };
        self.change_in(self.root, level, from, to, change);
        self.pending.within(from, to);
        self.flush();
        Ok(())
    }

    /// Whether everything from `from` to `to` is pages that are in no group.
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
                Kind::Leaf | Kind::Hidden if level.is_last() && !entry.is_contiguous() => {}
                Kind::Leaf | Kind::Hidden => {
                    let group = if entry.is_contiguous() {
                        P::SIZE.contiguous_entries(level) as u64
                    } else {
                        1
                    };
                    let leaf_bytes = bytes * group;
                    let leaf = at & !(leaf_bytes - 1);
                    return Err(TableError::InsideLeaf {
                        // The first one after its beginning that a page would need.
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
