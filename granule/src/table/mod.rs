//! Translation tables: mapping, unmapping, changing permissions, asking, visiting.
//!
//! [`PageTables`] is one tree of tables for one half of an address space. It stands on three
//! small traits, [`TableMemory`], [`TableAllocator`] and [`Maintenance`], which it takes as one
//! value ([`Parts`] joins three). The operations are in a file each; what they share is here:
//! the tree, its errors, and the only calls into the unsafe trait.
//!
//! Every operation first looks, then reserves the table pages it needs, then changes: it
//! completes, or fails with a [`TableError`] and leaves the tables as they were.

pub mod allocator;
pub(crate) mod choose;
pub mod count;
pub(crate) mod duplicate;
mod environment;
pub mod flip;
pub(crate) mod flush;
mod forward;
pub(crate) mod group;
pub(crate) mod hide;
mod limit;
pub mod maintenance;
pub mod map;
pub mod memory;
mod merge;
pub(crate) mod page;
mod pending;
mod piece;
pub(crate) mod plan;
mod protect;
mod query;
pub mod reach;
mod release;
mod split;
mod unmap;

pub use allocator::{TableAllocator, TableRun};
pub use count::{Counted, Counters, Counts};
pub use environment::{Environment, Parts};
pub use flush::{invalidate, publish};
pub use maintenance::{Maintenance, NoCpu};
pub use memory::{BitChange, TableMemory, Visibility};
pub use merge::Merged;
pub use pending::{FreedFrames, FreedTable};
pub use piece::{Leaves, Piece};
pub use protect::{Holes, PermissionChange};
pub use query::{Entry, Mapping};
pub use reach::{Offset, Reach, Reached};

use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{Level, Page, PageSize};
use crate::arch::{Descriptor, Geometry, PhysicalAddress, VirtualAddress};
use core::fmt;
use core::marker::PhantomData;
use pending::Pending;

/// Why an operation on tables was refused. The tables are as they were before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// An address or a length is not a multiple of the page size.
    Misaligned {
        /// The address or length.
        value: u64,
        /// The page size.
        page_size: PageSize,
    },
    /// A range reaches outside the half of the address space that the tables translate.
    OutsideSpace {
        /// The first address of the range.
        start: VirtualAddress,
        /// Its bytes.
        bytes: u64,
        /// The bits of virtual address there are.
        va_bits: u32,
    },
    /// The output reaches beyond the physical addresses that CPU and descriptor format have.
    OutputTooLarge {
        /// The first physical address of the range.
        start: PhysicalAddress,
        /// Its bytes.
        bytes: u64,
        /// The bits of physical address there are.
        pa_bits: u32,
    },
    /// Something is mapped already.
    AlreadyMapped {
        /// The first such address in the range.
        address: VirtualAddress,
    },
    /// The pieces of a list do not ascend, or overlap.
    Unsorted {
        /// The first address of the piece that begins before the one before it ends.
        address: VirtualAddress,
    },
    /// Nothing is mapped where something must be.
    NotMapped {
        /// The first such address in the range.
        address: VirtualAddress,
    },
    /// The range begins or ends inside a block or contiguous group that CPUs use, and they are
    /// not known to let it be split under their eyes; or all of such a leaf would have to be split
    /// ([`PageTables::limit_leaves`]), or is where only pages may be (`flip::set_valid`, at any level).
    InsideLeaf {
        /// The edge of the range.
        edge: VirtualAddress,
        /// The first address of the leaf or group.
        leaf: VirtualAddress,
        /// The bytes of the leaf or group.
        leaf_bytes: u64,
        /// The level of FEAT_BBM that the split takes ([`PageTables::set_bbm`]).
        takes: BbmLevel,
    },
    /// There are not enough table pages.
    OutOfTables {
        /// How many the operation needs.
        needed: usize,
    },
    /// The geometry is for another page size than the type.
    WrongPageSize {
        /// The geometry's.
        geometry: PageSize,
        /// The type's.
        page: PageSize,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Misaligned { value, page_size } => {
                write!(
                    f,
                    "{value:#x} is not a multiple of the {page_size} page size"
                )
            }
            Self::OutsideSpace {
                start,
                bytes,
                va_bits,
            } => write!(
                f,
                "{bytes:#x} bytes from {start} reach outside the {va_bits}-bit address space"
            ),
            Self::OutputTooLarge {
                start,
                bytes,
                pa_bits,
            } => write!(
                f,
                "{bytes:#x} bytes from physical {start} reach beyond {pa_bits} bits"
            ),
            Self::AlreadyMapped { address } => write!(f, "{address} is already mapped"),
            Self::Unsorted { address } => {
                write!(
                    f,
                    "the piece at {address} begins before the one before it ends"
                )
            }
            Self::NotMapped { address } => write!(f, "{address} is not mapped"),
            Self::InsideLeaf {
                edge,
                leaf,
                leaf_bytes,
                takes,
            } => write!(
                f,
                "{edge} lies inside the leaf of {leaf_bytes:#x} bytes at {leaf}, which may not be split \
                 while CPUs use it: change all of it, map it in smaller leaves, or allow it \
                 with set_bbm if every CPU has level {} of FEAT_BBM",
                takes.number()
            ),
            Self::OutOfTables { needed } => {
                write!(f, "out of memory for tables: {needed} more are needed")
            }
            Self::WrongPageSize { geometry, page } => write!(
                f,
                "the geometry has {geometry} pages, the tables were asked for with {page}"
            ),
        }
    }
}

