//! A read-only view of tables that somebody else owns: another kernel's, a guest's, those in a dump.
//!
//! The tables are not trusted. The view reads them through a function of the caller that may refuse
//! an address, never follows a table into itself, and reads a limited number of tables. It cannot
//! change anything.

use super::TableError;
use super::stage::{Stage, Stage1, Stage2};
use super::visit::{self, Entry, LeftOut, Mapping, Source, Visit, visit_tree};
use crate::arch::page_size::{Level, PageSize};
use crate::arch::{Descriptor, Geometry, PhysicalAddress, Stage2Geometry, VirtualAddress};
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::ControlFlow;

/// A mapping of one stage.
type MappingOf<S> = Mapping<<S as Stage>::Input, <S as Stage>::Attributes>;

/// Tables that somebody else owns, of any page size, behind a function that reads their entries.
///
/// The function gets the address of a table and an index. It returns `None` if it has no such
/// table. Whatever the tables hold, no call here panics, and each of them ends.
///
/// ```
/// use granule::arch::{
///     CpuFeatures, Descriptor, Geometry, PageSize, PhysicalAddress, Regime, VaRange,
///     VirtualAddress,
/// };
/// use granule::table::TableView;
///
/// // A dump of one page: a root table of level 1, whose first entry is a block of 1 GiB.
/// let mut dump = [0u64; 512];
/// dump[0] = 0x4000_0701;
/// let read = |table: PhysicalAddress, index: usize| {
///     let there = table == PhysicalAddress(0x8000_0000);
///     there.then(|| Descriptor(dump[index]))
/// };
///
/// let cpu = CpuFeatures { mmfr0: 5, ..CpuFeatures::NONE };
/// let geometry = Geometry::new(&cpu, PageSize::K4, 39, VaRange::Lower, Regime::El1And0)?;
/// let view = TableView::new(geometry, PhysicalAddress(0x8000_0000), read);
/// let mapping = view.query(VirtualAddress(0x1234))?.ok_or("not mapped")?;
/// assert_eq!(mapping.output, PhysicalAddress(0x4000_1234));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct TableView<R, S: Stage = Stage1> {
    geometry: Geometry,
    root: PhysicalAddress,
    read: R,
    most_tables: u64,
    stage: PhantomData<S>,
}

/// A table that a view could not or would not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadTable<I = VirtualAddress> {
    /// The table.
    pub table: PhysicalAddress,
    /// Its level.
    pub level: Level,
    /// The first address whose translation is unknown because of it.
    pub start: I,
    /// The reason.
    pub why: Unread,
}

/// Why a view did not read a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unread {
    /// The reader returned nothing for one of its entries.
    Unreadable,
    /// It is one of the tables that lead to it. A visit of it would show the same entries again, for
    /// each level that is left; a query reads it.
    Loop,
    /// The visit has read as many tables as [`TableView::limit`] allows.
    Limit,
}

impl<I: fmt::Display> fmt::Display for UnreadTable<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            table,
            level,
            start,
            why,
        } = self;
        write!(f, "the table of level {level} at {table}, for {start}, ")?;
        f.write_str(match why {
            Unread::Unreadable => "cannot be read",
            Unread::Loop => "is one of those that lead to it",
            Unread::Limit => "is one too many: raise the limit to visit it",
        })
    }
}

impl<I: fmt::Debug + fmt::Display> core::error::Error for UnreadTable<I> {}

impl<R, S: Stage> fmt::Debug for TableView<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableView")
            .field("geometry", &self.geometry)
            .field("root", &self.root)
            .field("most_tables", &self.most_tables)
            .finish_non_exhaustive()
    }
}

/// The most tables that a visit reads if nothing else is said.
const MOST_TABLES: u64 = 1 << 20;

impl<R: Fn(PhysicalAddress, usize) -> Option<Descriptor>> TableView<R> {
    /// The tables of `geometry` below `root`, whose entries `read` reads.
    pub const fn new(geometry: Geometry, root: PhysicalAddress, read: R) -> Self {
        Self {
            geometry,
            root,
            read,
            most_tables: MOST_TABLES,
            stage: PhantomData,
        }
    }
}

impl<R: Fn(PhysicalAddress, usize) -> Option<Descriptor>> TableView<R, Stage2> {
    /// The tables of a guest: `root` is the first of its root tables.
    pub const fn of_guest(geometry: Stage2Geometry, root: PhysicalAddress, read: R) -> Self {
        Self {
            geometry: *geometry.shape(),
            root,
            read,
            most_tables: MOST_TABLES,
            stage: PhantomData,
        }
    }
}

impl<R: Fn(PhysicalAddress, usize) -> Option<Descriptor>, S: Stage> TableView<R, S> {
    /// The most tables that a visit reads if [`limit`](Self::limit) says nothing else. With 4K pages
    /// they map 2 TiB in pages.
    pub const MOST_TABLES: u64 = MOST_TABLES;

