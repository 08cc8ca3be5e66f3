//! The trait that connects page tables with a kernel: how a table is reached, where table pages come
//! from, and how barriers and TLBIs are issued.
//!
//! A kernel implements four functions. The other functions have bodies that use those four. A
//! recorder, a model or an allocator that knows more has its own.

#![allow(unsafe_code, reason = "the promises of an environment")]

use super::memory::{BitChange, BitPattern, Visibility};
use super::{FreedTable, entries};
use crate::arch::tlbi::{TlbCapabilities, TlbiOp};
use crate::arch::{Descriptor, PageSize, PhysicalAddress, Regime};
use crate::forward;

/// An instruction that orders a change of tables, or removes what CPUs cached of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "all must be issued")]
pub enum Maintenance {
    /// DSB ISHST.
    DsbIshst,
    /// DSB ISH.
    DsbIsh,
    /// ISB.
    Isb,
    /// One broadcast TLBI of a regime.
    Tlbi(Regime, TlbiOp),
}

/// A run of table pages that follow each other in physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRun {
    /// The first page.
    pub first: PhysicalAddress,
    /// The number of pages, at least 1.
    pub count: usize,
}

/// The common properties of all pages that an environment gives out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePages {
    /// Their size.
    pub page_size: PageSize,
    /// The end of the last of them. No page ends behind it.
    pub end: PhysicalAddress,
}

/// The answer to [`TableEnvironment::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "pages that were refused cannot be allocated"]
#[expect(clippy::exhaustive_enums, reason = "there is no other answer")]
pub enum Reservation {
    /// The pages can be allocated.
    Granted,
    /// There are too few.
    Refused,
    /// The environment keeps no reservations. The tree allocates the pages at once and holds them.
    Unsupported,
}

impl From<bool> for Reservation {
    fn from(granted: bool) -> Self {
        if granted {
            Self::Granted
        } else {
            Self::Refused
        }
    }
}

/// Access to tables, table pages, barriers and TLBIs: all that page tables need of a kernel.
///
/// ```
/// use granule::arch::{PageSize, PhysicalAddress};
/// use granule::table::{FreeList, FreedTable, Maintenance, Offset, TableEnvironment, TablePages};
///
/// /// Tables in the linear map of a kernel, from a list of free pages.
/// struct Kernel {
///     distance: u64,
///     free: FreeList<Offset>,
/// }
///
/// // SAFETY: the linear map reaches all RAM, the list alone owns its pages, and each instruction is
/// // issued.
/// unsafe impl TableEnvironment for Kernel {
///     fn reach(&self, table: PhysicalAddress) -> *mut u64 {
///         core::ptr::with_exposed_provenance_mut((table.0 + self.distance) as usize)
///     }
///     fn allocate(&mut self) -> Option<PhysicalAddress> {
///         self.free.allocate()
///     }
///     fn free(&mut self, table: FreedTable) {
///         self.free.free(table);
///     }
///     fn pages(&self) -> Option<TablePages> {
///         self.free.pages()
///     }
///     fn invalidate(&mut self, instruction: Maintenance) {
///         #[cfg(target_arch = "aarch64")]
///         granule::hw::issue(instruction);
///     }
/// }
/// ```
///
/// An operation first counts the tables it needs, then reserves them all, and only then changes
/// entries. A shortage is therefore one error, before the first store. One value vouches for access and
/// pages together, so the tables of a tree are always reached where its pages come from.
///
/// # Safety
///
/// - For each table of the tree (the root, those below it, and each allocated page)
///   [`reach`](Self::reach) returns a pointer that is valid for reads and writes of the whole table and
///   aligned to 8 bytes, as long as the tree exists. No Rust reference to a table exists meanwhile.
/// - An allocated page has the page size of the tables and is aligned to it. [`pages`](Self::pages)
///   reports the size if the pages have one, because [`AnyPageTables`](super::AnyPageTables) take any. A page lies below the
///   physical address size of the geometry, and no other code uses it until it is freed. Its contents
///   may be anything. A run has no more pages than asked for, and an aligned one as many, aligned to all
///   of them. A freed page goes back to where it came from, or where it may be used with its size.
/// - [`capabilities`](Self::capabilities) claims no feature that a CPU which walks the tables lacks, and
///   leaves out no erratum.
/// - Functions with bodies of their own access exactly the named entries. A distance or a number that
///   they return does not lie behind them. For [`Visibility::Live`] and [`Visibility::Publish`] they store
///   each entry with a single 64-bit access in the requested order, and [`exchange`](Self::exchange) and
///   the updates lose no change by hardware.
pub unsafe trait TableEnvironment {
    /// Whether the bodies below access entries through [`reach`](Self::reach). An environment whose
    /// entries are elsewhere sets this to false and has its own [`load`](Self::load) and
    /// [`store`](Self::store): the bodies of all other accesses then use those two, and `reach` is not
    /// called. Hardware and other CPUs must not change such entries, unless it has its own
    /// [`exchange`](Self::exchange) and [`update`](Self::update) too. A wrapper that has only some of the
    /// accesses sets it to false too, or those that it leaves out pass it by.
    const BY_POINTER: bool = true;

