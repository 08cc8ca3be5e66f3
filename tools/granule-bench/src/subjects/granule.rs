//! This library: `map`, `protect` and `unmap` of what a call names, and variants of them.

#![allow(unsafe_code, reason = "tables in the arena, which no CPU walks")]

use super::{Found, Subject};
use crate::arena;
use crate::job::{Each, Job, Tables, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Context, Result};
use core::marker::PhantomData;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Geometry, IntermediateAddress, Level, Page, PageSize, Permissions,
    PhysicalAddress, Regime, Stage2Attributes, Stage2Geometry, Stage2Permissions, VaRange,
    VirtualAddress,
};
use granule::table::{
    EmptyTables, FreedTable, Holes, Leaves, Live, Maintenance, PageTables, PermissionChange,
    Reservation, Stage, Stage1, Stage2, Stage2PermissionChange, TableEnvironment, TableRun,
};

/// Tables at their own addresses, with pages from the arena.
struct Pages<P, S>(PhantomData<(P, S)>);

// SAFETY: the arena hands out aligned pages of this size that nobody else uses until it is reset, and the trees
// are forgotten before that; their addresses are the host's, below 2^48. No CPU walks the tables.
unsafe impl<P: Page, S: Translation> TableEnvironment for Pages<P, S> {
    #[inline(always)]
    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(table.0 as usize)
    }

    #[inline(always)]
    fn allocate(&mut self) -> Option<PhysicalAddress> {
        self.allocate_run(1).map(|run| run.first)
    }

    #[inline(always)]
    fn invalidate(&mut self, instruction: Maintenance) {
        S::issue(instruction);
    }

    #[inline(always)]
    fn capabilities(&self) -> TlbCapabilities {
        TlbCapabilities {
            range: true,
            level_hint: true,
            ..TlbCapabilities::BASIC
        }
    }

    #[inline(always)]
    fn reserve(&mut self, tables: usize) -> Reservation {
        if arena::left() >= tables as u64 * P::SIZE.bytes() {
            Reservation::Granted
        } else {
            Reservation::Refused
        }
    }

    #[inline(always)]
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        let (first, count) = arena::take_tables(most as u64, P::SIZE.bytes())?;
        Some(TableRun {
            first: PhysicalAddress(first),
            count: count as usize,
        })
    }

    #[inline(always)]
    fn free(&mut self, _: FreedTable) {}
}

