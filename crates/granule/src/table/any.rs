//! A tree of tables whose page size is a value, not a type: for a static, when the size is chosen
//! at boot.
//!
//! [`AnyPageTables`] is a [`PageTables`] of stage 1 and one of the page sizes. It hands on the usual
//! methods, and any code by [`with`](AnyPageTables::with), so nothing about tables is decided here.

#![allow(
    unsafe_code,
    reason = "hands on what callers promise, for each page size"
)]

use super::live::Live;
use super::piece::{Leaves, Piece};
use super::protect::{Holes, PermissionChange};
use super::visit::Mapping;
use super::{Liveness, PageTables, TableEnvironment, TableError};
use crate::arch::bbm::BbmLevel;
use crate::arch::registers::Ttbr;
use crate::arch::{
    Attributes, Geometry, Page, Page4K, Page16K, Page64K, PageSize, PhysicalAddress, VirtualAddress,
};

/// [`PageTables`] of stage 1 and any page size. The size is the geometry's.
///
/// It has the usual methods of [`PageTables`], and [`with`](Self::with) for all others. A hypervisor takes
/// [`PageTables`] for the tables of a guest, which are `PageTables<P, E, Stage2>`.
///
/// Code that is generic over the page size has no such test in each call, so a kernel takes
/// [`PageTables`] where calls are many. A static needs one type for all sizes:
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
///     granule::forward!(self.0: reach allocate free);
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
#[derive(Debug)]
pub struct AnyPageTables<E>(
    BySize<PageTables<Page4K, E>, PageTables<Page16K, E>, PageTables<Page64K, E>>,
);

/// A value for each page size, of which there is one.
#[derive(Debug)]
enum BySize<A, B, C> {
    K4(A),
    K16(B),
    K64(C),
}

/// Runs `$code` with `$tables` as the tables of the size.
macro_rules! sized {
    ($self:expr, $tables:ident => $code:expr) => {
        match $self {
            BySize::K4($tables) => $code,
            BySize::K16($tables) => $code,
            BySize::K64($tables) => $code,
        }
    };
}

/// As `sized`, for code that makes the tables of the size.
macro_rules! of_size {
    ($size:expr, $Page:ident => $code:expr) => {
        match $size {
            PageSize::K4 => {
                type $Page = Page4K;
                BySize::K4($code)
            }
            PageSize::K16 => {
                type $Page = Page16K;
                BySize::K16($code)
            }
            PageSize::K64 => {
                type $Page = Page64K;
                BySize::K64($code)
            }
        }
    };
}

/// As `sized`, for code that gives tables of the same size back.
macro_rules! same_size {
    ($self:expr, $tables:ident => $code:expr) => {
        match $self {
            BySize::K4($tables) => BySize::K4($code),
            BySize::K16($tables) => BySize::K16($code),
            BySize::K64($tables) => BySize::K64($code),
        }
    };
}

/// Code for tables of any page size, for [`AnyPageTables::with`].
pub trait ForTables<E> {
    /// The result.
    type Output;

    /// Runs it with the tables.
    fn run<P: Page>(self, tables: &mut PageTables<P, E>) -> Self::Output;
}

impl<E: TableEnvironment> AnyPageTables<E> {
    /// A new, empty tree with the page size of `geometry`.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`] when there is no page for the root.
    pub fn new(geometry: Geometry, environment: E) -> Result<Self, TableError> {
        let size = geometry.page_size();
        Ok(Self(
            of_size!(size, P => PageTables::<P, E>::new(geometry, environment)?),
        ))
    }

    /// Takes over the tree below `root`, which no CPU walks.
    /// [`from_live_root`](Self::from_live_root) takes over a live one.
    ///
    /// # Errors
    ///
    /// As for [`PageTables::from_root`]: for example [`TableError::WrongStage`] for the shape of stage 2.
    ///
    /// # Safety
    ///
    /// As for [`PageTables::from_root`].
    pub unsafe fn from_root(
        root: PhysicalAddress,
        geometry: Geometry,
        environment: E,
    ) -> Result<Self, TableError> {
        let size = geometry.page_size();
        // SAFETY: the caller keeps the conditions.
        Ok(Self(of_size!(size, P => unsafe {
            PageTables::<P, E>::from_root(root, geometry, environment)?
        })))
    }

