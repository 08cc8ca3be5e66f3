//! page_table_multiarch: a cursor's region calls, or for single leaves its calls for those, a new
//! cursor for each call, four levels, arm64 descriptors. Its cursor keeps no place; it collects what
//! to flush.
//!
//! Its own description of arm64 compiles only there, so the same numbers stand here; off bare
//! metal its cursor flushes nothing.

use super::{Found, Subject, descriptor};
use crate::arena::{self, TABLE};
use crate::job::{Each, Job, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Result, anyhow};
use core::mem::ManuallyDrop;
use memory_addr::{PhysAddr, VirtAddr};
use page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler, PagingMetaData};

struct Arm64;

impl PagingMetaData for Arm64 {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 48;
    const VA_MAX_BITS: usize = 48;

    type VirtAddr = VirtAddr;

    fn flush_tlb(_: Option<VirtAddr>) {}
}

/// Frames from the arena, at their own addresses. Each size of leaf, and calls of one leaf and of more,
/// have code of their own, so that the compiler folds and inlines the crate's as it does where a user
/// has one place that calls it.
struct Frames<const ABOVE: u32, const ONE: bool>;

impl<const ABOVE: u32, const ONE: bool> PagingHandler for Frames<ABOVE, ONE> {
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

type Tree<const ABOVE: u32, const ONE: bool> =
    PageTable64<Arm64, descriptor::Entry, Frames<ABOVE, ONE>>;

/// Its trees of leaves so many levels above pages, for calls of one leaf or for others. They are never
/// dropped: that would visit every table, which no subject is timed for.
#[derive(Default)]
pub(super) struct Multiarch<const ABOVE: u32, const ONE: bool> {
    trees: Vec<ManuallyDrop<Tree<ABOVE, ONE>>>,
}

const READ_WRITE: MappingFlags = MappingFlags::READ.union(MappingFlags::WRITE);

impl<const ABOVE: u32, const ONE: bool> Multiarch<ABOVE, ONE> {
    const SIZE: PageSize = match ABOVE {
        0 => PageSize::Size4K,
        1 => PageSize::Size2M,
        _ => PageSize::Size1G,
    };

    /// Makes the job's trees.
    fn make(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let tree = Tree::try_new().map_err(failed)?;
            self.trees.push(ManuallyDrop::new(tree));
        }
        Ok(())
    }

    /// Maps what some calls name, in each tree.
    fn map_calls(&mut self, job: &Job, calls: &Each, bytes: u64) -> Result<()> {
        let distance = (VIRTUAL - job.physical()) as usize;
        for tree in &mut self.trees {
            for (start, output) in calls.clone() {
                let start = VirtAddr::from(start as usize);
                let mapped = if ONE {
                    let output = PhysAddr::from(output as usize);
                    tree.cursor().map(start, output, Self::SIZE, READ_WRITE)
                } else {
                    let output = |at: VirtAddr| PhysAddr::from(at.as_usize() - distance);
                    let bytes = bytes as usize;
                    tree.cursor()
                        .map_region(start, output, bytes, READ_WRITE, ABOVE > 0)
                };
                mapped.map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl<const ABOVE: u32, const ONE: bool> Subject for Multiarch<ABOVE, ONE> {
    fn name(&self) -> &'static str {
        "page_table_multiarch"
    }

    fn takes(&self, job: &Job) -> bool {
        let is_one = job.calls.leaves == 1;
        job.leaf.page_bytes() == TABLE && job.leaf.above() == ABOVE && is_one == ONE
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        self.make(job)?;
        self.map_calls(job, &job.kept(), job.leaf.bytes())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job)?;
        }
        self.map_calls(job, &job.each(), job.call_bytes())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        let bytes = job.call_bytes() as usize;
        for tree in &mut self.trees {
            for (start, _) in job.each() {
                let start = VirtAddr::from(start as usize);
                let protected = if ONE {
                    tree.cursor().protect(start, MappingFlags::READ).map(drop)
                } else {
                    tree.cursor()
                        .protect_region(start, bytes, MappingFlags::READ)
                };
                protected.map_err(failed)?;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let bytes = job.call_bytes() as usize;
        for tree in &mut self.trees {
            for (start, _) in job.each() {
                let start = VirtAddr::from(start as usize);
                let unmapped = if ONE {
                    tree.cursor().unmap(start).map(drop)
                } else {
                    tree.cursor().unmap_region(start, bytes)
                };
                unmapped.map_err(failed)?;
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

    fn query_each(&self, job: &Job) -> u64 {
        let mut sum = 0_u64;
        for tree in &self.trees {
            for (start, _) in job.each() {
                if let Ok((output, ..)) = tree.query(VirtAddr::from(start as usize)) {
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

fn failed(error: page_table_multiarch::PagingError) -> anyhow::Error {
    anyhow!("{error:?}")
}
