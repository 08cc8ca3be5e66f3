//! page-table-generic: its `map` (its `map_linear_pages` walks from the root for each leaf),
//! `protect_region` and `unmap_with_config`, four levels of 4K, arm64 descriptors.

use super::{Found, Subject, descriptor};
use crate::arena;
use crate::job::{Job, Leaf, PHYSICAL, VIRTUAL};
use anyhow::{Result, anyhow};
use page_table_generic::{
    FrameAllocator, MapConfig, PageTable, PageTableRef, PhysAddr, TableMeta, UnmapConfig, VirtAddr,
};
use std::mem::ManuallyDrop;

#[derive(Clone, Copy)]
struct Arm64;

impl TableMeta for Arm64 {
    type P = descriptor::Entry;

    const PAGE_SIZE: usize = 4096;
    const LEVEL_BITS: &[usize] = &[9, 9, 9, 9];
    // Counted from the pages, which are 1: blocks of 1 GiB, as arm64 has them.
    const MAX_BLOCK_LEVEL: usize = 3;

    #[inline(always)]
    fn flush(_: Option<VirtAddr>) {}
}

/// Frames from the arena, at their own addresses.
#[derive(Clone, Copy)]
struct Frames;

impl FrameAllocator for Frames {
    #[inline(always)]
    fn alloc_frame(&self) -> Option<PhysAddr> {
        let (first, _) = arena::take(1)?;
        Some(PhysAddr::from_usize(first as usize))
    }

    #[inline(always)]
    fn dealloc_frame(&self, _: PhysAddr) {}

    #[inline(always)]
    fn phys_to_virt(&self, address: PhysAddr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(address.as_usize())
    }
}

/// Its trees, never dropped: that would visit every table, which no subject is timed for.
#[derive(Default)]
pub(super) struct PageTableGeneric {
    trees: Vec<ManuallyDrop<PageTable<Arm64, Frames>>>,
}

fn start() -> VirtAddr {
    VirtAddr::from_usize(VIRTUAL as usize)
}

impl Subject for PageTableGeneric {
    fn name(&self) -> &'static str {
        "page-table-generic"
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        let config = MapConfig {
            vaddr: start(),
            paddr: PhysAddr::from_usize(PHYSICAL as usize),
            size: job.bytes as usize,
            pte: descriptor::READ_WRITE,
            allow_huge: job.leaf == Leaf::Block2M,
            flush: false,
        };
        for _ in 0..job.trees {
            let mut tree = ManuallyDrop::new(PageTable::new(Frames).map_err(failed)?);
            PageTableRef::map(&mut tree, &config).map_err(failed)?;
            self.trees.push(tree);
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            tree.protect_region(start(), job.bytes as usize, descriptor::READ)
                .map_err(failed)?;
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let config = UnmapConfig {
            start_vaddr: start(),
            size: job.bytes as usize,
            flush: false,
        };
        for tree in &mut self.trees {
            tree.unmap_with_config(&config).map_err(failed)?;
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let address = VirtAddr::from_usize(address as usize);
        let (output, attributes, bytes) = self.trees.get(tree)?.query(address).ok()?;
        let output = output.as_usize() as u64;
        Some(descriptor::found(output, bytes as u64, attributes))
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}

fn failed(error: page_table_generic::PagingError) -> anyhow::Error {
    anyhow!("{error}")
}
