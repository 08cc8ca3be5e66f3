//! This library.

use super::{Found, Subject};
use crate::arena;
use crate::job::{Job, Leaf, PHYSICAL, VIRTUAL};
use anyhow::{Context, Result};
use granule::arch::Level;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, CpuFeatures, Geometry, IdRegisters, Page4K, PageSize, Permissions, PhysicalAddress,
    Regime, VaRange, VirtualAddress,
};
use granule::table::{
    DirectMapped, Environment, FreedTable, Holes, Leaves, Live, NoCpu, Offset, PageTables,
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

/// This library's trees.
pub(super) struct Granule {
    geometry: Geometry,
    live: bool,
    trees: Vec<Held>,
}

impl Granule {
    /// With `live`, the tables are told that CPUs walk them before anything is mapped.
    pub(super) fn new(live: bool) -> Result<Self> {
        // 48 bits of physical address, 4K pages.
        let cpu = CpuFeatures::new(IdRegisters::new().mmfr0(0x5));
        let geometry = Geometry::new(&cpu, PageSize::K4, 48, VaRange::Lower, Regime::El1And0)?;
        Ok(Self {
            geometry,
            live,
            trees: Vec::new(),
        })
    }
}

impl Subject for Granule {
    fn name(&self) -> &'static str {
        if self.live {
            "granule, live"
        } else {
            "granule"
        }
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        let top = match job.leaf {
            Leaf::Page4K => Level::L3,
            Leaf::Block2M => Level::L2,
        };
        let contiguous = false;
        for _ in 0..job.trees {
            // SAFETY: tables are where their addresses say, in this program's own memory.
            let offset = unsafe { Offset::new(0) };
            let environment = Environment {
                memory: DirectMapped(offset),
                allocator: Pages,
                tlb: NoCpu(TlbCapabilities::BASIC.range(true).level_hint(true)),
            };
            let tree = Tree::new(self.geometry, environment)?;
            let mut tree = if self.live {
                // SAFETY: no CPU walks the tables in spite of the call.
                Held::Live(unsafe { tree.make_live() })
            } else {
                Held::Private(tree)
            };
            tree.tables().map(
                VirtualAddress(VIRTUAL),
                PhysicalAddress(PHYSICAL),
                job.bytes,
                Attributes::normal(Permissions::READ_WRITE),
                Leaves { top, contiguous },
            )?;
            self.trees.push(tree);
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let read_only = PermissionChange::NONE.writable(false);
        for tree in &mut self.trees {
            tree.tables()
                .protect(VirtualAddress(VIRTUAL), job.bytes, read_only, Holes::Skip)
                .context("protect")?;
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            tree.tables()
                .unmap(VirtualAddress(VIRTUAL), job.bytes)
                .context("unmap")?;
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
