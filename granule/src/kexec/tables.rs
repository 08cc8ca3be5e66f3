//! Transitional tables: what the relocation code runs on, sharing nothing with what is replaced.
//!
//! Two trees, made by the library's own walker from pages that no segment is to be in: in TTBR1 a
//! linear map, at the distance of the kernel's own, of what is told and nothing else, with the
//! largest leaves there are; in TTBR0 the one page of the relocation code where it is, executable
//! and read-only. Page size and format are the kernel's, since TG and DS change only while nothing
//! is translated; the number of address bits of TTBR0 is as small as the page's address allows.

use super::segment::{Extent, Refusal, Segment, in_the_way};
use crate::arch::registers::{Tcr, Ttbr};
use crate::arch::{
    Attributes, CpuFeatures, Geometry, GeometryError, Half, Page, Permissions, PhysicalAddress,
    VirtualAddress,
};
use crate::forward;
use crate::table::{
    Environment, Leaves, Liveness, Maintenance, PageTables, TableAllocator, TableError,
    TableMemory, TableRun,
};
use core::fmt;

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

/// The environment, lent: it is needed for two trees, one after the other, and by the caller after.
struct Lent<'a, E> {
    inner: &'a mut E,
    segments: &'a [Segment<'a>],
    /// A page that was given where a segment is to be.
    in_the_way: Option<u64>,
}

// SAFETY: every call is handed on to what the caller vouched for.
unsafe impl<E: TableMemory> TableMemory for Lent<'_, E> {
    forward!(self.inner: load find_mapped store exchange fill update);
}

// SAFETY: as above.
unsafe impl<E: TableAllocator + Maintenance> TableAllocator for Lent<'_, E> {
    forward!(self.inner: reserve free);

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let run = self.inner.allocate(most)?;
        let page = self.inner.capabilities().geometry.page_size().bytes();
        let pages = Extent::new(run.first.0, page.saturating_mul(run.count as u64));
        if in_the_way(self.segments, &pages).is_some() {
            self.in_the_way.get_or_insert(run.first.0);
        }
        Some(run)
    }
}

impl<E: Maintenance> Maintenance for Lent<'_, E> {
    forward!(self.inner: capabilities dsb_ishst dsb_ish isb tlbi);
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

/// Makes the tables.
///
/// # Errors
///
/// [`TransitionError`], with all pages given back.
pub fn build<P: Page, E: Environment>(
    environment: &mut E,
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
    let low = tree::<P, E>(environment, lower, needs.segments, |tables| {
        tables.map(
            VirtualAddress(needs.code.0),
            needs.code,
            P::SIZE.bytes(),
            Attributes::normal(Permissions::READ_EXECUTE),
            Leaves::PAGES,
        )
    })?;
    let high = tree::<P, E>(environment, needs.upper, needs.segments, |tables| {
        let written = needs.written.iter().map(|it| (it, Permissions::READ_WRITE));
        let read = needs.read.iter().map(|it| (it, Permissions::READ));
        for (extent, permissions) in written.chain(read) {
            tables.map(
                VirtualAddress(extent.start.wrapping_add(needs.distance)),
                PhysicalAddress(extent.start),
                extent.bytes,
                Attributes::normal(permissions),
                Leaves::LARGEST,
            )?;
        }
        Ok(())
    });
    let high = match high {
        Ok(root) => root,
        Err(why) => {
            give_back::<P, E>(environment, lower, low);
            return Err(why);
        }
    };
    // Stores to tables that nobody walks are not ordered by anything: who walks them first must
    // see them all (arm-rules: filled, then used).
    environment.dsb_ishst();
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

/// Gives the pages of tables back that no CPU walks: the next kernel is unloaded.
pub fn free<P: Page, E: Environment>(environment: &mut E, transition: &Transition) {
    for (geometry, root) in transition.geometries.into_iter().zip(transition.roots) {
        give_back::<P, E>(environment, geometry, root);
    }
}

/// One tree with what `fill` maps in it, by its root; without a page taken where that fails.
fn tree<P: Page, E: Environment>(
    environment: &mut E,
    geometry: Geometry,
    segments: &[Segment<'_>],
    fill: impl FnOnce(&mut PageTables<P, Lent<'_, E>>) -> Result<(), TableError>,
) -> Result<PhysicalAddress, TransitionError> {
    let lent = Lent {
        inner: environment,
        segments,
        in_the_way: None,
    };
    let mut tables = PageTables::<P, _>::new(geometry, lent)?;
    let root = tables.root();
    let filled = fill(&mut tables).map_err(TransitionError::from);
    let clear = match tables.environment().in_the_way {
        None => Ok(()),
        Some(page) => Err(TransitionError::Refused(Refusal::PageInTheWay {
            what: "transitional tables",
            page,
        })),
    };
    match filled.and(clear) {
        Ok(()) => Ok(root),
        Err(why) => {
            give_back::<P, E>(environment, geometry, root);
            Err(why)
        }
    }
}

/// Gives a tree back that nobody walks.
fn give_back<P: Page, E: Environment>(
    environment: &mut E,
    geometry: Geometry,
    root: PhysicalAddress,
) {
    let lent = Lent {
        inner: environment,
        segments: &[],
        in_the_way: None,
    };
    // SAFETY: the root and all below it were made by `tree` in this environment, and no CPU walks
    // them: TTBRs get them from `leave` only, which does not come back.
    let tables = unsafe { PageTables::<P, _>::from_root(root, geometry, Liveness::Private, lent) };
    // The geometry is that of `P`, as when the tree was made, and what is mapped with it can be
    // unmapped as a whole: nothing is split, and nothing is left to tell if it were.
    if let Ok(mut tables) = tables {
        let _ = tables.unmap(geometry.base(), geometry.span());
        tables.environment().free(root);
    }
}
