//! page-table-generic: its `map` (its `map_linear_pages` walks from the root for each leaf),
//! `protect_region` and `unmap_with_config`, four levels of 4K, arm64 descriptors. For single pages
//! `map` and `unmap_with_config` of one page (its `map_page` and `unmap_page` do the same and
//! flush, `unmap_page` after another walk) and `protect_page`.

use super::{Found, Subject, descriptor};
use crate::arena::{self, TABLE};
use crate::job::{Calls, Job, Leaf, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Result, anyhow};
use core::mem::ManuallyDrop;
use page_table_generic::{
    FrameAllocator, MapConfig, PageTable, PageTableRef, PhysAddr, TableMeta, UnmapConfig, VirtAddr,
};

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
        core::ptr::with_exposed_provenance_mut(address.as_usize())
    }
}

/// Its trees, never dropped: that would visit every table, which no subject is timed for.
#[derive(Default)]
pub(super) struct PageTableGeneric {
    trees: Vec<ManuallyDrop<PageTable<Arm64, Frames>>>,
}

/// The configuration of a map.
#[inline(always)]
fn mapping(job: &Job, start: u64, output: u64, bytes: u64) -> MapConfig<u64> {
    MapConfig {
        vaddr: VirtAddr::from_usize(start as usize),
        paddr: PhysAddr::from_usize(output as usize),
        size: bytes as usize,
        pte: descriptor::READ_WRITE,
        allow_huge: job.leaf != Leaf::Page4K,
        flush: false,
    }
}

/// The configuration of an unmap.
#[inline(always)]
fn unmapping(start: u64, bytes: u64) -> UnmapConfig {
    UnmapConfig {
        start_vaddr: VirtAddr::from_usize(start as usize),
        size: bytes as usize,
        flush: false,
    }
}

impl PageTableGeneric {
    /// Makes the job's trees.
    fn make(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let tree = PageTable::new(Frames).map_err(failed)?;
            self.trees.push(ManuallyDrop::new(tree));
        }
        Ok(())
    }
}

impl Subject for PageTableGeneric {
    fn name(&self) -> &'static str {
        "page-table-generic"
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        self.make(job)?;
        for tree in &mut self.trees {
            for offset in job.kept_leaves() {
                let config = mapping(job, VIRTUAL + offset, job.physical() + offset, TABLE);
                PageTableRef::map(tree, &config).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job)?;
        }
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                let config = mapping(job, VIRTUAL, job.physical(), job.bytes);
                PageTableRef::map(tree, &config).map_err(failed)?;
                continue;
            }
            for (page, output) in job.each() {
                let config = mapping(job, page, output, TABLE);
                PageTableRef::map(tree, &config).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                let start = VirtAddr::from_usize(VIRTUAL as usize);
                tree.protect_region(start, job.bytes as usize, descriptor::READ)
                    .map_err(failed)?;
                continue;
            }
            for (page, _) in job.each() {
                let page = VirtAddr::from_usize(page as usize);
                tree.protect_page(page, descriptor::READ).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.unmap_with_config(&unmapping(VIRTUAL, job.bytes))
                    .map_err(failed)?;
                continue;
            }
            for (page, _) in job.each() {
                tree.unmap_with_config(&unmapping(page, TABLE))
                    .map_err(failed)?;
            }
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
