//! The transitional tables: the relocation code runs on them, and they share nothing with the
//! tables that are overwritten.
//!
//! The library's walker builds two trees, from pages outside every segment's destination. TTBR1
//! gets a linear map of the given memory only, at the same distance as the kernel's linear map and
//! with the largest leaves that fit. TTBR0 gets an executable, read-only identity map of the
//! relocation code's page. Page size and descriptor format are the kernel's, because TG and DS may
//! change only while nothing is translated. TTBR0's address size is the smallest that reaches the
//! page.

#![allow(
    unsafe_code,
    reason = "an environment for two trees in turn, and a tree by its root"
)]

use super::segment::{PhysRange, Refusal, Segment, in_the_way};
use core::fmt;
use core::ops::ControlFlow;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    Attributes, CpuFeatures, Geometry, GeometryError, Kind, Page, Permissions, PhysicalAddress,
    VaRange, VirtualAddress,
};
use granule::table::{Entry, Leaves, PageTables, Piece, TableEnvironment, TableError, Visit};

/// The inputs of [`build`].
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// The CPU's features, which decide the fields of TCR.
    pub cpu: CpuFeatures,
    /// Geometry of the kernel's upper half.
    pub upper: Geometry,
    /// Added, wrapping, to a physical address for its address in the kernel's linear map.
    pub distance: u64,
    /// The page that the relocation code is copied to.
    pub code: PhysicalAddress,
    /// Memory that is written, in whole pages: ascending extents that overlap no other extent.
    pub written: &'a [PhysRange],
    /// Memory that is only read: source pages and the pages of the list.
    pub read: &'a [PhysRange],
    /// The segments. The relocation code and the tables must lie outside their destinations.
    pub segments: &'a [Segment<'a>],
}

/// Finished tables. No CPU walks them yet, and all stores to them are ordered before any later
/// walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// TTBR0.
    pub ttbr0: Ttbr,
    /// TTBR1.
    pub ttbr1: Ttbr,
    /// Number of address bits of the identity map.
    pub identity_bits: u32,
    /// Added, wrapping, to a physical address for its address in the linear map.
    pub distance: u64,
    /// The root tables of the lower and the upper half.
    pub roots: [PhysicalAddress; 2],
    /// The geometries of the lower and the upper half.
    pub geometries: [Geometry; 2],
    tcr: u64,
}

/// The TTBR0 fields of TCR: T0SZ, EPD0, IRGN0, ORGN0, SH0 and TG0.
const LOWER_FIELDS: u64 = 0xffbf;

impl Transition {
    /// TCR for these tables, given the kernel's TCR `now`: the TTBR0 fields are the identity map's,
    /// and walks of both halves are enabled.
    #[must_use]
    pub const fn tcr(&self, now: u64) -> u64 {
        (now & !(LOWER_FIELDS | Tcr::EPD1)) | (self.tcr & LOWER_FIELDS)
    }
}

/// Why the transitional tables cannot be built. All pages taken for them were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransitionError {
    /// Pages are missing, or a page lies in a segment's destination.
    Refused(Refusal),
    /// No identity map reaches the relocation code's page.
    Code {
        /// Address of the page.
        page: PhysicalAddress,
        /// The reason.
        why: GeometryError,
    },
    /// A range cannot be mapped.
    Table(TableError),
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => why.fmt(f),
            Self::Code { page, why } => write!(
                f,
                "the relocation code at {page} cannot be mapped where it is: {why}"
            ),
            Self::Table(why) => write!(f, "the tables for the relocation: {why}"),
        }
    }
}

impl core::error::Error for TransitionError {}

impl From<TableError> for TransitionError {
    fn from(why: TableError) -> Self {
        match why {
            TableError::OutOfTables { needed } => Self::Refused(Refusal::OutOfPages {
                what: "transitional tables",
                needed,
            }),
            other => Self::Table(other),
        }
    }
}

/// The geometry of the lower half with the fewest address bits that reach the page of the
/// relocation code.
///
/// # Errors
///
/// The CPU lacks that address size in the descriptor format of the upper half: another page is
/// needed.
pub fn identity_geometry(
    cpu: &CpuFeatures,
    upper: &Geometry,
    code: PhysicalAddress,
) -> Result<Geometry, GeometryError> {
    let last = code.0.saturating_add(upper.page_size().bytes() - 1);
    let bits = u64::BITS - last.leading_zeros();
    let least = cpu.least_va_bits(upper.page_size());
    upper.with_va_range(cpu, VaRange::Lower, bits.max(least))
}

