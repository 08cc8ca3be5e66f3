//! page-table-generic: its `map` (its `map_linear_pages` walks from the root for each leaf),
//! `protect_region` and `unmap_with_config`, four levels of 4K, arm64 descriptors. For single leaves
//! `map` and `unmap_with_config` of one leaf (its `map_page` and `unmap_page` do the same and
//! flush, `unmap_page` after another walk) and `protect_page`.

use super::{Found, Subject, descriptor};
use crate::arena::{self, TABLE};
use crate::job::{Each, Job};
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

type Tree = PageTable<Arm64, Frames>;

/// Its trees, never dropped: that would visit every table, which no subject is timed for.
#[derive(Default)]
pub(super) struct PageTableGeneric {
    trees: Vec<ManuallyDrop<Tree>>,
}

/// The configuration of a map.
#[inline(always)]
fn mapping(job: &Job, start: u64, output: u64, bytes: u64) -> MapConfig<u64> {
    MapConfig {
        vaddr: VirtAddr::from_usize(start as usize),
        paddr: PhysAddr::from_usize(output as usize),
        size: bytes as usize,
        pte: descriptor::READ_WRITE,
        allow_huge: !job.leaf.is_page(),
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

#[inline(always)]
fn map_each(tree: &mut Tree, job: &Job, calls: Each, bytes: u64) -> Result<()> {
    for (start, output) in calls {
        let config = mapping(job, start, output, bytes);
        PageTableRef::map(tree, &config).map_err(failed)?;
    }
    Ok(())
}

#[inline(always)]
fn unmap_each(tree: &mut Tree, job: &Job, bytes: u64) -> Result<()> {
    for (start, _) in job.each() {
        tree.unmap_with_config(&unmapping(start, bytes))
            .map_err(failed)?;
    }
    Ok(())
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
            map_each(tree, job, job.kept(), job.leaf.bytes())?;
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job)?;
        }
        for tree in &mut self.trees {
            match job.is_page() {
                true => map_each(tree, job, job.each(), TABLE)?,
                false => map_each(tree, job, job.each(), job.call_bytes())?,
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let bytes = job.call_bytes() as usize;
        for tree in &mut self.trees {
            if job.calls.leaves == 1 {
                for (start, _) in job.each() {
                    let start = VirtAddr::from_usize(start as usize);
                    tree.protect_page(start, descriptor::READ).map_err(failed)?;
                }
                continue;
            }
            for (start, _) in job.each() {
                let start = VirtAddr::from_usize(start as usize);
                tree.protect_region(start, bytes, descriptor::READ)
                    .map_err(failed)?;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            match job.is_page() {
                true => unmap_each(tree, job, TABLE)?,
                false => unmap_each(tree, job, job.call_bytes())?,
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

    fn query_each(&self, job: &Job) -> u64 {
        let mut sum = 0_u64;
        for tree in &self.trees {
            for (start, _) in job.each() {
                if let Ok(output) = tree.translate_phys(VirtAddr::from_usize(start as usize)) {
                    sum = sum.wrapping_add(output.as_usize() as u64);
                }
            }
        }
        sum
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}

fn failed(error: page_table_generic::PagingError) -> anyhow::Error {
    anyhow!("{error}")
}