    /// Runs code with the tables of their own type: an operation that has no method here, or many of them
    /// with one test of the page size.
    pub fn with<C: ForTables<E>>(&mut self, code: C) -> C::Output {
        sized!(&mut self.0, tables => code.run(tables))
    }

    /// [`PageTables::geometry`].
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        sized!(&self.0, tables => tables.geometry())
    }

    /// [`PageTables::query`].
    #[must_use]
    pub fn query(&self, address: VirtualAddress) -> Option<Mapping> {
        sized!(&self.0, tables => tables.query(address))
    }

    /// [`PageTables::for_each`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn for_each(
        &self,
        start: VirtualAddress,
        bytes: u64,
        found: impl FnMut(Mapping),
    ) -> Result<(), TableError> {
        sized!(&self.0, tables => tables.for_each(start, bytes, found))
    }

    /// [`PageTables::map`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.map(start, output, bytes, attributes, leaves))
    }

    /// [`PageTables::map_pieces`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn map_pieces(&mut self, pieces: &[Piece]) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.map_pieces(pieces))
    }

    /// [`PageTables::protect`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn protect(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        change: PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.protect(start, bytes, change, holes))
    }

    /// [`PageTables::modify`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn modify(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        holes: Holes,
        modify: impl Fn(&mut Attributes),
    ) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.modify(start, bytes, holes, modify))
    }

    /// [`PageTables::unmap`].
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn unmap(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.unmap(start, bytes))
    }

    /// [`PageTables::set_bbm`].
    ///
    /// # Safety
    ///
    /// As for that method.
    pub unsafe fn set_bbm(&mut self, level: BbmLevel) {
        // SAFETY: the caller keeps the conditions.
        sized!(&mut self.0, tables => unsafe { tables.set_bbm(level) });
    }

    /// [`PageTables::destroy`].
    pub fn destroy(self) -> E {
        sized!(self.0, tables => tables.destroy())
    }

    /// Takes over the live tree below `root`.
    ///
    /// # Errors
    ///
    /// As for [`from_root`](Self::from_root).
    ///
    /// # Safety
    ///
    /// As for [`PageTables::from_root`] and [`PageTables::make_live`].
    pub unsafe fn from_live_root(
        root: PhysicalAddress,
        geometry: Geometry,
        environment: E,
    ) -> Result<Live<Self>, TableError> {
        // SAFETY: the caller keeps the conditions, but for CPUs that walk the tree. For those the
        // tree is made live before anything changes it.
        let mut tables = unsafe { Self::from_root(root, geometry, environment)? };
        sized!(&mut tables.0, tables => tables.liveness = Liveness::Live);
        Ok(Live(tables))
    }

    /// [`PageTables::make_live`].
    ///
    /// # Safety
    ///
    /// As for that method.
    #[must_use = "only the live tree gives the value for TTBR"]
    pub unsafe fn make_live(mut self) -> Live<Self> {
        sized!(&mut self.0, tables => tables.go_live());
        Live(self)
    }
}

impl<E: TableEnvironment> Live<AnyPageTables<E>> {
    /// The value for TTBR0 or TTBR1 that makes CPUs walk this tree, with `asid`, which a regime
    /// without ASIDs ignores.
    #[must_use]
    pub fn ttbr(&self, asid: u16) -> Ttbr {
        // SAFETY: the tree is live, so its changes issue barriers and TLBIs.
        sized!(&self.0.0, tables => unsafe {
            Ttbr::from_root(tables.geometry(), tables.root_table(), asid)
        })
    }

    /// As [`invalidate_all`](Live::invalidate_all) of [`PageTables`].
    pub fn invalidate_all(&mut self) {
        sized!(&mut self.0.0, tables => tables.issue_all());
    }

    /// Takes the tree back from the CPUs.
    ///
    /// # Safety
    ///
    /// No TTBR holds the root any more, and no TLB holds an entry of the tree.
    #[must_use = "a tree that is not kept or destroyed is lost"]
    pub unsafe fn retire(self) -> AnyPageTables<E> {
        // SAFETY: the caller keeps the conditions.
        AnyPageTables(same_size!(self.0.0, tables => unsafe { Live(tables).retire() }))
    }
}