    /// A pointer to the first entry of `table`.
    fn reach(&self, table: PhysicalAddress) -> *mut u64;

    /// Allocates one page. `None` if there is none, which must not happen after a
    /// [granted](Reservation::Granted) reservation.
    fn allocate(&mut self) -> Option<PhysicalAddress>;

    /// Frees one page that no walker can reach any more.
    fn free(&mut self, table: FreedTable);

    /// Issues one instruction. On arm64 `hw::issue` does. Tables that no CPU walks need none.
    fn invalidate(&mut self, instruction: Maintenance);

    /// The TLBI features of the CPUs that walk the tables, none of which may lack one, and their errata.
    /// [`TlbCapabilities::of`] has them for one CPU. Where nothing is known of the CPUs, each TLBI is issued by
    /// single address, and twice: a CPU may have the erratum that needs it.
    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        TlbCapabilities {
            repeat: true,
            ..TlbCapabilities::BASIC
        }
    }

    /// The common properties of the pages. Tables of another page size, or whose descriptors cannot
    /// hold the addresses, are refused when they begin. Only an environment whose pages suit every page
    /// size returns `None`.
    #[inline(always)]
    fn pages(&self) -> Option<TablePages> {
        None
    }

    /// Ensures that the next `tables` pages can be allocated, or changes nothing.
    #[inline(always)]
    fn reserve(&mut self, _tables: usize) -> Reservation {
        Reservation::Unsupported
    }

    /// Allocates at least one and at most `most` pages in one run. Longer runs are faster to map,
    /// because one loop writes the entries that point to them.
    #[inline(always)]
    fn allocate_run(&mut self, _most: usize) -> Option<TableRun> {
        let first = self.allocate()?;
        Some(TableRun { first, count: 1 })
    }

    /// Allocates `count` pages that follow each other, and returns the first, which is aligned to
    /// the bytes of all together. `count` is a power of two up to 16. Only the concatenated root
    /// tables of stage 2 need more than one page, and no [`reserve`](Self::reserve) comes before. Each
    /// page is freed by itself.
    fn allocate_aligned(&mut self, count: usize) -> Option<PhysicalAddress> {
        if count == 1 && self.reserve(1) != Reservation::Refused {
            self.allocate()
        } else {
            None
        }
    }

    /// Loads one entry.
    ///
    /// # Safety
    ///
    /// `table` must be a table of the tree, and `index` must lie inside it.
    #[inline(always)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: the caller promises that the entry is inside a table, which `reach` reaches.
        Descriptor(unsafe { entries::load(self.reach(table).wrapping_add(index)) })
    }

    /// Stores one entry.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and no other code may write the table. The table of a
    /// [`Visibility::Private`] store must be out of reach of all walkers.
    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        let entry = self.reach(table).wrapping_add(index);
        // SAFETY: as for `load`, and the caller promises that no other code writes the entry and no
        // walker reads a private one.
        unsafe { entries::store(entry, descriptor.0, visibility) }
    }

    /// The distance from index `first` to the first one of `count` entries that does not match
    /// `pattern`, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), for each of the entries. With [`Visibility::Private`] nothing
    /// may write them meanwhile, neither code nor hardware.
    #[inline(always)]
    unsafe fn find_unlike(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        visibility: Visibility,
    ) -> Option<usize> {
        if Self::BY_POINTER {
            let start = self.reach(table).wrapping_add(first);
            // SAFETY: as for `load`, for each entry; nothing else writes private ones.
            unsafe { entries::find_unlike(start, count, pattern, visibility) }
        } else {
            // SAFETY: the caller promises that all of the entries lie inside the table.
            (0..count).find(|index| !pattern.matches(unsafe { self.load(table, first + index) }))
        }
    }

    /// Stores `count` entries from index `first`: `descriptor`, `descriptor + step`, and so on.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        if Self::BY_POINTER {
            let start = self.reach(table).wrapping_add(first);
            // SAFETY: as for `store`, for each entry.
            return unsafe { entries::fill(start, count, descriptor.0, step, visibility) };
        }
        let mut next = descriptor;
        for index in first..first.wrapping_add(count) {
            // SAFETY: the caller promises this for each of the entries.
            unsafe { self.store(table, index, next, visibility) };
            next.0 = next.0.wrapping_add(step);
        }
    }

    /// Stores one entry and returns the old one, atomically. An update by hardware (of the access
    /// flag or the dirty state) either comes before and is in the returned entry, or finds the new
    /// entry.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store).
    #[inline(always)]
    unsafe fn exchange(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) -> Descriptor {
        // SAFETY: the caller keeps the rules of all three.
        unsafe {
            if Self::BY_POINTER {
                let entry = self.reach(table).wrapping_add(index);
                return Descriptor(entries::exchange(entry, descriptor.0, visibility));
            }
            let old = self.load(table, index);
            self.store(table, index, descriptor, visibility);
            old
        }
    }

    /// Applies `change` to those of `count` entries from index `first` that it concerns, and
    /// returns their number. The other entries stay as they are.
    ///
    /// No concurrent update by hardware is lost: each entry that hardware may update
    /// (by its access flag or its dirty modifier) is changed atomically (RWLTNL).
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        if Self::BY_POINTER {
            let start = self.reach(table).wrapping_add(first);
            // SAFETY: as for `store`, for each entry.
            return unsafe { entries::update(start, count, change, visibility) };
        }
        let mut changed = 0;
        for index in first..first.wrapping_add(count) {
            // SAFETY: the caller promises this for each of the entries.
            unsafe {
                let old = self.load(table, index);
                if change.concerns(old) {
                    self.store(table, index, change.apply(old), visibility);
                    changed += 1;
                }
            }
        }
        changed
    }

    /// As [`update`](Self::update), but of the entries before the first one that does not match
    /// `pattern`, whose bits make `change` concern each entry that matches. Returns their number.
    ///
    /// # Safety
    ///
    /// As for [`update`](Self::update).
    #[inline(always)]
    unsafe fn update_alike(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        pattern: BitPattern,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        // SAFETY: the caller promises this for each of the entries.
        unsafe {
            if Self::BY_POINTER {
                let start = self.reach(table).wrapping_add(first);
                return entries::update_alike(start, count, pattern, change, visibility);
            }
            let unlike = self.find_unlike(table, first, count, pattern, visibility);
            self.update(table, first, unlike.unwrap_or(count), change, visibility)
        }
    }
}

// SAFETY: each call goes to the referenced value, which keeps the trait's promises.
unsafe impl<E: TableEnvironment> TableEnvironment for &mut E {
    forward!(*self: reach allocate free invalidate capabilities);
    forward!(*self: pages reserve allocate_run allocate_aligned);
    forward!(*self: load find_unlike store exchange fill update update_alike);
}
