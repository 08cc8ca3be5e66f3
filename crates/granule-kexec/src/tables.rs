//! The transitional tables: the relocation code runs on them, and they share nothing with the
//! tables that are overwritten.
//!
//! The library's walker builds two trees, from pages outside every segment's destination. TTBR1
//! gets a linear map of the given memory only, at the same distance as the kernel's linear map and
//! with the largest leaves that fit. TTBR0 gets an executable, read-only identity map of the
//! relocation code's page. Page size and descriptor format are the kernel's, because TG and DS may
//! change only while nothing is translated. TTBR0's address size is the smallest that reaches the
//! page.

#![allow(unsafe_code, reason = "trees by their roots, and registers for them")]

use super::segment::{PhysRange, Refusal, Segment, in_the_way};
use core::ops::ControlFlow;
use granule::arch::registers::{Tcr, Ttbr};
use granule::arch::{
    Attributes, CpuFeatures, Geometry, GeometryError, Kind, Permissions, PhysicalAddress, VaRange,
    VirtualAddress,
};
use granule::table::{AnyPageTables, Leaves, Piece, TableEnvironment, TableError, Visit, publish};
use thiserror::Error;

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
///
/// The value owns the tables of both halves until [`free`] consumes it. They cannot be freed twice:
///
/// ```compile_fail,E0382
/// use granule::table::TableEnvironment;
/// use granule_kexec::{Transition, free};
///
/// fn twice<E: TableEnvironment>(transition: Transition, environments: [E; 2]) {
///     for environment in environments {
///         // SAFETY: both environments reach the tables, which no CPU walks.
///         unsafe { free(environment, transition) };
///     }
/// }
/// ```
///
/// nor below a root of one's choice:
///
/// ```compile_fail,E0616
/// use granule_kexec::Transition;
///
/// fn other_tables(transition: &mut Transition, other: Transition) {
///     transition.halves = other.halves;
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "tables that are not given to `free` are lost"]
pub struct Transition {
    /// The lower and the upper half.
    halves: [Half; 2],
    distance: u64,
    tcr: u64,
}

/// The finished tables of one half. [`build`] alone makes the value, and [`destroy`] consumes it.
#[derive(Debug, PartialEq, Eq)]
struct Half {
    root: PhysicalAddress,
    geometry: Geometry,
}

impl Half {
    const fn ttbr(&self) -> Ttbr {
        // SAFETY: the fields are private, and of one tree: `build` made it with this geometry, and issued
        // the barriers. Nobody changes it: `free` has its own conditions.
        unsafe { Ttbr::from_root(&self.geometry, self.root, 0) }
    }
}

/// The TTBR0 fields of TCR: T0SZ, EPD0, IRGN0, ORGN0, SH0 and TG0.
const LOWER_FIELDS: u64 = 0xffbf;

impl Transition {
    /// TTBR0.
    #[must_use]
    pub const fn ttbr0(&self) -> Ttbr {
        let [lower, _] = &self.halves;
        lower.ttbr()
    }

    /// TTBR1.
    #[must_use]
    pub const fn ttbr1(&self) -> Ttbr {
        let [_, upper] = &self.halves;
        upper.ttbr()
    }

    /// The number that is added, wrapping, to a physical address for its address in the linear map.
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.distance
    }

    /// The root tables of the lower and the upper half, for code that reads the tables.
    #[must_use]
    pub const fn roots(&self) -> [PhysicalAddress; 2] {
        let [lower, upper] = &self.halves;
        [lower.root, upper.root]
    }

    /// The geometries of the lower and the upper half.
    #[must_use]
    pub const fn geometries(&self) -> [Geometry; 2] {
        let [lower, upper] = &self.halves;
        [lower.geometry, upper.geometry]
    }

    /// TCR for these tables, given the kernel's TCR `now`: the TTBR0 fields are the identity map's,
    /// and walks of both halves are enabled.
    #[must_use]
    pub const fn tcr(&self, now: u64) -> u64 {
        (now & !(LOWER_FIELDS | Tcr::EPD1)) | (self.tcr & LOWER_FIELDS)
    }
}

/// Why the transitional tables cannot be built. All pages taken for them were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// Pages are missing, or a page lies in a segment's destination.
    #[error("{0}")]
    Refused(Refusal),
    /// No identity map reaches the relocation code's page.
    #[error("the relocation code at {page} cannot be mapped where it is: {why}")]
    Code {
        /// Address of the page.
        page: PhysicalAddress,
        /// The reason.
        why: GeometryError,
    },
    /// A range cannot be mapped.
    #[error("the tables for the relocation: {0}")]
    Table(TableError),
}

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
/// Fails if the CPU lacks that address size in the descriptor format of the upper half: another page is
/// needed.
pub fn identity_geometry(
    cpu: &CpuFeatures,
    upper: &Geometry,
    code: PhysicalAddress,
) -> Result<Geometry, GeometryError> {
    let last = code.0.saturating_add(upper.page_size().bytes() - 1);
    let bits = u64::BITS - last.leading_zeros();
    let least = cpu.least_va_bits(upper.page_size());
    upper.with_va_range(cpu, VaRange::Lower, bits.max(least), upper.page_size())
}