/// A stage of translation, as the benchmark uses it.
pub(super) trait Translation: Stage {
    const READ_WRITE: Self::Attributes;
    const READ_ONLY: Self::PermissionChange;
    /// The names of [`Plain`](Variant::Plain) and [`Keep`](Variant::Keep), and the same of live tables.
    const NAMES: [[&'static str; 2]; 2];
    /// Whether other crates have it too.
    const IS_SHARED: bool;

    fn issue(instruction: Maintenance);
    /// Returns the shape of an address space of 48 bits.
    fn geometry(cpu: &CpuFeatures, page: PageSize) -> Result<Self::Geometry>;
    fn at(address: u64) -> Self::Input;
    fn is_writable(attributes: &Self::Attributes) -> bool;
}

impl Translation for Stage1 {
    const READ_WRITE: Attributes = Attributes::normal(Permissions::READ_WRITE);
    const READ_ONLY: PermissionChange = PermissionChange {
        writable: Some(false),
        ..PermissionChange::NONE
    };
    const NAMES: [[&'static str; 2]; 2] = [
        ["granule", "granule, keeps tables"],
        ["granule, live", "granule, live, keeps tables"],
    ];
    const IS_SHARED: bool = true;

    /// A user program can issue neither TLBIs nor the barriers of a kernel; on a bare machine the
    /// live rows issue what they would in a kernel, as aarch64-paging's do.
    #[inline(always)]
    fn issue(instruction: Maintenance) {
        #[cfg(all(target_arch = "aarch64", target_os = "none"))]
        granule::hw::issue(instruction);
        #[cfg(not(all(target_arch = "aarch64", target_os = "none")))]
        let _ = instruction;
    }

    fn geometry(cpu: &CpuFeatures, page: PageSize) -> Result<Geometry> {
        let (range, regime) = (VaRange::Lower, Regime::El1And0);
        Ok(Geometry::new(cpu, page, 48, range, regime)?)
    }

    #[inline(always)]
    fn at(address: u64) -> VirtualAddress {
        VirtualAddress(address)
    }

    fn is_writable(attributes: &Attributes) -> bool {
        attributes.permissions.writable
    }
}

impl Translation for Stage2 {
    const READ_WRITE: Stage2Attributes = Stage2Attributes::normal(Stage2Permissions::READ_WRITE);
    const READ_ONLY: Stage2PermissionChange = Stage2PermissionChange {
        writable: Some(false),
        ..Stage2PermissionChange::NONE
    };
    const NAMES: [[&'static str; 2]; 2] = [
        ["granule, stage 2", "granule, stage 2, keeps tables"],
        [
            "granule, stage 2, live",
            "granule, stage 2, live, keeps tables",
        ],
    ];
    const IS_SHARED: bool = false;

    /// TLBIs of stage 2 are for EL2, where the program that counts does not run.
    #[inline(always)]
    fn issue(_: Maintenance) {}

    fn geometry(cpu: &CpuFeatures, page: PageSize) -> Result<Stage2Geometry> {
        Ok(Stage2Geometry::new(cpu, page, 48)?)
    }

    #[inline(always)]
    fn at(address: u64) -> IntermediateAddress {
        IntermediateAddress(address)
    }

    fn is_writable(attributes: &Stage2Attributes) -> bool {
        attributes.permissions.writable
    }
}

/// No CPU walks these tables.
type Tree<P, S> = PageTables<P, Pages<P, S>, S>;

/// A tree as the benchmark uses it.
enum Held<P: Page, S: Translation> {
    Private(Tree<P, S>),
    Live(Live<Tree<P, S>>),
}

impl<P: Page, S: Translation> Held<P, S> {
    const fn tables(&mut self) -> &mut Tree<P, S> {
        match self {
            Self::Private(tree) => tree,
            // SAFETY: no CPU walks the tables.
            Self::Live(tree) => unsafe { tree.changes() },
        }
    }

    fn view(&self) -> &Tree<P, S> {
        match self {
            Self::Private(tree) => tree,
            Self::Live(tree) => tree,
        }
    }
}

/// The library's calls that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// `map`, `protect` that skips holes, `unmap`.
    Plain,
    /// `protect` refuses holes.
    Refuse,
    /// `unmap_keeping_tables`.
    Keep,
    /// A cursor from page to page.
    Cursor,
    /// A cursor that keeps empty tables.
    KeepCursor,
}

/// This library's trees.
pub(super) struct Granule<P: Page, S: Translation> {
    geometry: S::Geometry,
    live: bool,
    variant: Variant,
    trees: Vec<Held<P, S>>,
}

impl<P: Page, S: Translation> Granule<P, S> {
    /// With `live`, the tables are made live before anything is mapped.
    pub(super) fn new(live: bool, variant: Variant) -> Result<Self> {
        // 48 bits of physical address, all sizes of pages at both stages.
        let cpu = CpuFeatures {
            mmfr0: 0x10_0005,
            ..CpuFeatures::NONE
        };
        Ok(Self {
            geometry: S::geometry(&cpu, P::SIZE)?,
            live,
            variant,
            trees: Vec::new(),
        })
    }

    /// Makes the job's trees.
    fn make(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let tree = Tree::<P, S>::new(self.geometry, Pages(PhantomData))?;
            self.trees.push(if self.live {
                // SAFETY: no CPU walks the tables in spite of the call.
                Held::Live(unsafe { tree.make_live() })
            } else {
                Held::Private(tree)
            });
        }
        Ok(())
    }
}

/// Maps what each call names.
#[inline(always)]
fn map_each<P: Page, S: Translation>(
    tree: &mut Tree<P, S>,
    calls: Each,
    bytes: u64,
    leaves: Leaves,
) -> Result<()> {
    for (start, output) in calls {
        let (start, output) = (S::at(start), PhysicalAddress(output));
        tree.map(start, output, bytes, S::READ_WRITE, leaves)?;
    }
    Ok(())
}

#[inline(always)]
fn protect_each<P: Page, S: Translation>(
    tree: &mut Tree<P, S>,
    job: &Job,
    bytes: u64,
    holes: Holes,
) -> Result<()> {
    for (start, _) in job.each() {
        tree.protect(S::at(start), bytes, S::READ_ONLY, holes)?;
    }
    Ok(())
}

#[inline(always)]
fn unmap_each<P: Page, S: Translation>(tree: &mut Tree<P, S>, job: &Job, bytes: u64) -> Result<()> {
    for (start, _) in job.each() {
        tree.unmap(S::at(start), bytes)?;
    }
    Ok(())
}

/// Unmaps the page of each call.
fn unmap_each_keeping_tables<P: Page, S: Translation>(
    tree: &mut Tree<P, S>,
    job: &Job,
) -> Result<()> {
    for (start, _) in job.each() {
        tree.unmap_keeping_tables(S::at(start), P::SIZE.bytes())?;
    }
    Ok(())
}

fn map_by_cursor<P: Page, S: Translation>(tree: &mut Tree<P, S>, job: &Job) -> Result<()> {
    let mut cursor = tree.cursor(S::at(VIRTUAL))?;
    for (kept, output) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.map(PhysicalAddress(output), S::READ_WRITE)?;
        }
    }
    Ok(())
}

