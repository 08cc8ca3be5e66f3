//! This library: `map`, `protect` and `unmap` of the range or of one page, and variants of them.

#![allow(unsafe_code, reason = "tables in the arena, which no CPU walks")]

use super::{Found, Subject};
use crate::arena::{self, TABLE};
use crate::job::{Calls, Job, Leaf, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Context, Result};
use granule::arch::Level;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Geometry, IdRegisters, Page4K, PageSize, Permissions, PhysicalAddress,
    Regime, VaRange, VirtualAddress,
};
use granule::table::{
    DirectMapped, EmptyTables, Environment, FreedTable, Holes, Leaves, Live, Offset, PageTables,
    PermissionChange, TableAllocator, TableRun,
};

/// Pages from the arena.
struct Pages;

// SAFETY: the arena hands out 4K pages that nobody else uses until it is reset, and the trees
// are forgotten before that; their addresses are the host's, below 2^48.
unsafe impl TableAllocator for Pages {
    #[inline(always)]
    fn reserve(&mut self, tables: usize) -> bool {
        arena::left() >= tables as u64
    }

    #[inline(always)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        let (first, count) = arena::take(most as u64)?;
        Some(TableRun {
            first: PhysicalAddress(first),
            count: count as usize,
        })
    }

    #[inline(always)]
    fn free(&mut self, _: FreedTable) {}
}

/// A user program can issue neither TLBIs nor the barriers of a kernel; on a bare machine the live rows
/// issue what they would in a kernel, as aarch64-paging's do.
#[cfg(not(all(target_arch = "aarch64", target_os = "none")))]
type Tlb = granule::table::NoCpu;
#[cfg(all(target_arch = "aarch64", target_os = "none"))]
type Tlb = granule::hw::Hardware;

#[cfg(not(all(target_arch = "aarch64", target_os = "none")))]
const TLB: fn(TlbCapabilities) -> Tlb = granule::table::NoCpu;
#[cfg(all(target_arch = "aarch64", target_os = "none"))]
const TLB: fn(TlbCapabilities) -> Tlb = granule::hw::Hardware::new;

/// No CPU walks these tables.
type Tree = PageTables<Page4K, Environment<DirectMapped<Offset>, Pages, Tlb>>;

/// A tree as the benchmark uses it.
enum Held {
    Private(Tree),
    Live(Live<Tree>),
}

impl Held {
    const fn tables(&mut self) -> &mut Tree {
        match self {
            Self::Private(tree) => tree,
            // SAFETY: no CPU walks the tables.
            Self::Live(tree) => unsafe { tree.changes() },
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
pub(super) struct Granule {
    geometry: Geometry,
    live: bool,
    variant: Variant,
    trees: Vec<Held>,
}

const READ_WRITE: Attributes = Attributes::normal(Permissions::READ_WRITE);
const READ_ONLY: PermissionChange = PermissionChange::NONE.writable(false);

impl Granule {
    /// With `live`, the tables are made live before anything is mapped.
    pub(super) fn new(live: bool, variant: Variant) -> Result<Self> {
        // 48 bits of physical address, 4K pages.
        let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(0x5));
        let geometry = Geometry::new(&cpu, PageSize::K4, 48, VaRange::Lower, Regime::El1And0)?;
        Ok(Self {
            geometry,
            live,
            variant,
            trees: Vec::new(),
        })
    }

    /// Makes an empty tree.
    fn make(&mut self) -> Result<&mut Tree> {
        // SAFETY: tables are at their addresses, in this program's own memory.
        let offset = unsafe { Offset::new(0) };
        let environment = Environment {
            memory: DirectMapped(offset),
            allocator: Pages,
            tlb: TLB(TlbCapabilities::BASIC.range(true).level_hint(true)),
        };
        let tree = Tree::new(self.geometry, environment)?;
        self.trees.push(if self.live {
            // SAFETY: no CPU walks the tables in spite of the call.
            Held::Live(unsafe { tree.make_live() })
        } else {
            Held::Private(tree)
        });
        let made = self.trees.last_mut().context("no tree")?;
        Ok(made.tables())
    }
}

fn map_range(tree: &mut Tree, job: &Job) -> Result<()> {
    let top = match job.leaf {
        Leaf::Page4K => Level::L3,
        Leaf::Block2M => Level::L2,
        Leaf::Block1G => Level::L1,
    };
    let leaves = Leaves {
        top,
        contiguous: false,
    };
    let (start, output) = (VirtualAddress(VIRTUAL), PhysicalAddress(job.physical()));
    tree.map(start, output, job.bytes, READ_WRITE, leaves)
        .context("map")
}

fn map_pages(tree: &mut Tree, pages: impl Iterator<Item = (u64, u64)>) -> Result<()> {
    for (page, output) in pages {
        let (start, output) = (VirtualAddress(page), PhysicalAddress(output));
        tree.map(start, output, TABLE, READ_WRITE, Leaves::PAGES)?;
    }
    Ok(())
}

fn protect_pages(tree: &mut Tree, job: &Job) -> Result<()> {
    for (page, _) in job.each() {
        tree.protect(VirtualAddress(page), TABLE, READ_ONLY, Holes::Skip)?;
    }
    Ok(())
}

fn unmap_pages(tree: &mut Tree, job: &Job) -> Result<()> {
    for (page, _) in job.each() {
        tree.unmap(VirtualAddress(page), TABLE)?;
    }
    Ok(())
}

fn unmap_pages_keeping_tables(tree: &mut Tree, job: &Job) -> Result<()> {
    for (page, _) in job.each() {
        tree.unmap_keeping_tables(VirtualAddress(page), TABLE)?;
    }
    Ok(())
}

fn map_by_cursor(tree: &mut Tree, job: &Job) -> Result<()> {
    let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
    for (kept, output) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.map(PhysicalAddress(output), READ_WRITE)?;
        }
    }
    Ok(())
}