impl core::error::Error for TableError {}

/// Whether walkers may be using the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// No CPU can reach them: no barriers, no TLBIs.
    Private,
    /// Some CPU may walk them at any time.
    Live,
}

/// One tree of translation tables.
///
/// Addresses are checked and turned into offsets from the base of the half on the way in; inside
/// offsets are used, which never wrap.
#[derive(Debug)]
pub struct PageTables<P: Page, E> {
    root: PhysicalAddress,
    geometry: Geometry,
    liveness: Liveness,
    /// The address space that non-global leaves belong to.
    asid: Option<u16>,
    /// How far sizes may change in place on live tables.
    bbm: BbmLevel,
    /// What was changed and not flushed yet.
    pending: Pending,
    /// Leaves are changed without TLBIs.
    defers_tlbi: bool,
    environment: E,
    page: PhantomData<P>,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Takes over the tree below `root`.
    ///
    /// # Errors
    ///
    /// When `geometry` is for another page size than `P`.
    ///
    /// # Safety
    ///
    /// `root` must be a full table page of `geometry`'s start level, and every table below it
    /// one that `environment` reaches; contiguous groups in them must be whole: the hint on all of
    /// their entries, all valid or all hidden. Nobody else changes them while this exists. If any CPU
    /// can walk them, `liveness` must say so.
    pub unsafe fn from_root(
        root: PhysicalAddress,
        geometry: Geometry,
        liveness: Liveness,
        environment: E,
    ) -> Result<Self, TableError> {
        if geometry.page_size() != P::SIZE {
            return Err(TableError::WrongPageSize {
                geometry: geometry.page_size(),
                page: P::SIZE,
            });
        }
        Ok(Self {
            root,
            geometry,
            liveness,
            asid: None,
            bbm: BbmLevel::Level0,
            pending: Pending::NOTHING,
            defers_tlbi: false,
            environment,
            page: PhantomData,
        })
    }

    /// A new, empty tree that no CPU can reach yet.
    ///
    /// # Errors
    ///
    /// When there is no page for the root, or `geometry` is for another page size than `P`.
    pub fn new(geometry: Geometry, environment: E) -> Result<Self, TableError> {
        let mut tables = Self {
            // There is none before `begin` has succeeded.
            root: PhysicalAddress(0),
            geometry,
            liveness: Liveness::Private,
            asid: None,
            bbm: BbmLevel::Level0,
            pending: Pending::NOTHING,
            defers_tlbi: false,
            environment,
            page: PhantomData,
        };
        tables.begin(geometry)?;
        Ok(tables)
    }

    /// Continues with a new, empty tree that no CPU can reach yet. The tree before stays as it is; its
    /// [`root`](Self::root) is the only way back to it. Code that makes several trees of one page size
    /// thus has one instance of [`PageTables`].
    ///
    /// # Errors
    ///
    /// When the geometry has another page size, or there is no page for the root. The tree before is
    /// then still the current one.
    pub fn begin(&mut self, geometry: Geometry) -> Result<(), TableError> {
        if geometry.page_size() != P::SIZE {
            return Err(TableError::WrongPageSize {
                geometry: geometry.page_size(),
                page: P::SIZE,
            });
        }
        let exhausted = TableError::OutOfTables { needed: 1 };
        if !self.environment.reserve(1) {
            return Err(exhausted);
        }
        self.root = self.environment.allocate(1).ok_or(exhausted)?.first;
        self.geometry = geometry;
        self.liveness = Liveness::Private;
        self.asid = None;
        self.fill(
            self.root,
            0,
            P::SIZE.entries(),
            Descriptor::INVALID,
            0,
            Visibility::Private,
        );
        Ok(())
    }

    /// Continues with another tree that no CPU can reach. The tree before stays as it is.
    ///
    /// # Safety
    ///
    /// As for [`from_root`](Self::from_root), in the same environment; `geometry` has this page size.
    pub const unsafe fn turn_to(&mut self, root: PhysicalAddress, geometry: Geometry) {
        self.root = root;
        self.geometry = geometry;
        self.liveness = Liveness::Private;
        self.asid = None;
    }