fn protect_by_cursor<P: Page, S: Translation>(tree: &mut Tree<P, S>, job: &Job) -> Result<()> {
    let mut cursor = tree.cursor(S::at(VIRTUAL))?;
    for (kept, _) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.protect(S::READ_ONLY, Holes::Skip)?;
        }
    }
    Ok(())
}

fn unmap_by_cursor<P: Page, S: Translation>(
    tree: &mut Tree<P, S>,
    job: &Job,
    empty: EmptyTables,
) -> Result<()> {
    let mut cursor = tree.cursor(S::at(VIRTUAL))?;
    for (kept, _) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.unmap(empty)?;
        }
    }
    Ok(())
}

impl<P: Page, S: Translation> Subject for Granule<P, S> {
    fn name(&self) -> &'static str {
        let [plain, keep] = S::NAMES[usize::from(self.live)];
        match (self.live, self.variant) {
            (_, Variant::Plain) => plain,
            (_, Variant::Keep) => keep,
            (false, Variant::Refuse) => "granule, holes refused",
            (true, Variant::Refuse) => "granule, live, holes refused",
            (false, Variant::Cursor) => "granule, cursor",
            (true, Variant::Cursor) => "granule, live, cursor",
            (_, Variant::KeepCursor) => "granule, cursor, keeps tables",
        }
    }

    fn takes(&self, job: &Job) -> bool {
        let has_cursor = job.is_page() && job.calls.tables != Tables::Own;
        job.leaf.page_bytes() == P::SIZE.bytes()
            && match self.variant {
                Variant::Plain => S::IS_SHARED || !job.calls.is_range(),
                Variant::Refuse => job.calls.is_range(),
                Variant::Keep => job.is_page(),
                Variant::Cursor | Variant::KeepCursor => has_cursor,
            }
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        self.make(job)?;
        for tree in &mut self.trees {
            let (bytes, leaves) = (job.leaf.bytes(), Leaves::LARGEST);
            map_each(tree.tables(), job.kept(), bytes, leaves)?;
        }
        Ok(())
    }

    // A page is a constant for the compiler, as where a user writes it; other lengths are not. What
    // is asked for is a constant as well, but for a range of blocks.
    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job)?;
        }
        let bytes = job.call_bytes();
        for tree in &mut self.trees {
            let tree = tree.tables();
            match self.variant {
                Variant::Cursor | Variant::KeepCursor => map_by_cursor(tree, job)?,
                _ if job.is_page() => map_each(tree, job.each(), P::SIZE.bytes(), Leaves::PAGES)?,
                _ if job.leaf.is_page() => map_each(tree, job.each(), bytes, Leaves::PAGES)?,
                _ if !job.calls.is_range() => map_each(tree, job.each(), bytes, Leaves::LARGEST)?,
                _ => {
                    let levels = [Level::L3, Level::L2, Level::L1];
                    let above = job.leaf.above() as usize;
                    let top = *levels.get(above).context("no such block")?;
                    let contiguous = false;
                    map_each(tree, job.each(), bytes, Leaves { top, contiguous })?;
                }
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let bytes = job.call_bytes();
        for tree in &mut self.trees {
            let tree = tree.tables();
            match self.variant {
                Variant::Cursor | Variant::KeepCursor => protect_by_cursor(tree, job)?,
                Variant::Refuse => protect_each(tree, job, bytes, Holes::Refuse)?,
                _ if job.is_page() => protect_each(tree, job, P::SIZE.bytes(), Holes::Skip)?,
                _ => protect_each(tree, job, bytes, Holes::Skip)?,
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let bytes = job.call_bytes();
        for tree in &mut self.trees {
            let tree = tree.tables();
            match self.variant {
                Variant::Cursor => unmap_by_cursor(tree, job, EmptyTables::Free)?,
                Variant::KeepCursor => unmap_by_cursor(tree, job, EmptyTables::Keep)?,
                Variant::Keep => unmap_each_keeping_tables(tree, job)?,
                _ if job.is_page() => unmap_each(tree, job, P::SIZE.bytes())?,
                _ => unmap_each(tree, job, bytes)?,
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let tree = self.trees.get(tree)?.view();
        let mapping = tree.query(S::at(address))?;
        Some(Found {
            output: mapping.output.0,
            bytes: mapping.bytes,
            writable: S::is_writable(&mapping.attributes),
        })
    }

    fn query_each(&self, job: &Job) -> u64 {
        let mut sum = 0_u64;
        for tree in &self.trees {
            let tree = tree.view();
            for (address, _) in job.each() {
                let mapping = tree.query(S::at(address));
                sum = sum.wrapping_add(mapping.map_or(0, |mapping| mapping.output.0));
            }
        }
        sum
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}
