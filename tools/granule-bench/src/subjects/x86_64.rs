//! x86_64: `MappedPageTable` with the offset of `OffsetPageTable`. It has calls for single pages and
//! blocks alone, so more of them are a loop. Its descriptors are those of its own architecture: four
//! levels of 4K, with the same sizes of leaves. The flush that each call returns is ignored; the
//! crate is built without instructions. Empty tables stay, as no call but `clean_up_addr_range` frees
//! them.

#![allow(unsafe_code, reason = "tables in the arena, as the subject has them")]

use super::{Found, Subject};
use crate::arena::{self, TABLE};
use crate::job::{Each, Job};
use alloc::vec::Vec;
use anyhow::{Context, Result, anyhow};
use core::fmt::Debug;
use x86_64::structures::paging::mapper::{
    FlagUpdateError, MapToError, MappedFrame, MapperFlush, PageTableFrameMapping, TranslateResult,
    UnmapError,
};
use x86_64::structures::paging::{
    FrameAllocator, MappedPageTable, Mapper, Page, PageSize, PageTable, PageTableFlags, PhysFrame,
    Size1GiB, Size2MiB, Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

/// Frames from the arena, at their own addresses.
struct Frames;

// SAFETY: the arena hands out 4K pages that nobody else uses until it is reset.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    #[inline(always)]
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let (first, _) = arena::take(1)?;
        Some(PhysFrame::containing_address(PhysAddr::new(first)))
    }
}

/// Where tables are, as in `OffsetPageTable`. Calls of one leaf and of more each have code of their
/// own, so that the compiler inlines the crate's as it does where a user has one place that calls it.
struct Offset<const ONE: bool>(VirtAddr);

// SAFETY: tables are at the offset 0, in this program's own memory.
unsafe impl<const ONE: bool> PageTableFrameMapping for Offset<ONE> {
    fn frame_to_pointer(&self, frame: PhysFrame) -> *mut PageTable {
        let address = self.0 + frame.start_address().as_u64();
        core::ptr::with_exposed_provenance_mut(address.as_u64() as usize)
    }
}

type Tree<const ONE: bool> = MappedPageTable<'static, Offset<ONE>>;

/// Its trees, for calls of one leaf or for others.
#[derive(Default)]
pub(super) struct X86_64<const ONE: bool> {
    trees: Vec<Tree<ONE>>,
}

const READ: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::NO_EXECUTE);
const READ_WRITE: PageTableFlags = READ.union(PageTableFlags::WRITABLE);

#[inline(always)]
fn page<S: PageSize>(address: u64) -> Page<S> {
    Page::containing_address(VirtAddr::new(address))
}

/// Maps each leaf of calls of so many bytes.
fn map_all<S: PageSize + Debug, const ONE: bool>(
    tree: &mut Tree<ONE>,
    calls: Each,
    bytes: u64,
) -> Result<()>
where
    Tree<ONE>: Mapper<S>,
{
    for (start, output) in calls {
        let mut offset = 0;
        loop {
            let frame = PhysFrame::containing_address(PhysAddr::new(output + offset));
            let page = page(start + offset);
            // SAFETY: no CPU walks these tables.
            let mapped: Result<MapperFlush<S>, MapToError<S>> =
                unsafe { tree.map_to(page, frame, READ_WRITE, &mut Frames) };
            mapped.map_err(failed)?.ignore();
            offset += S::SIZE;
            if ONE || offset == bytes {
                break;
            }
        }
    }
    Ok(())
}

fn protect_all<S: PageSize, const ONE: bool>(tree: &mut Tree<ONE>, job: &Job) -> Result<()>
where
    Tree<ONE>: Mapper<S>,
{
    for (start, _) in job.each() {
        let mut offset = 0;
        loop {
            // SAFETY: no CPU walks these tables.
            let updated: Result<MapperFlush<S>, FlagUpdateError> =
                unsafe { tree.update_flags(page(start + offset), READ) };
            updated.map_err(failed)?.ignore();
            offset += S::SIZE;
            if ONE || offset == job.call_bytes() {
                break;
            }
        }
    }
    Ok(())
}