    /// The root table, for TTBR.
    #[must_use]
    pub const fn root(&self) -> PhysicalAddress {
        self.root
    }

    /// Whether CPUs may walk the tables.
    #[must_use]
    pub const fn liveness(&self) -> Liveness {
        self.liveness
    }

    /// The shape of the address space.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Says that CPUs may walk the tables from now on, and makes what was written so far
    /// visible to them.
    pub fn make_live(&mut self) {
        self.liveness = Liveness::Live;
        self.pending.made_valid();
        self.flush();
    }

    /// Invalidations name this address space instead of all of them: for tables none of whose leaves
    /// is global, since those would stay cached.
    pub const fn set_asid(&mut self, asid: Option<u16>) {
        self.asid = asid;
    }

    /// What the tables stand on.
    pub const fn environment(&mut self) -> &mut E {
        &mut self.environment
    }

    /// Gives back what the tables stand on; the tables stay as they are.
    pub fn into_environment(self) -> E {
        self.environment
    }

    /// Checks a range of addresses and gives its offsets in the half.
    pub(crate) fn offsets(
        &self,
        start: VirtualAddress,
        bytes: u64,
    ) -> Result<(u64, u64), TableError> {
        let page = P::SIZE.bytes();
        for value in [start.0, bytes] {
            if value & (page - 1) != 0 {
                return Err(TableError::Misaligned {
                    value,
                    page_size: P::SIZE,
                });
            }
        }
        let outside = TableError::OutsideSpace {
            start,
            bytes,
            va_bits: self.geometry.va_bits(),
        };
        let offset = self.geometry.offset(start).ok_or(outside)?;
        match offset.checked_add(bytes) {
            Some(end) if end <= self.geometry.span() => Ok((offset, end)),
            _ => Err(outside),
        }
    }

    /// The virtual address at an offset in the half.
    const fn address(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.geometry.base().0.wrapping_add(offset))
    }

    /// The index, in its table of `level`, of the entry that translates `offset`.
    const fn index(offset: u64, level: Level) -> usize {
        P::SIZE.index(offset, level)
    }

    /// How stores into existing tables must be made.
    const fn visibility(&self) -> Visibility {
        match self.liveness {
            Liveness::Private => Visibility::Private,
            Liveness::Live => Visibility::Live,
        }
    }

    /// How existing tables are linked to new ones.
    const fn linking(&self) -> Visibility {
        match self.liveness {
            Liveness::Private => Visibility::Private,
            Liveness::Live => Visibility::Publish,
        }
    }

    #[inline(always)]
    fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: every table address in this module comes from the root, a table descriptor
        // below it or the allocator, all of which the environment reaches (promised to
        // `from_root` and by `TableAllocator`); indices come from `index` or are bounded by it.
        unsafe { self.environment.load(table, index) }
    }

    /// How far behind `first` the first valid one of `count` entries is.
    #[inline(always)]
    fn find_mapped(&self, table: PhysicalAddress, first: usize, count: usize) -> Option<usize> {
        // SAFETY: as for `load`, for each entry.
        unsafe { self.environment.find_mapped(table, first, count) }
    }

    /// The index of the first entry before `end` that holds something, from `index` on.
    #[inline(always)]
    fn next_mapped(&self, table: PhysicalAddress, index: usize, end: usize) -> Option<usize> {
        // Mostly it is the next one: not worth looking at a whole chunk.
        if index < end && self.load(table, index).0 & BitChange::LEAVES != 0 {
            return Some(index);
        }
        let found = self.find_mapped(table, index, end - index)?;
        Some(index + found)
    }

    #[inline(always)]
    fn store(&mut self, table: PhysicalAddress, index: usize, entry: Descriptor, how: Visibility) {
        // SAFETY: as for `load`; `&mut self` is the only writer, and private stores are made to
        // tables that are not linked or in a tree that is not live.
        unsafe { self.environment.store(table, index, entry, how) }
    }

    /// Stores an entry of a table that walkers may read and hardware may update.
    #[inline(always)]
    fn exchange(&mut self, table: PhysicalAddress, index: usize, entry: Descriptor) -> Descriptor {
        let how = self.visibility();
        // SAFETY: as for `store`.
        unsafe { self.environment.exchange(table, index, entry, how) }
    }

    #[inline(always)]
    fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        entry: Descriptor,
        step: u64,
        how: Visibility,
    ) {
        // SAFETY: as for `store`, for each entry.
        unsafe { self.environment.fill(table, first, count, entry, step, how) }
    }

    #[inline(always)]
    fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
    ) -> usize {
        let how = self.visibility();
        // SAFETY: as for `store`, for each entry.
        unsafe { self.environment.update(table, first, count, change, how) }
    }
}
