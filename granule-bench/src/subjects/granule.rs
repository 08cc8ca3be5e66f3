//! This library: `map`, `protect` and `unmap` of the range or of one page, and variants of them.

use super::{Found, Subject};
use crate::arena::{self, TABLE};
use crate::job::{Calls, Job, Leaf, VIRTUAL};
use anyhow::{Context, Result};
use granule::arch::page_size::Level;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Geometry, IdRegisters, Page4K, PageSize, Permissions, PhysicalAddress,
    Regime, VaRange, VirtualAddress,
};
use granule::table::{
    DirectMapped, EmptyTables, Environment, FreedTable, Holes, Leaves, NoCpu, Offset, PageTables,
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

/// No CPU walks these tables, so the instructions are left out, as all the subjects' are.
type Tree = PageTables<Page4K, Environment<DirectMapped<Offset>, Pages, NoCpu>>;

/// Which of the library's calls are used.
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
    trees: Vec<Tree>,
}

const READ_WRITE: Attributes = Attributes::normal(Permissions::READ_WRITE);

const fn read_only() -> PermissionChange {
    PermissionChange {
        writable: Some(false),
        user: None,
        privileged_execute: None,
        user_execute: None,
        guarded: None,
        software: None,
    }
}

impl Granule {
    /// With `live`, the tables are told that CPUs walk them before anything is mapped.
    pub(super) fn new(live: bool, variant: Variant) -> Result<Self> {
        // 48 bits of physical address, 4K pages.
        let cpu = CpuFeatures::new(IdRegisters {
            mmfr0: 0x5,
            ..IdRegisters::default()
        });
        let geometry = Geometry::new(&cpu, PageSize::K4, 48, VaRange::Lower, Regime::El1And0)?;
        Ok(Self {
            geometry,
            live,
            variant,
            trees: Vec::new(),
        })
    }

    /// A new, empty tree.
    fn tree(&self) -> Result<Tree> {
        // SAFETY: tables are where their addresses say, in this program's own memory.
        let offset = unsafe { Offset::new(0) };
        let environment = Environment {
            memory: DirectMapped(offset),
            allocator: Pages,
            tlb: NoCpu(TlbCapabilities {
                geometry: self.geometry,
                range: true,
                level_hint: true,
                repeat: false,
            }),
        };
        let mut tree = Tree::new(self.geometry, environment)?;
        if self.live {
            tree.make_live();
        }
        Ok(tree)
    }

    /// The empty tables that unmapping through a cursor leaves.
    fn empty(&self) -> EmptyTables {
        match self.variant {
            Variant::KeepCursor => EmptyTables::Keep,
            _ => EmptyTables::Free,
        }
    }

    fn is_cursor(&self) -> bool {
        matches!(self.variant, Variant::Cursor | Variant::KeepCursor)
    }
}

fn map_range(tree: &mut Tree, job: &Job) -> Result<()> {
    let top = match job.leaf {
        Leaf::Page4K => Level::L3,
        Leaf::Block2M => Level::L2,
        Leaf::Block1G => Level::L1,
    };
    let contiguous = false;
    tree.map(
        VirtualAddress(VIRTUAL),
        PhysicalAddress(job.physical()),
        job.bytes,
        READ_WRITE,
        Leaves { top, contiguous },
    )
    .context("map")
}

fn map_page(tree: &mut Tree, page: u64, output: u64) -> Result<()> {
    tree.map(
        VirtualAddress(page),
        PhysicalAddress(output),
        TABLE,
        READ_WRITE,
        Leaves::PAGES,
    )
    .context("map of a page")
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
        for _ in 0..job.trees {
            let mut tree = self.tree()?;
            for offset in job.kept_leaves() {
                map_page(&mut tree, VIRTUAL + offset, job.physical() + offset)?;
            }
            self.trees.push(tree);
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            for _ in 0..job.trees {
                let mut tree = self.tree()?;
                if job.calls == Calls::Range {
                    map_range(&mut tree, job)?;
                }
                self.trees.push(tree);
            }
        }
        if job.calls == Calls::Range {
            return Ok(());
        }
        let cursors = self.is_cursor();
        for tree in &mut self.trees {
            if cursors {
                let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
                for (kept, output) in job.all() {
                    if kept {
                        cursor.advance();
                    } else {
                        cursor.map(PhysicalAddress(output), READ_WRITE)?;
                    }
                }
            } else {
                for (page, output) in job.each() {
                    map_page(tree, page, output)?;
                }
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let holes = match self.variant {
            Variant::Refuse => Holes::Refuse,
            _ => Holes::Skip,
        };
        let cursors = self.is_cursor();
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.protect(VirtualAddress(VIRTUAL), job.bytes, read_only(), holes)
                    .context("protect")?;
            } else if cursors {
                let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
                for (kept, _) in job.all() {
                    if kept {
                        cursor.advance();
                    } else {
                        cursor.protect(read_only(), holes)?;
                    }
                }
            } else {
                for (page, _) in job.each() {
                    tree.protect(VirtualAddress(page), TABLE, read_only(), holes)?;
                }
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let empty = self.empty();
        let cursors = self.is_cursor();
        let keeps = self.variant == Variant::Keep;
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.unmap(VirtualAddress(VIRTUAL), job.bytes)
                    .context("unmap")?;
            } else if cursors {
                let mut cursor = tree.cursor(VirtualAddress(VIRTUAL))?;
                for (kept, _) in job.all() {
                    if kept {
                        cursor.advance();
                    } else {
                        cursor.unmap(empty)?;
                    }
                }
            } else if keeps {
                for (page, _) in job.each() {
                    tree.unmap_keeping_tables(VirtualAddress(page), TABLE)?;
                }
            } else {
                for (page, _) in job.each() {
                    tree.unmap(VirtualAddress(page), TABLE)?;
                }
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let mapping = self.trees.get(tree)?.query(VirtualAddress(address))?;
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
