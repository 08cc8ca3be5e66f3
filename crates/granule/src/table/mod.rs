//! Translation tables: map, unmap, change permissions, query and visit.
//!
//! [`PageTables`] is one tree of tables for one half of an address space, and [`Live`] is such a
//! tree once CPUs may walk it. It takes what it needs of a kernel as one value, its
//! [`TableEnvironment`]: a pointer to a table, table pages, barriers and TLBIs. Each operation has its
//! own file. This file holds the tree; the only calls to the unsafe methods of [`TableEnvironment`] are in
//! `access`.
//!
//! Every operation first checks the tables, then reserves the table pages it needs, then changes
//! entries. It completes, or it fails with a [`TableError`] and leaves the tables unchanged.

mod access;
#[cfg(feature = "space")]
pub(crate) mod block;
#[cfg(feature = "space")]
pub(crate) mod choose;
mod chunks;
mod cursor;
#[cfg(feature = "space")]
pub(crate) mod duplicate;
mod entries;
mod environment;
mod error;
pub(crate) mod flush;
mod forward;
mod frames;
mod free_list;
#[cfg(feature = "space")]
pub(crate) mod group;
mod hardware_updates;
mod harvest;
mod limit;
mod live;
pub mod lock_free;
pub(crate) mod map;
pub(crate) mod memory;
mod merge;
mod modify;
mod near;
#[cfg(feature = "space")]
pub(crate) mod page;
mod pending;
mod piece;
pub(crate) mod plan;
pub(crate) mod present_invalid;
mod protect;
mod query;
mod reserve;
mod split;
pub(crate) mod stage;
pub(crate) mod stage2;
mod unmap;
mod update;
mod view;
mod visit;
pub(crate) mod walk;
#[cfg(feature = "space")]
mod zap;

pub use cursor::PageCursor;
pub use entries::{Offset, PhysToVirt};
pub use environment::{Maintenance, Reservation, TableEnvironment, TablePages, TableRun};
pub use error::TableError;
pub use flush::{invalidate, publish};
pub use frames::{FrameRun, Frames};
pub use free_list::FreeList;
pub use harvest::Harvest;
pub use live::Live;
pub use memory::{BitChange, BitPattern, Visibility};
pub use merge::Merged;
pub use pending::{FreedFrames, FreedTable};
pub use piece::{Leaves, Piece};
pub use protect::{Holes, PermissionChange};
pub use stage::{Stage, Stage1, Stage2};
pub use stage2::Stage2PermissionChange;
pub use unmap::EmptyTables;
pub use view::{TableView, Unread, UnreadTable};
pub use visit::{Entry, Mapping, Visit};

use crate::arch::bbm::BbmLevel;
use crate::arch::page_size::{AnyPage, Level, PageChoice, PageSize, size_of};
use crate::arch::{Descriptor, Geometry, PhysicalAddress, Regime, VirtualAddress};
use core::marker::PhantomData;
use pending::Pending;
use reserve::Held;

/// Whether CPUs may walk the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// No CPU can reach the tables. Changes need no barriers and no TLBIs.
    Private,
    /// Some CPU may walk the tables at any time.
    Live,
}

/// One tree of translation tables that no CPU walks.
///
/// [`make_live`](Self::make_live) hands it to CPUs, as [`Live`]. All methods here are safe to call
/// before that. On a live tree [`Live::changes`] gives access to them, and their documentation says
/// which barriers and TLBIs they issue then.
///
/// The tables stay allocated when the value is dropped; [`destroy`](Self::destroy) frees them.
///
/// Public methods check each address and convert it to an offset from the base of the half. The
/// code inside uses offsets, because they never wrap.
#[derive(Debug)]
pub struct PageTables<P: PageChoice, E, S: Stage = Stage1> {
    root: PhysicalAddress,
    geometry: Geometry,
    liveness: Liveness,
    /// The address space of the non-global leaves.
    asid: Option<u16>,
    /// Which changes of size are allowed in place on live tables.
    bbm: BbmLevel,
    /// The changes that are not flushed yet.
    pending: Pending,
    /// Pages for its next tables.
    held: Held,
    /// The caller issues the TLBIs for changes of leaves.
    defers_tlbi: bool,
    environment: E,
    types: PhantomData<(P, S)>,
}

