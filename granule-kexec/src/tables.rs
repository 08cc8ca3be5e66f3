//! Transitional tables: what the relocation code runs on, sharing nothing with what is replaced.
//!
//! Two trees, made by the library's own walker from pages that no segment is to be in: in TTBR1 a
//! linear map, at the distance of the kernel's own, of what is told and nothing else, with the
//! largest leaves there are; in TTBR0 the one page of the relocation code where it is, executable
//! and read-only. Page size and format are the kernel's, since TG and DS change only while nothing
//! is translated; the number of address bits of TTBR0 is as small as the page's address allows.

use super::segment::{Extent, Refusal, Segment, in_the_way};
use core::fmt;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    Attributes, CpuFeatures, Geometry, GeometryError, Half, Kind, Page, Permissions,
    PhysicalAddress, VirtualAddress,
};
use granule::table::{Entry, Environment, Leaves, Liveness, PageTables, Piece, TableError};

/// What the tables are made for.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// What the CPU can do: for TCR.
    pub cpu: CpuFeatures,
    /// The upper half, as the kernel has it.
    pub upper: Geometry,
    /// What is added, wrapping, to a physical address for that in the kernel's linear map.
    pub distance: u64,
    /// The page that the relocation code is copied to.
    pub code: PhysicalAddress,
    /// Memory that is written, in whole pages; ascending, and not overlapping anything else.
    pub written: &'a [Extent],
    /// Memory that is only read: sources, and the pages of the list.
    pub read: &'a [Extent],
    /// The segments: neither the relocation code nor a table may be where one is to be.
    pub segments: &'a [Segment<'a>],
}

/// Tables that are ready: no CPU walks them yet, every store to them will be seen by one that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// TTBR0.
    pub ttbr0: Ttbr,
    /// TTBR1.
    pub ttbr1: Ttbr,
    /// The identity map's bits of address.
    pub identity_bits: u32,
    /// What is added, wrapping, to a physical address for that in the linear map.
    pub distance: u64,
    /// The roots, lower half and upper half.
    pub roots: [PhysicalAddress; 2],
    /// The geometries, lower half and upper half.
    pub geometries: [Geometry; 2],
    tcr: u64,
}

/// The fields of TCR that are TTBR0's: T0SZ, EPD0, IRGN0, ORGN0, SH0 and TG0.
const LOWER_FIELDS: u64 = 0xffbf;

impl Transition {
    /// TCR with these tables, where it is `now` with the kernel's: TTBR0's fields are the identity
    /// map's, and both halves are walked.
    #[must_use]
    pub const fn tcr(&self, now: u64) -> u64 {
        (now & !(LOWER_FIELDS | Tcr::EPD1)) | (self.tcr & LOWER_FIELDS)
    }
}

/// Why there are no transitional tables. All pages that were taken for them were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransitionError {
    /// There are not enough pages for them.
    Refused(Refusal),
    /// The relocation code's page has an address that no identity map reaches.
    Code {
        /// Its address.
        page: PhysicalAddress,
        /// Why.
        why: GeometryError,
    },
    /// What was asked for cannot be mapped.
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

/// The lower half with as few bits of address as reach the page of the relocation code.
///
/// # Errors
///
/// When the CPU has not so many in the format of the upper half: the page must be another one.
pub fn identity_geometry(
    cpu: &CpuFeatures,
    upper: &Geometry,
    code: PhysicalAddress,
) -> Result<Geometry, GeometryError> {
    let last = code.0.saturating_add(upper.page_size().bytes() - 1);
    let bits = u64::BITS - last.leading_zeros();
    let least = cpu.least_va_bits(upper.page_size());
    upper.with_half(cpu, Half::Lower, bits.max(least))
}

/// Makes the tables, in an environment of the kind that the caller's other tables have: what a page
/// size takes of code is there already then.
///
/// # Errors
///
/// [`TransitionError`], with all pages given back.
pub fn build<P: Page, E: Environment>(
    environment: E,
    needs: &Needs<'_>,
) -> Result<Transition, TransitionError> {
    let code = Extent::new(needs.code.0, P::SIZE.bytes());
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
    let [low, high] = make(&mut tables, lower, needs)?;
    // Stores to tables that nobody walks are not ordered by anything: who walks them first must
    // see them all (arm-rules: filled, then used).
    tables.environment().dsb_ishst();
    Ok(Transition {
        ttbr0: Ttbr::new(&lower, low, 0),
        ttbr1: Ttbr::new(&needs.upper, high, 0),
        identity_bits: lower.va_bits(),
        distance: needs.distance,
        roots: [low, high],
        geometries: [lower, needs.upper],
        tcr: Tcr::new(&needs.cpu, Some(&lower), Some(&needs.upper)).0,
    })
}