/// Builds the tables. The environment has the same type as for the caller's other tables, so their
/// code exists only once.
///
/// # Errors
///
/// Fails with [`TransitionError`], after all pages were given back.
pub fn build<E: TableEnvironment>(
    environment: E,
    needs: &Needs<'_>,
) -> Result<Transition, TransitionError> {
    let code = PhysRange::new(needs.code.0, needs.upper.page_size().bytes());
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
    let mut tables = AnyPageTables::new(lower, environment)?;
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
    let lower_half = Half {
        root: low,
        geometry: lower,
    };
    if let Err(why) = linear_map(&mut tables, needs) {
        // SAFETY: the half is the tree that `begin_another` left above, in the same environment. No
        // CPU walks it.
        unsafe { destroy(lower_half, tables.destroy()) };
        return Err(why);
    }
    let (high, mut environment) = tables.into_parts();
    // Orders the stores to both trees before their first walk, by this CPU. Nothing changes the trees
    // after that, so no TLBI is ever needed.
    publish(|instruction| environment.invalidate(instruction));
    let upper_half = Half {
        root: high,
        geometry: needs.upper,
    };
    Ok(Transition {
        halves: [lower_half, upper_half],
        distance: needs.distance,
        tcr: Tcr::new(&needs.cpu, Some(&lower), Some(&needs.upper)).0,
    })
}

/// Frees the pages of tables that no CPU walks, when the next kernel is unloaded.
///
/// The environment is another value than that of [`build`], so the caller vouches for it:
///
/// ```compile_fail,E0133
/// use granule::table::TableEnvironment;
/// use granule_kexec::{Transition, free};
///
/// fn elsewhere<E: TableEnvironment>(transition: Transition, other: E) {
///     free(other, transition);
/// }
/// ```
///
/// # Safety
///
/// `environment` reaches the tables, and is the one that they came from, or may have their pages. No
/// CPU walks the tables.
pub unsafe fn free<E: TableEnvironment>(environment: E, transition: Transition) {
    let [lower, upper] = transition.halves;
    // SAFETY: the private `halves` are of `build` and of this value alone, which is consumed. The caller
    // vouches for the environment, and that no CPU walks them.
    unsafe {
        if let Some(environment) = destroy(lower, environment) {
            destroy(upper, environment);
        }
    }
}

/// Frees the tree of a half, and returns the environment.
///
/// # Safety
///
/// The environment reaches the tables and may have their pages. No CPU walks the tree.
unsafe fn destroy<E: TableEnvironment>(half: Half, environment: E) -> Option<E> {
    let Half { root, geometry } = half;
    // SAFETY: `build` alone makes a `Half`, of a tree that the library wrote and that nothing else
    // changes. The caller keeps the other conditions.
    let tables = unsafe { AnyPageTables::from_root(root, geometry, environment) };
    Some(tables.ok()?.destroy())
}

fn identity_map<E: TableEnvironment>(
    tree: &mut AnyPageTables<E>,
    needs: &Needs<'_>,
) -> Result<(), TransitionError> {
    tree.map_pieces(&[Piece {
        start: VirtualAddress(needs.code.0),
        output: needs.code,
        bytes: needs.upper.page_size().bytes(),
        attributes: Attributes::normal(Permissions::READ_EXECUTE),
        leaves: Leaves::PAGES,
    }])?;
    out_of_the_way(tree, needs.segments)
}

fn linear_map<E: TableEnvironment>(
    tree: &mut AnyPageTables<E>,
    needs: &Needs<'_>,
) -> Result<(), TransitionError> {
    let written = needs.written.iter().map(|it| (it, Permissions::READ_WRITE));
    let read = needs.read.iter().map(|it| (it, Permissions::READ));
    for (extent, permissions) in written.chain(read) {
        tree.map_pieces(&[Piece {
            start: VirtualAddress(extent.start.wrapping_add(needs.distance)),
            output: PhysicalAddress(extent.start),
            bytes: extent.bytes,
            attributes: Attributes::normal(permissions),
            leaves: Leaves::LARGEST,
        }])?;
    }
    out_of_the_way(tree, needs.segments)
}

/// Checks that no table lies in a segment's destination.
fn out_of_the_way<E: TableEnvironment>(
    tree: &AnyPageTables<E>,
    segments: &[Segment<'_>],
) -> Result<(), TransitionError> {
    let bytes = tree.geometry().page_size().bytes();
    let in_way = |table: PhysicalAddress| {
        in_the_way(segments, &PhysRange::new(table.0, bytes)).map(|_| table.0)
    };
    let below = || {
        tree.visit_all(|entry| match in_way(entry.output) {
            Some(page) if entry.kind == Kind::Table => ControlFlow::Break(page),
            _ => ControlFlow::Continue(Visit::Descend),
        })
        .break_value()
    };
    match in_way(tree.root_table()).or_else(below) {
        None => Ok(()),
        Some(page) => Err(TransitionError::Refused(Refusal::PageInTheWay {
            what: "transitional tables",
            page,
        })),
    }
}