/// [`PageTables`] of a page size that is the geometry's, not the type's.
///
/// A static needs one type for all sizes. Its code is compiled once, so it is smaller than that of
/// three sizes, and no shift in it is a constant: a kernel takes [`PageTables`] of a
/// [`Page`](crate::arch::Page) where calls are many.
///
/// ```
/// use granule::arch::{
///     Attributes, CpuFeatures, Geometry, PageSize, Permissions, PhysicalAddress,
///     Regime, VaRange, VirtualAddress,
/// };
/// use granule::table::{AnyPageTables, FreeList, Leaves, Live, Maintenance, Offset, TableEnvironment};
/// use std::sync::Mutex;
///
/// struct Kernel(FreeList<Offset>);
///
/// // SAFETY: the list alone owns its pages. No CPU walks the tables in this example.
/// unsafe impl TableEnvironment for Kernel {
///     granule::forward!(self.0: reach allocate free pages);
///     fn invalidate(&mut self, _: Maintenance) {}
/// }
///
/// /// The kernel's tables, once they are built. A kernel has its own lock.
/// static TABLES: Mutex<Option<Live<AnyPageTables<Kernel>>>> = Mutex::new(None);
///
/// # let mut pages = vec![0u64; 5 * 8192];
/// # let start = PhysicalAddress(pages.as_mut_ptr().expose_provenance() as u64);
/// # let end = PhysicalAddress(start.0 + 5 * 65536);
/// let cpu = CpuFeatures { mmfr0: 0x0010_0005, ..CpuFeatures::NONE };
/// // The one place where the size is said.
/// let size = PageSize::K64;
/// let geometry = Geometry::new(&cpu, size, 48, VaRange::Upper, Regime::El1And0)?;
/// // SAFETY: the pages are mapped at their physical addresses, and nothing else uses them. No CPU
/// // walks the tables in this example.
/// let live = unsafe {
///     let mut pages = FreeList::new(Offset::new(0), size);
///     pages.add(start, end);
///     AnyPageTables::new(geometry, Kernel(pages))?.make_live()
/// };
/// assert_eq!(live.geometry().page_size(), PageSize::K64);
/// *TABLES.lock().unwrap() = Some(live);
///
/// let mut tables = TABLES.lock().unwrap();
/// let tables = tables.as_mut().ok_or("no tables yet")?;
/// let (base, ram) = (geometry.base(), Attributes::normal(Permissions::READ_WRITE));
/// // SAFETY: nothing is mapped there, and the memory has no other user.
/// unsafe { tables.changes() }.map(base, PhysicalAddress(0), 1 << 30, ram, Leaves::LARGEST)?;
/// assert!(tables.query(VirtualAddress(base.0 + 0x1234)).is_some());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub type AnyPageTables<E> = PageTables<AnyPage, E>;

#[allow(unsafe_code, reason = "the caller vouches for the leaves")]
impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// Limits invalidations to one address space.
    ///
    /// # Safety
    ///
    /// No leaf of the tables may be global, because a TLBI for an ASID leaves global entries
    /// cached. While the tables are live, CPUs walk them under this ASID only.
    pub const unsafe fn set_asid(&mut self, asid: Option<u16>) {
        self.asid = asid;
    }
}