fn unmap_all<S: PageSize, const ONE: bool>(tree: &mut Tree<ONE>, job: &Job) -> Result<()>
where
    Tree<ONE>: Mapper<S>,
{
    for (start, _) in job.each() {
        let mut offset = 0;
        loop {
            let unmapped: Result<_, UnmapError> = tree.unmap(page::<S>(start + offset));
            let (_, flush) = unmapped.map_err(failed)?;
            flush.ignore();
            offset += S::SIZE;
            if ONE || offset == job.call_bytes() {
                break;
            }
        }
    }
    Ok(())
}

impl<const ONE: bool> X86_64<ONE> {
    /// Makes the job's trees.
    fn make(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let (root, _) = arena::take(1).context("the arena is empty")?;
            let root = core::ptr::with_exposed_provenance_mut::<PageTable>(root as usize);
            // SAFETY: a page of the arena that nobody else uses until the arena is reset; the trees
            // are forgotten before that.
            let root = unsafe {
                root.write(PageTable::new());
                &mut *root
            };
            // SAFETY: the mapping says where tables are.
            let tree = unsafe { MappedPageTable::new(root, Offset(VirtAddr::new(0))) };
            self.trees.push(tree);
        }
        Ok(())
    }

    /// Maps what some calls name, in each tree.
    fn map_calls(&mut self, job: &Job, calls: &Each, bytes: u64) -> Result<()> {
        for tree in &mut self.trees {
            match job.leaf.above() {
                0 => map_all::<Size4KiB, ONE>(tree, calls.clone(), bytes)?,
                1 => map_all::<Size2MiB, ONE>(tree, calls.clone(), bytes)?,
                _ => map_all::<Size1GiB, ONE>(tree, calls.clone(), bytes)?,
            }
        }
        Ok(())
    }
}

impl<const ONE: bool> Subject for X86_64<ONE> {
    fn name(&self) -> &'static str {
        "x86_64"
    }

    fn takes(&self, job: &Job) -> bool {
        job.leaf.page_bytes() == TABLE && (job.calls.leaves == 1) == ONE
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
        for tree in &mut self.trees {
            match job.leaf.above() {
                0 => protect_all::<Size4KiB, ONE>(tree, job)?,
                1 => protect_all::<Size2MiB, ONE>(tree, job)?,
                _ => protect_all::<Size1GiB, ONE>(tree, job)?,
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            match job.leaf.above() {
                0 => unmap_all::<Size4KiB, ONE>(tree, job)?,
                1 => unmap_all::<Size2MiB, ONE>(tree, job)?,
                _ => unmap_all::<Size1GiB, ONE>(tree, job)?,
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let found = self.trees.get(tree)?.translate(VirtAddr::new(address));
        let TranslateResult::Mapped {
            frame,
            offset,
            flags,
        } = found
        else {
            return None;
        };
        let bytes = match frame {
            MappedFrame::Size4KiB(_) => Size4KiB::SIZE,
            MappedFrame::Size2MiB(_) => Size2MiB::SIZE,
            MappedFrame::Size1GiB(_) => Size1GiB::SIZE,
        };
        Some(Found {
            output: frame.start_address().as_u64() + offset,
            bytes,
            writable: flags.contains(PageTableFlags::WRITABLE),
        })
    }

    fn query_each(&self, job: &Job) -> u64 {
        let mut sum = 0_u64;
        for tree in &self.trees {
            for (address, _) in job.each() {
                let output = tree.translate_addr(VirtAddr::new(address));
                sum = sum.wrapping_add(output.map_or(0, PhysAddr::as_u64));
            }
        }
        sum
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}

fn failed(error: impl Debug) -> anyhow::Error {
    anyhow!("{error:?}")
}