/// Gives the pages of tables back that no CPU walks: the next kernel is unloaded. In an environment
/// of the kind that they were made in.
pub fn free<P: Page, E: Environment>(environment: E, transition: &Transition) {
    let ([low, high], [lower, upper]) = (transition.roots, transition.geometries);
    // SAFETY: both were made by `build` in such an environment, and no CPU walks them: TTBRs get them
    // from `leave` only, which does not come back.
    let tables =
        unsafe { PageTables::<P, E>::from_root(low, lower, Liveness::Private, environment) };
    // The geometries are those of `P`, as when the trees were made.
    if let Ok(mut tables) = tables {
        tables.give_back();
        // SAFETY: as above.
        unsafe { tables.turn_to(high, upper) };
        tables.give_back();
    }
}

/// Trees of one page size, one after the other: what is asked of them here, behind calls, so that the
/// rest has no page size in it.
trait Trees {
    fn page(&self) -> u64;
    fn root(&self) -> PhysicalAddress;
    fn begin(&mut self, geometry: Geometry) -> Result<(), TableError>;
    fn map(&mut self, piece: Piece) -> Result<(), TableError>;
    fn each_table(&self, each: &mut dyn FnMut(PhysicalAddress));

    /// Gives all pages of the tree back, its root too. Nobody walks it.
    fn give_back(&mut self);

    /// Turns to another one.
    ///
    /// # Safety
    ///
    /// As for [`PageTables::turn_to`].
    unsafe fn turn_to(&mut self, root: PhysicalAddress, geometry: Geometry);
}

impl<P: Page, E: Environment> Trees for PageTables<P, E> {
    fn page(&self) -> u64 {
        P::SIZE.bytes()
    }

    fn root(&self) -> PhysicalAddress {
        self.root()
    }

    fn begin(&mut self, geometry: Geometry) -> Result<(), TableError> {
        self.begin(geometry)
    }

    fn map(&mut self, piece: Piece) -> Result<(), TableError> {
        self.map_pieces(&[piece])
    }

    fn each_table(&self, each: &mut dyn FnMut(PhysicalAddress)) {
        each(self.root());
        // Not a type of its own: there is one such walk for all that look.
        let visit: &mut dyn FnMut(&Entry) -> bool = &mut |entry| {
            if entry.kind == Kind::Table {
                each(entry.output);
            }
            true
        };
        self.visit_all(visit);
    }

    fn give_back(&mut self) {
        let geometry = *self.geometry();
        // What is mapped with a geometry can be unmapped as a whole: nothing is split, and nothing is
        // left to tell if it were.
        let _ = self.unmap(geometry.base(), geometry.span());
        // SAFETY: a private tree, of which nothing else is left.
        unsafe { self.free_root() };
    }

    unsafe fn turn_to(&mut self, root: PhysicalAddress, geometry: Geometry) {
        // SAFETY: the caller's promise.
        unsafe { self.turn_to(root, geometry) }
    }
}

/// Both trees, from an empty one for the lower half, by their roots; without a page taken where that
/// fails.
fn make(
    trees: &mut dyn Trees,
    lower: Geometry,
    needs: &Needs<'_>,
) -> Result<[PhysicalAddress; 2], TransitionError> {
    let low = trees.root();
    let made = identity_map(trees, needs).and_then(|()| linear_map(trees, needs));
    if let Err(why) = made {
        if trees.root() != low {
            trees.give_back();
            // SAFETY: made by the caller in this environment, for this geometry, and no CPU walks it.
            unsafe { trees.turn_to(low, lower) };
        }
        trees.give_back();
        return Err(why);
    }
    Ok([low, trees.root()])
}

fn identity_map(trees: &mut dyn Trees, needs: &Needs<'_>) -> Result<(), TransitionError> {
    trees.map(Piece {
        start: VirtualAddress(needs.code.0),
        output: needs.code,
        bytes: trees.page(),
        attributes: Attributes::normal(Permissions::READ_EXECUTE),
        leaves: Leaves::PAGES,
    })?;
    out_of_the_way(trees, needs.segments)
}

/// In a tree of its own, which `trees` turn to.
fn linear_map(trees: &mut dyn Trees, needs: &Needs<'_>) -> Result<(), TransitionError> {
    trees.begin(needs.upper)?;
    let written = needs.written.iter().map(|it| (it, Permissions::READ_WRITE));
    let read = needs.read.iter().map(|it| (it, Permissions::READ));
    for (extent, permissions) in written.chain(read) {
        trees.map(Piece {
            start: VirtualAddress(extent.start.wrapping_add(needs.distance)),
            output: PhysicalAddress(extent.start),
            bytes: extent.bytes,
            attributes: Attributes::normal(permissions),
            leaves: Leaves::LARGEST,
        })?;
    }
    out_of_the_way(trees, needs.segments)
}

/// Whether no table has come where a segment is to be.
fn out_of_the_way(trees: &dyn Trees, segments: &[Segment<'_>]) -> Result<(), TransitionError> {
    let mut first = None;
    trees.each_table(&mut |at| {
        let page = Extent::new(at.0, trees.page());
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