fn protect_by_cursor(tree: &mut Tree, job: &Job) -> Result<()> {
    let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
    for (kept, _) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.protect(READ_ONLY, Holes::Skip)?;
        }
    }
    Ok(())
}

fn unmap_by_cursor(tree: &mut Tree, job: &Job, empty: EmptyTables) -> Result<()> {
    let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
    for (kept, _) in job.all() {
        if kept {
            cursor.advance();
        } else {
            cursor.unmap(empty)?;
        }
    }
    Ok(())
}

impl Subject for Granule {
    fn name(&self) -> &'static str {
        match (self.live, self.variant) {
            (false, Variant::Plain) => "granule",
            (true, Variant::Plain) => "granule, live",
            (false, Variant::Refuse) => "granule, holes refused",
            (true, Variant::Refuse) => "granule, live, holes refused",
            (_, Variant::Keep) => "granule, keeps tables",
            (false, Variant::Cursor) => "granule, cursor",
            (true, Variant::Cursor) => "granule, live, cursor",
            (_, Variant::KeepCursor) => "granule, cursor, keeps tables",
        }
    }

    fn takes(&self, job: &Job) -> bool {
        match self.variant {
            Variant::Plain => true,
            Variant::Refuse => job.calls == Calls::Range,
            Variant::Keep | Variant::Cursor | Variant::KeepCursor => job.calls != Calls::Range,
        }
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        let pages = || {
            job.kept_leaves()
                .map(|offset| (VIRTUAL + offset, job.physical() + offset))
        };
        for _ in 0..job.trees {
            map_pages(self.make()?, pages())?;
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if job.calls == Calls::Range {
            for _ in 0..job.trees {
                map_range(self.make()?, job)?;
            }
            return Ok(());
        }
        if self.trees.is_empty() {
            for _ in 0..job.trees {
                self.make()?;
            }
        }
        for tree in &mut self.trees {
            match self.variant {
                Variant::Cursor | Variant::KeepCursor => map_by_cursor(tree.tables(), job)?,
                _ => map_pages(tree.tables(), job.each())?,
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            let tree = tree.tables();
            match (job.calls, self.variant) {
                (Calls::Range, variant) => {
                    let holes = match variant {
                        Variant::Refuse => Holes::Refuse,
                        _ => Holes::Skip,
                    };
                    tree.protect(VirtualAddress(VIRTUAL), job.bytes, READ_ONLY, holes)
                        .context("protect")?;
                }
                (_, Variant::Cursor | Variant::KeepCursor) => protect_by_cursor(tree, job)?,
                _ => protect_pages(tree, job)?,
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            let tree = tree.tables();
            match (job.calls, self.variant) {
                (Calls::Range, _) => tree
                    .unmap(VirtualAddress(VIRTUAL), job.bytes)
                    .context("unmap")?,
                (_, Variant::Keep) => unmap_pages_keeping_tables(tree, job)?,
                (_, Variant::Cursor) => unmap_by_cursor(tree, job, EmptyTables::Free)?,
                (_, Variant::KeepCursor) => unmap_by_cursor(tree, job, EmptyTables::Keep)?,
                _ => unmap_pages(tree, job)?,
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let mapping = match self.trees.get(tree)? {
            Held::Private(tree) => tree.query(VirtualAddress(address))?,
            Held::Live(tree) => tree.query(VirtualAddress(address))?,
        };
        Some(Found {
            output: mapping.output.0,
            bytes: mapping.bytes,
            writable: mapping.attributes.permissions.writable,
        })
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}
