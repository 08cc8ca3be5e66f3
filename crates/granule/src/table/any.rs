//! A tree of tables whose page size is a value, not a type: for a static, when the size is chosen
//! at boot.
//!
//! [`AnyPageTables`] is a [`PageTables`] of stage 1 and one of the page sizes. It hands on the usual
//! methods, and any code by [`with`](AnyPageTables::with), so nothing about tables is decided here.

#![allow(
    unsafe_code,
    reason = "hands on what callers promise, for each page size"
)]

use super::live::{Live, Tree};
use super::piece::{Leaves, Piece};
use super::protect::{Holes, PermissionChange};
use super::visit::{Entry, Mapping, Visit};
use super::{Merged, PageTables, TableEnvironment, TableError};
#[cfg(feature = "page-4k")]
use crate::arch::Page4K;
#[cfg(feature = "page-16k")]
use crate::arch::Page16K;
#[cfg(feature = "page-64k")]
use crate::arch::Page64K;
use crate::arch::bbm::BbmLevel;
use crate::arch::{Attributes, Geometry, Page, PageSize, PhysicalAddress, VirtualAddress};
use core::ops::ControlFlow;

/// [`PageTables`] of stage 1 and any page size. The size is the geometry's.
///
/// It has code for the sizes whose features are on (`page-4k`, `page-16k` and `page-64k`, by default all), and
/// refuses a geometry of another. With one of them the size is not even tested.
///
/// It has the usual methods of [`PageTables`], and [`with`](Self::with) for all others. Each is compiled once
/// for a size, whatever closure it gets. A hypervisor takes [`PageTables`] for the tables of a guest, which
/// are `PageTables<P, E, Stage2>`.
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
pub struct AnyPageTables<E>(BySize<E>);

/// The tables of the size that was chosen.
#[derive(Debug)]
enum BySize<E> {
    #[cfg(feature = "page-4k")]
    K4(PageTables<Page4K, E>),
    #[cfg(feature = "page-16k")]
    K16(PageTables<Page16K, E>),
    #[cfg(feature = "page-64k")]
    K64(PageTables<Page64K, E>),
}

/// Runs `$code` with `$tables` as the tables of the size.
macro_rules! sized {
    ($self:expr, $tables:ident => $code:expr) => {
        match $self {
            #[cfg(feature = "page-4k")]
            BySize::K4($tables) => $code,
            #[cfg(feature = "page-16k")]
            BySize::K16($tables) => $code,
            #[cfg(feature = "page-64k")]
            BySize::K64($tables) => $code,
        }
    };
}

/// The tables of a size that `$code` makes.
macro_rules! of_size {
    ($size:expr, $Page:ident => $code:expr) => {
        match $size {
            #[cfg(feature = "page-4k")]
            PageSize::K4 => {
                type $Page = Page4K;
                Ok(Self(BySize::K4($code)))
            }
            #[cfg(feature = "page-16k")]
            PageSize::K16 => {
                type $Page = Page16K;
                Ok(Self(BySize::K16($code)))
            }
            #[cfg(feature = "page-64k")]
            PageSize::K64 => {
                type $Page = Page64K;
                Ok(Self(BySize::K64($code)))
            }
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            geometry => Err(TableError::WrongPageSize {
                geometry,
                page: LARGEST,
            }),
        }
    };
}

