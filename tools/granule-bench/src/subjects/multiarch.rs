//! page_table_multiarch: one cursor's region calls, or a cursor and one call for each page, four
//! levels, arm64 descriptors. Its cursor keeps no place; it collects what to flush.
//!
//! Its own description of arm64 compiles only there, so the same numbers stand here; off bare
//! metal its cursor flushes nothing.

use super::{Found, Subject, descriptor};
use crate::arena::{self, TABLE};
use crate::job::{Calls, Job, Leaf, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Result, anyhow};
use core::mem::ManuallyDrop;
use memory_addr::{PhysAddr, VirtAddr};
use page_table_multiarch::{
    MappingFlags, PageSize, PageTable64, PagingHandler, PagingMetaData, PagingResult,
};

struct Arm64;

impl PagingMetaData for Arm64 {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 48;
    const VA_MAX_BITS: usize = 48;

    type VirtAddr = VirtAddr;

    fn flush_tlb(_: Option<VirtAddr>) {}
}

/// Frames from the arena, at their own addresses.
struct Frames;

impl PagingHandler for Frames {
    #[inline(always)]
    fn alloc_frame() -> Option<PhysAddr> {
        let (first, _) = arena::take(1)?;
        Some(PhysAddr::from(first as usize))
    }

    fn alloc_frames(frames: usize, align: usize) -> Option<PhysAddr> {
        let one = frames == 1 && align == TABLE as usize;
        one.then(Self::alloc_frame).flatten()
    }

    #[inline(always)]
    fn dealloc_frame(_: PhysAddr) {}

    fn dealloc_frames(_: PhysAddr, _: usize) {}

    #[inline(always)]
    fn phys_to_virt(address: PhysAddr) -> VirtAddr {
        VirtAddr::from(address.as_usize())
    }
}

type Tree = PageTable64<Arm64, descriptor::Entry, Frames>;

/// Its trees, never dropped: that would visit every table, which no subject is timed for.
#[derive(Default)]
pub(super) struct Multiarch {
    trees: Vec<ManuallyDrop<Tree>>,
}

const READ_WRITE: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE);

#[inline(always)]
fn map_page(tree: &mut Tree, page: u64, output: u64) -> PagingResult {
    let output = PhysAddr::from(output as usize);
    let page = VirtAddr::from(page as usize);
    tree.cursor()
        .map(page, output, PageSize::Size4K, READ_WRITE)
}

impl Multiarch {
    /// Makes the job's trees.
    fn make(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let tree = Tree::try_new().map_err(failed)?;
            self.trees.push(ManuallyDrop::new(tree));
        }
        Ok(())
    }
}

impl Subject for Multiarch {
    fn name(&self) -> &'static str {
        "page_table_multiarch"
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        self.make(job)?;
        for tree in &mut self.trees {
            for offset in job.kept_leaves() {
                map_page(tree, VIRTUAL + offset, job.physical() + offset).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job)?;
        }
        let distance = (job.physical() - VIRTUAL) as usize;
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.cursor()
                    .map_region(
                        VirtAddr::from(VIRTUAL as usize),
                        |address| PhysAddr::from(address.as_usize() + distance),
                        job.bytes as usize,
                        READ_WRITE,
                        job.leaf != Leaf::Page4K,
                    )
                    .map_err(failed)?;
                continue;
            }
            for (page, output) in job.each() {
                map_page(tree, page, output).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let start = VirtAddr::from(VIRTUAL as usize);
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.cursor()
                    .protect_region(start, job.bytes as usize, MappingFlags::READ)
                    .map_err(failed)?;
                continue;
            }
            for (page, _) in job.each() {
                let page = VirtAddr::from(page as usize);
                tree.cursor()
                    .protect(page, MappingFlags::READ)
                    .map_err(failed)?;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let start = VirtAddr::from(VIRTUAL as usize);
        for tree in &mut self.trees {
            if job.calls == Calls::Range {
                tree.cursor()
                    .unmap_region(start, job.bytes as usize)
                    .map_err(failed)?;
                continue;
            }
            for (page, _) in job.each() {
                let page = VirtAddr::from(page as usize);
                tree.cursor().unmap(page).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let address = VirtAddr::from(address as usize);
        let (output, flags, size) = self.trees.get(tree)?.query(address).ok()?;
        Some(Found {
            output: output.as_usize() as u64,
            bytes: size as u64,
            writable: flags.contains(MappingFlags::WRITE),
        })
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}

fn failed(error: page_table_multiarch::PagingError) -> anyhow::Error {
    anyhow!("{error:?}")
}