#[allow(unsafe_code, reason = "a tree by its root")]
impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// Takes over the tree below `root`, which no CPU walks. [`Live::from_root`] takes over a live
    /// one.
    ///
    /// # Errors
    ///
    /// [`TableError::WrongPageSize`] when `geometry` has another page size than `P`,
    /// [`WrongStage`](TableError::WrongStage) for the shape of stage 2 without [`Stage2`] in the type,
    /// [`WrongTablePages`](TableError::WrongTablePages) and
    /// [`TablesTooHigh`](TableError::TablesTooHigh) when the environment's pages do not serve.
    ///
    /// # Safety
    ///
    /// `root` must be a full table page of `geometry`'s start level (at stage 2 the first of all
    /// concatenated ones), and `environment` must reach every table below it. It may have
    /// those tables, because unmapping frees them there. Contiguous groups in
    /// the tables must be whole: the hint on all entries of a group, and all of them valid or all
    /// present-invalid. No other code may change the tables while this value exists, and no CPU may
    /// walk them.
    pub unsafe fn from_root(
        root: PhysicalAddress,
        geometry: S::Geometry,
        environment: E,
    ) -> Result<Self, TableError> {
        let geometry: Geometry = geometry.into();
        Self::check(&geometry, &environment)?;
        // SAFETY: the caller keeps the conditions.
        Ok(unsafe { Self::with_root(root, geometry, environment) })
    }

    /// As [`from_root`](Self::from_root), for a geometry whose page size is `P`.
    ///
    /// # Safety
    ///
    /// As for [`from_root`](Self::from_root).
    const unsafe fn with_root(root: PhysicalAddress, geometry: Geometry, environment: E) -> Self {
        Self {
            root,
            geometry,
            liveness: Liveness::Private,
            asid: None,
            bbm: BbmLevel::Level0,
            pending: Pending::NOTHING,
            held: Held::NOTHING,
            defers_tlbi: false,
            environment,
            types: PhantomData,
        }
    }

    /// A new, empty tree.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`] when there is no page for the root, or for concatenated root
    /// tables no [aligned run](TableEnvironment::allocate_aligned) of pages,
    /// [`WrongPageSize`](TableError::WrongPageSize) when `geometry` has another page size than `P`,
    /// [`WrongTablePages`](TableError::WrongTablePages) and
    /// [`TablesTooHigh`](TableError::TablesTooHigh) when the environment's pages do not serve.
    pub fn new(geometry: S::Geometry, environment: E) -> Result<Self, TableError> {
        let mut environment = environment;
        let geometry: Geometry = geometry.into();
        let root = Self::allocate_root(&geometry, &mut environment)?;
        Ok(Self::of_new_root(root, geometry, environment))
    }

    /// Leaves this tree as it is, and makes a new, empty one in the same environment. Returns the
    /// address of the old root and the new tree, which has no settings of the old one.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new), with this tree as it was.
    #[allow(clippy::result_large_err, reason = "the error has the tree")]
    pub fn begin_another(
        mut self,
        geometry: S::Geometry,
    ) -> Result<(PhysicalAddress, Self), (TableError, Self)> {
        let geometry: Geometry = geometry.into();
        if geometry.page_size() != self.size() {
            // The environment's pages are those of this tree.
            let error = TableError::WrongPageSize {
                geometry: geometry.page_size(),
                page: self.size(),
            };
            return Err((error, self));
        }
        // One of the pages that are held may be the last that there is for the root.
        self.release(0);
        match Self::allocate_root(&geometry, &mut self.environment) {
            Ok(root) => {
                let new = Self::of_new_root(root, geometry, self.environment);
                Ok((self.root, new))
            }
            Err(error) => Err((error, self)),
        }
    }

    /// The pages of a new root, which hold anything.
    fn allocate_root(
        geometry: &Geometry,
        environment: &mut E,
    ) -> Result<PhysicalAddress, TableError> {
        Self::check(geometry, environment)?;
        let count = Self::root_tables_of(geometry);
        let root = if count > 1 {
            environment.allocate_aligned(count)
        } else if environment.reserve(1) != Reservation::Refused {
            environment.allocate()
        } else {
            None
        };
        root.ok_or(TableError::OutOfTables { needed: count })
    }

    /// The empty tree with a root that [`allocate_root`](Self::allocate_root) made.
    fn of_new_root(root: PhysicalAddress, geometry: Geometry, environment: E) -> Self {
        // SAFETY: the pages are new, so nothing else uses them, and they are filled before they are
        // read.
        let mut tables = unsafe { Self::with_root(root, geometry, environment) };
        let size = tables.size();
        for table in 0..tables.root_tables() {
            let table = PhysicalAddress(root.0 + table as u64 * size.bytes());
            tables.fill(
                table,
                0,
                size.entries(),
                Descriptor::INVALID,
                0,
                Visibility::Private,
            );
        }
        tables
    }

    /// Checks that a geometry is one of these types, and that the environment has pages for it.
    fn check(geometry: &Geometry, environment: &E) -> Result<(), TableError> {
        let size = size_of::<P>(geometry);
        if geometry.page_size() != size {
            return Err(TableError::WrongPageSize {
                geometry: geometry.page_size(),
                page: size,
            });
        }
        if geometry.regime() == Regime::Stage2 && !S::CONCATENATED {
            return Err(TableError::WrongStage);
        }
        let Some(pages) = environment.pages() else {
            return Ok(());
        };
        if pages.page_size != size {
            return Err(TableError::WrongTablePages {
                given: pages.page_size,
                page: size,
            });
        }
        let pa_bits = geometry.pa_bits();
        if pages.end.0 > 1 << pa_bits {
            return Err(TableError::TablesTooHigh {
                end: pages.end,
                pa_bits,
            });
        }
        Ok(())
    }

    /// The number of root tables that follow each other in memory.
    pub(crate) fn root_tables(&self) -> usize {
        Self::root_tables_of(&self.geometry)
    }

    fn root_tables_of(geometry: &Geometry) -> usize {
        if S::CONCATENATED {
            geometry.root_tables()
        } else {
            1
        }
    }

    /// The address of the root table, for code that reads the tables, and for
    /// [`from_root`](Self::from_root). A CPU gets the root from [`Live::ttbr`].
    #[must_use]
    pub const fn root_table(&self) -> PhysicalAddress {
        self.root
    }

    /// The shape of the address space.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The environment of the tables, for example its counters.
    #[must_use]
    pub const fn environment(&self) -> &E {
        &self.environment
    }

    /// The environment of the tables, to change it.
    ///
    /// Safe code cannot put other memory below the tables, nor free their pages:
    ///
    /// ```compile_fail,E0133
    /// use granule::arch::Page4K;
    /// use granule::table::{PageTables, TableEnvironment};
    ///
    /// fn other_memory<E: TableEnvironment>(tables: &mut PageTables<Page4K, E>, other: E) {
    ///     *tables.environment_mut() = other;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0596
    /// use granule::arch::Page4K;
    /// use granule::table::{FreedTable, PageTables, TableEnvironment};
    ///
    /// fn free<E: TableEnvironment>(tables: &mut PageTables<Page4K, E>, root: FreedTable) {
    ///     tables.environment().free(root);
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// It must go on to reach the same tables, and issue instructions for the same CPUs.
    pub const unsafe fn environment_mut(&mut self) -> &mut E {
        &mut self.environment
    }

    /// The address of the root table, and the environment. The tables stay as they are;
    /// [`from_root`](Self::from_root) takes them over again.
    pub fn into_parts(mut self) -> (PhysicalAddress, E) {
        self.release(0);
        (self.root, self.environment)
    }

    /// The environment, for code of this crate that leaves it in place.
    pub(crate) const fn own_environment(&mut self) -> &mut E {
        &mut self.environment
    }

    /// The page size: a constant, unless the type is that of any.
    #[inline(always)]
    pub(crate) const fn size(&self) -> PageSize {
        size_of::<P>(&self.geometry)
    }

    /// Checks a range of addresses and returns its offsets in the half.
    pub(crate) fn offsets(&self, start: S::Input, bytes: u64) -> Result<(u64, u64), TableError> {
        visit::offsets(&self.geometry, self.size(), S::address(start), bytes)
    }

    /// The virtual address at an offset in the half.
    const fn address(&self, offset: u64) -> VirtualAddress {
        VirtualAddress(self.geometry.base().0.wrapping_add(offset))
    }

    /// The index, in its table of `level`, of the entry that translates `offset`.
    const fn index(&self, offset: u64, level: Level) -> usize {
        self.size().index(offset, level)
    }

    /// The visibility of stores into existing tables.
    const fn visibility(&self) -> Visibility {
        match self.liveness {
            Liveness::Private => Visibility::Private,
            Liveness::Live => Visibility::Live,
        }
    }

    /// The visibility of stores that link new tables.
    const fn linking(&self) -> Visibility {
        match self.liveness {
            Liveness::Private => Visibility::Private,
            Liveness::Live => Visibility::Publish,
        }
    }
}