/// The largest page size that there is code for.
const LARGEST: PageSize = if cfg!(feature = "page-64k") {
    PageSize::K64
} else if cfg!(feature = "page-16k") {
    PageSize::K16
} else {
    PageSize::K4
};

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
    /// [`TableError::OutOfTables`] when there is no page for the root,
    /// [`WrongPageSize`](TableError::WrongPageSize) when the feature of the page size is off.
    pub fn new(geometry: Geometry, environment: E) -> Result<Self, TableError> {
        of_size!(geometry.page_size(), P => PageTables::<P, E>::new(geometry, environment)?)
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

    /// [`PageTables::environment_mut`].
    ///
    /// # Safety
    ///
    /// As for that method.
    pub unsafe fn environment_mut(&mut self) -> &mut E {
        // SAFETY: the caller keeps the conditions.
        sized!(&mut self.0, tables => unsafe { tables.environment_mut() })
    }

    /// [`PageTables::query`].
    #[must_use]
    #[inline(never)]
    pub fn query(&self, address: VirtualAddress) -> Option<Mapping> {
        sized!(&self.0, tables => tables.query(address))
    }

    /// [`PageTables::visit`], with one indirect call for each entry.
    ///
    /// # Errors
    ///
    /// As for that method.
    pub fn visit<B>(
        &self,
        start: VirtualAddress,
        bytes: u64,
        mut visit: impl FnMut(&Entry) -> ControlFlow<B, Visit>,
    ) -> Result<ControlFlow<B>, TableError> {
        let mut end = None;
        self.visit_each(start, bytes, &mut |entry| match visit(entry) {
            ControlFlow::Continue(next) => ControlFlow::Continue(next),
            ControlFlow::Break(value) => {
                end = Some(value);
                ControlFlow::Break(())
            }
        })?;
        Ok(end.map_or(ControlFlow::Continue(()), ControlFlow::Break))
    }

    /// As [`visit`](Self::visit), with a visitor that keeps its own result.
    #[inline(never)]
    fn visit_each(
        &self,
        start: VirtualAddress,
        bytes: u64,
        visit: &mut dyn FnMut(&Entry) -> ControlFlow<(), Visit>,
    ) -> Result<(), TableError> {
        sized!(&self.0, tables => tables.visit(start, bytes, visit)).map(|_| ())
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
        self.map_pieces(&[Piece {
            start,
            output,
            bytes,
            attributes,
            leaves,
        }])
    }

    /// [`PageTables::map_pieces`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
    pub fn map_pieces(&mut self, pieces: &[Piece]) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.map_pieces(pieces))
    }

    /// [`PageTables::protect`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
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
        self.modify_by(start, bytes, holes, &modify)
    }

    /// As [`modify`](Self::modify), for any closure.
    #[inline(never)]
    fn modify_by(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        holes: Holes,
        modify: &dyn Fn(&mut Attributes),
    ) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.modify(start, bytes, holes, modify))
    }

    /// [`PageTables::set_invalid`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
    pub fn set_invalid(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.set_invalid(start, bytes))
    }

    /// [`PageTables::set_valid`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
    pub fn set_valid(&mut self, start: VirtualAddress, bytes: u64) -> Result<(), TableError> {
        sized!(&mut self.0, tables => tables.set_valid(start, bytes))
    }

    /// [`PageTables::merge`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
    pub fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError> {
        sized!(&mut self.0, tables => tables.merge(start, bytes, leaves))
    }

    /// [`PageTables::unmap`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[inline(never)]
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

    /// [`PageTables::set_deferred_tlbi`].
    ///
    /// # Safety
    ///
    /// As for that method.
    pub unsafe fn set_deferred_tlbi(&mut self, deferred: bool) {
        // SAFETY: the caller keeps the conditions.
        sized!(&mut self.0, tables => unsafe { tables.set_deferred_tlbi(deferred) });
    }

    /// [`PageTables::destroy`].
    pub fn destroy(self) -> E {
        sized!(self.0, tables => tables.destroy())
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

impl<E: TableEnvironment> Tree for AnyPageTables<E> {
    type Geometry = Geometry;
    type Environment = E;

    unsafe fn take_over(
        root: PhysicalAddress,
        geometry: Geometry,
        environment: E,
    ) -> Result<Self, TableError> {
        // SAFETY: the caller keeps the conditions.
        of_size!(geometry.page_size(), P => unsafe {
            PageTables::<P, E>::take_over(root, geometry, environment)?
        })
    }

    fn set_live(&mut self, live: bool) {
        sized!(&mut self.0, tables => tables.set_live(live));
    }

    fn shape(&self) -> (PhysicalAddress, &Geometry) {
        sized!(&self.0, tables => tables.shape())
    }

    fn invalidate_all(&mut self) {
        sized!(&mut self.0, tables => tables.issue_all());
    }

    fn split_up(self) -> (PhysicalAddress, E) {
        sized!(self.0, tables => tables.into_parts())
    }
}