    /// The same view with another limit on the tables that one visit reads. A table counts as often
    /// as it is met: hostile tables can refer to a few tables very often.
    #[must_use]
    pub fn limit(self, most_tables: u64) -> Self {
        Self {
            most_tables,
            ..self
        }
    }

    /// The address of the root table.
    #[must_use]
    pub const fn root(&self) -> PhysicalAddress {
        self.root
    }

    /// The shape of the address space.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The mapping of `address`, if it is mapped.
    ///
    /// # Errors
    ///
    /// When a table on the way cannot be read.
    pub fn query(&self, address: S::Input) -> Result<Option<MappingOf<S>>, UnreadTable<S::Input>> {
        let Some(offset) = self.geometry.offset(S::address(address)) else {
            return Ok(None);
        };
        let source = Untrusted::new(self);
        let found = visit::walk(&source, self.root, offset);
        let (level, entry) = found.map_err(|left_out| self.unread(&left_out))?;
        Ok(visit::mapping(&source, level, entry, offset))
    }

    /// Calls `visit` for each entry that translates a part of the range, and for each table that is
    /// left out, as [`PageTables::visit`](super::PageTables::visit) does.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn visit<B>(
        &self,
        start: S::Input,
        bytes: u64,
        visit: impl FnMut(Result<&Entry<S::Input>, UnreadTable<S::Input>>) -> ControlFlow<B, Visit>,
    ) -> Result<ControlFlow<B>, TableError> {
        let page_size = self.geometry.page_size();
        let offsets = visit::offsets(&self.geometry, page_size, S::address(start), bytes)?;
        Ok(self.visit_in::<B, false>(offsets, visit))
    }

    /// As [`visit`](Self::visit), for the whole address space.
    pub fn visit_all<B>(
        &self,
        visit: impl FnMut(Result<&Entry<S::Input>, UnreadTable<S::Input>>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        self.visit_in::<B, false>((0, self.geometry.span()), visit)
    }

    /// As [`visit_all`](Self::visit_all), in runs of leaves, as
    /// [`PageTables::visit_runs`](super::PageTables::visit_runs) does.
    pub fn visit_runs<B>(
        &self,
        visit: impl FnMut(Result<&Entry<S::Input>, UnreadTable<S::Input>>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        self.visit_in::<B, true>((0, self.geometry.span()), visit)
    }

    fn visit_in<B, const RUNS: bool>(
        &self,
        offsets: (u64, u64),
        mut visit: impl FnMut(Result<&Entry<S::Input>, UnreadTable<S::Input>>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        let mut each = |found: Result<&Entry<S::Input>, LeftOut<Unread>>| {
            visit(found.map_err(|left_out| self.unread(&left_out)))
        };
        let source = Untrusted::new(self);
        visit_tree::<_, B, RUNS>(&source, self.root, offsets, &mut each)
    }

    fn unread(&self, left_out: &LeftOut<Unread>) -> UnreadTable<S::Input> {
        UnreadTable {
            table: left_out.table,
            level: left_out.level,
            start: S::input(self.geometry.base().wrapping_add(left_out.offset)),
            why: left_out.why,
        }
    }
}

/// One walk through the tables of a view.
struct Untrusted<'v, R, S: Stage> {
    view: &'v TableView<R, S>,
    /// The table of each level that was entered last.
    way: [Cell<PhysicalAddress>; Level::ALL.len()],
    /// How many more tables it may enter.
    left: Cell<u64>,
}

impl<'v, R, S: Stage> Untrusted<'v, R, S> {
    const fn new(view: &'v TableView<R, S>) -> Self {
        Self {
            view,
            way: [const { Cell::new(PhysicalAddress(0)) }; Level::ALL.len()],
            left: Cell::new(view.most_tables),
        }
    }
}

impl<R: Fn(PhysicalAddress, usize) -> Option<Descriptor>, S: Stage> Source for Untrusted<'_, R, S> {
    type Stage = S;
    type Why = Unread;

    fn page_size(&self) -> PageSize {
        self.view.geometry.page_size()
    }

    fn geometry(&self) -> &Geometry {
        &self.view.geometry
    }

    fn enter(&self, table: PhysicalAddress, level: Level) -> Result<(), Unread> {
        let above = |other: Level| other >= self.view.geometry.start_level() && other < level;
        for (other, place) in Level::ALL.into_iter().zip(&self.way) {
            if above(other) && place.get() == table {
                return Err(Unread::Loop);
            }
            if other == level {
                place.set(table);
            }
        }
        let left = self.left.get().checked_sub(1).ok_or(Unread::Limit)?;
        self.left.set(left);
        Ok(())
    }

    fn load(&self, table: PhysicalAddress, index: usize) -> Result<Descriptor, Unread> {
        (self.view.read)(table, index).ok_or(Unread::Unreadable)
    }
}