/// Builds the tables. The environment has the same type as for the caller's other tables, so the
/// code for a page size exists only once.
///
/// # Errors
///
/// [`TransitionError`], after all pages were given back.
pub fn build<P: Page, E: TableEnvironment>(
    environment: E,
    needs: &Needs<'_>,
) -> Result<Transition, TransitionError> {
    let code = PhysRange::new(needs.code.0, P::SIZE.bytes());
    if in_the_way(needs.segments, &code).is_some() {
        return Err(TransitionError::Refused(Refusal::PageInTheWay {
            what: "relocation code",
            page: needs.code.0,
        }));
    }
    let lower = identity_geometry(&needs.cpu, &needs.upper, needs.code).map_err(|why| {
        TransitionError::Code {
            page: needs.code,
            why,
        }
    })?;
    let mut tables = PageTables::<P, E>::new(lower, environment)?;
    if let Err(why) = identity_map(&mut tables, needs) {
        tables.destroy();
        return Err(why);
    }
    let (low, mut tables) = match tables.begin_another(needs.upper) {
        Ok(both) => both,
        Err((why, tables)) => {
            tables.destroy();
            return Err(why.into());
        }
    };
    if let Err(why) = linear_map(&mut tables, needs) {
        // SAFETY: the tree was made above, and no CPU walks it.
        unsafe { destroy::<P, E>(low, lower, tables.destroy()) };
        return Err(why);
    }
    // SAFETY: the barriers of this call order the stores to both trees before their first walk, by
    // this CPU. Nothing changes the trees after that, so no TLBI is ever needed.
    let high = unsafe { tables.make_live() };
    // SAFETY: as above.
    let ttbr0 = unsafe { Ttbr::from_root(&lower, low, 0) };
    Ok(Transition {
        ttbr0,
        ttbr1: high.ttbr(0),
        identity_bits: lower.va_bits(),
        distance: needs.distance,
        roots: [low, high.root_table()],
        geometries: [lower, needs.upper],
        tcr: Tcr::new(&needs.cpu, Some(&lower), Some(&needs.upper)).0,
    })
}

/// Frees the pages of tables that no CPU walks, when the next kernel is unloaded. The environment
/// has the type that [`build`] used.
pub fn free<P: Page, E: TableEnvironment>(environment: E, transition: &Transition) {
    let ([low, high], [lower, upper]) = (transition.roots, transition.geometries);
    // SAFETY: `build` made both trees in such an environment. No CPU walks them: only `leave` loads
    // their roots into TTBRs, and `leave` does not return.
    unsafe {
        if let Some(environment) = destroy::<P, E>(low, lower, environment) {
            destroy::<P, E>(high, upper, environment);
        }
    }
}

/// Frees a tree, and returns the environment.
///
/// # Safety
///
/// [`build`] made the tree in such an environment, with this page size, and no CPU walks it.
unsafe fn destroy<P: Page, E: TableEnvironment>(
    root: PhysicalAddress,
    geometry: Geometry,
    environment: E,
) -> Option<E> {
    // SAFETY: the caller keeps the conditions.
    let tables = unsafe { PageTables::<P, E>::from_root(root, geometry, environment) };
    Some(tables.ok()?.destroy())
}

/// The operations on a tree of one page size, behind dynamic calls. The rest of this file therefore
/// exists once for all page sizes.
trait Tree {
    fn page(&self) -> u64;
    fn map(&mut self, piece: Piece) -> Result<(), TableError>;
    fn each_table(&self, each: &mut dyn FnMut(PhysicalAddress));
}

impl<P: Page, E: TableEnvironment> Tree for PageTables<P, E> {
    fn page(&self) -> u64 {
        P::SIZE.bytes()
    }

    fn map(&mut self, piece: Piece) -> Result<(), TableError> {
        self.map_pieces(&[piece])
    }

    fn each_table(&self, each: &mut dyn FnMut(PhysicalAddress)) {
        each(self.root_table());
        // A trait object, so that all visitors share one instance of the walk.
        let visit: &mut dyn FnMut(&Entry) -> ControlFlow<(), Visit> = &mut |entry| {
            if entry.kind == Kind::Table {
                each(entry.output);
            }
            ControlFlow::Continue(Visit::Descend)
        };
        let _ = self.visit_all(visit);
    }
}

fn identity_map(tree: &mut dyn Tree, needs: &Needs<'_>) -> Result<(), TransitionError> {
    tree.map(Piece {
        start: VirtualAddress(needs.code.0),
        output: needs.code,
        bytes: tree.page(),
        attributes: Attributes::normal(Permissions::READ_EXECUTE),
        leaves: Leaves::PAGES,
    })?;
    out_of_the_way(tree, needs.segments)
}

fn linear_map(tree: &mut dyn Tree, needs: &Needs<'_>) -> Result<(), TransitionError> {
    let written = needs.written.iter().map(|it| (it, Permissions::READ_WRITE));
    let read = needs.read.iter().map(|it| (it, Permissions::READ));
    for (extent, permissions) in written.chain(read) {
        tree.map(Piece {
            start: VirtualAddress(extent.start.wrapping_add(needs.distance)),
            output: PhysicalAddress(extent.start),
            bytes: extent.bytes,
            attributes: Attributes::normal(permissions),
            leaves: Leaves::LARGEST,
        })?;
    }
    out_of_the_way(tree, needs.segments)
}

/// Checks that no table lies in a segment's destination.
fn out_of_the_way(tree: &dyn Tree, segments: &[Segment<'_>]) -> Result<(), TransitionError> {
    let mut first = None;
    tree.each_table(&mut |at| {
        let page = PhysRange::new(at.0, tree.page());
        if first.is_none() && in_the_way(segments, &page).is_some() {
            first = Some(at.0);
        }
    });
    match first {
        None => Ok(()),
        Some(page) => Err(TransitionError::Refused(Refusal::PageInTheWay {
            what: "transitional tables",
            page,
        })),
    }
}
