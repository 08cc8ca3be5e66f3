//! x86_64: `OffsetPageTable`, which has calls for single pages and blocks alone, so a range is a
//! loop of them. Its descriptors are those of its own architecture: four levels of 4K, with the
//! same sizes of leaves. The flush that each call returns is ignored; the crate is built without
//! instructions. Empty tables stay, as no call but `clean_up_addr_range` frees them.

#![allow(
    unsafe_code,
    reason = "tables in the arena, by the subject's interface"
)]

use super::{Found, Subject};
use crate::arena;
use crate::job::{Job, Leaf, VIRTUAL};
use alloc::vec::Vec;
use anyhow::{Context, Result, anyhow};
use core::fmt::Debug;
use x86_64::structures::paging::mapper::{
    FlagUpdateError, MapToError, MappedFrame, MapperFlush, TranslateResult, UnmapError,
};
use x86_64::structures::paging::{
    FrameAllocator, Mapper, OffsetPageTable, Page, PageSize, PageTable, PageTableFlags, PhysFrame,
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

type Tree = OffsetPageTable<'static>;

/// Its trees.
#[derive(Default)]
pub(super) struct X86_64 {
    trees: Vec<Tree>,
}

const READ: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::NO_EXECUTE);
const READ_WRITE: PageTableFlags = READ.union(PageTableFlags::WRITABLE);

/// A new, empty tree.
fn tree() -> Result<Tree> {
    let (root, _) = arena::take(1).context("the arena is empty")?;
    let root = core::ptr::with_exposed_provenance_mut::<PageTable>(root as usize);
    // SAFETY: a page of the arena that nobody else uses until the arena is reset; the trees are
    // forgotten before that.
    let root = unsafe {
        root.write(PageTable::new());
        &mut *root
    };
    // SAFETY: tables are at their addresses, in this program's own memory.
    Ok(unsafe { OffsetPageTable::new(root, VirtAddr::new(0)) })
}

#[inline(always)]
fn page<S: PageSize>(address: u64) -> Page<S> {
    Page::containing_address(VirtAddr::new(address))
}

#[inline(always)]
fn map<S: PageSize + Debug>(tree: &mut Tree, address: u64, output: u64) -> Result<()>
where
    Tree: Mapper<S>,
{
    let frame = PhysFrame::containing_address(PhysAddr::new(output));
    // SAFETY: no CPU walks these tables.
    let mapped: Result<MapperFlush<S>, MapToError<S>> =
        unsafe { tree.map_to(page(address), frame, READ_WRITE, &mut Frames) };
    mapped.map_err(failed)?.ignore();
    Ok(())
}

fn map_all<S: PageSize + Debug>(tree: &mut Tree, job: &Job) -> Result<()>
where
    Tree: Mapper<S>,
{
    for (address, output) in job.each() {
        map::<S>(tree, address, output)?;
    }
    Ok(())
}

fn protect_all<S: PageSize>(tree: &mut Tree, job: &Job) -> Result<()>
where
    Tree: Mapper<S>,
{
    for (address, _) in job.each() {
        // SAFETY: no CPU walks these tables.
        let updated: Result<MapperFlush<S>, FlagUpdateError> =
            unsafe { tree.update_flags(page(address), READ) };
        updated.map_err(failed)?.ignore();
    }
    Ok(())
}

fn unmap_all<S: PageSize>(tree: &mut Tree, job: &Job) -> Result<()>
where
    Tree: Mapper<S>,
{
    for (address, _) in job.each() {
        let unmapped: Result<_, UnmapError> = tree.unmap(page::<S>(address));
        let (_, flush) = unmapped.map_err(failed)?;
        flush.ignore();
    }
    Ok(())
}

impl Subject for X86_64 {
    fn name(&self) -> &'static str {
        "x86_64"
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        for _ in 0..job.trees {
            let mut tree = tree()?;
            for offset in job.kept_leaves() {
                map::<Size4KiB>(&mut tree, VIRTUAL + offset, job.physical() + offset)?;
            }
            self.trees.push(tree);
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            for _ in 0..job.trees {
                self.trees.push(tree()?);
            }
        }
        for tree in &mut self.trees {
            match job.leaf {
                Leaf::Page4K => map_all::<Size4KiB>(tree, job)?,
                Leaf::Block2M => map_all::<Size2MiB>(tree, job)?,
                Leaf::Block1G => map_all::<Size1GiB>(tree, job)?,
            }
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            match job.leaf {
                Leaf::Page4K => protect_all::<Size4KiB>(tree, job)?,
                Leaf::Block2M => protect_all::<Size2MiB>(tree, job)?,
                Leaf::Block1G => protect_all::<Size1GiB>(tree, job)?,
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            match job.leaf {
                Leaf::Page4K => unmap_all::<Size4KiB>(tree, job)?,
                Leaf::Block2M => unmap_all::<Size2MiB>(tree, job)?,
                Leaf::Block1G => unmap_all::<Size1GiB>(tree, job)?,
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

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}

fn failed(error: impl Debug) -> anyhow::Error {
    anyhow!("{error:?}")
}
