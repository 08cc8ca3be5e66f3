//! aarch64-paging: `Mapping` over a `Translation` of our own, for its two ready-made ones take
//! tables from the global allocator.
//!
//! Blocks are left to it, pages requested by its constraint; a range is unmapped as documented, by
//! mapping it with flags that are not valid. It has no calls for single leaves: a page is a range of
//! one. Nor has it one for a query: a visit of one page is what comes nearest.

#![allow(unsafe_code, reason = "tables in the arena, as the subject has them")]

use super::{Found, Subject};
use crate::arena::{self, TABLE};
use crate::job::{Each, Job};
use aarch64_paging::Mapping;
use aarch64_paging::descriptor::{Descriptor, El1Attributes, PhysicalAddress, UpdatableDescriptor};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion, PageTable, Translation, VaRange};
use alloc::vec::Vec;
use anyhow::{Context, Result};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Tables from the arena, at their own addresses.
struct Pages;

impl Pages {
    fn table(address: u64) -> NonNull<PageTable<El1Attributes>> {
        let pointer = core::ptr::with_exposed_provenance_mut(address as usize);
        // Address 0 is never in the arena; a dangling pointer stands for it.
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }
}

impl Translation<El1Attributes> for Pages {
    /// The trait requires a zeroed table and has no way to report that none is left: the
    /// arena is as large as the job needs.
    #[inline(always)]
    fn allocate_table(&mut self) -> (NonNull<PageTable<El1Attributes>>, PhysicalAddress) {
        let Some((address, _)) = arena::take(1) else {
            panic!("the arena is too small for aarch64-paging")
        };
        let table = Self::table(address);
        // SAFETY: a page of the arena that nobody uses.
        unsafe { table.cast::<u8>().write_bytes(0, TABLE as usize) };
        (table, PhysicalAddress(address as usize))
    }

    #[inline(always)]
    unsafe fn deallocate_table(&mut self, _: NonNull<PageTable<El1Attributes>>) {}

    #[inline(always)]
    fn physical_to_virtual(&self, pa: PhysicalAddress) -> NonNull<PageTable<El1Attributes>> {
        Self::table(pa.0 as u64)
    }
}

/// A tree that is never dropped: that would free every table, which no subject is timed for.
type Tree = ManuallyDrop<Mapping<Pages, El1And0>>;

/// Its trees.
pub(super) struct Aarch64Paging {
    live: bool,
    trees: Vec<Tree>,
}

impl Aarch64Paging {
    /// With `live`, the mapping is marked active before anything is mapped.
    pub(super) const fn new(live: bool) -> Self {
        let trees = Vec::new();
        Self { live, trees }
    }

    /// Makes the job's trees.
    fn make(&mut self, job: &Job) {
        for _ in 0..job.trees {
            let tree = Mapping::with_asid_and_va_range(Pages, 0, 0, El1And0, VaRange::Lower);
            if self.live {
                tree.mark_active();
            }
            self.trees.push(ManuallyDrop::new(tree));
        }
    }
}

const ATTRIBUTES: El1Attributes = El1Attributes::VALID
    .union(El1Attributes::ACCESSED)
    .union(El1Attributes::INNER_SHAREABLE)
    .union(El1Attributes::PXN)
    .union(El1Attributes::UXN);

/// The region of `bytes` bytes at an address.
#[inline(always)]
const fn region(start: u64, bytes: u64) -> MemoryRegion {
    MemoryRegion::new(start as usize, (start + bytes) as usize)
}

/// Maps what each call names. Pages are asked for, blocks are left to it.
fn map_each(tree: &mut Tree, job: &Job, calls: Each, bytes: u64) -> Result<()> {
    let constraints = if job.leaf.is_page() {
        Constraints::NO_BLOCK_MAPPINGS
    } else {
        Constraints::empty()
    };
    for (start, output) in calls {
        let (range, output) = (region(start, bytes), PhysicalAddress(output as usize));
        tree.map_range(&range, output, ATTRIBUTES, constraints)
            .context("map_range")?;
    }
    Ok(())
}

fn read_only(
    _: &MemoryRegion,
    entry: &mut UpdatableDescriptor<El1Attributes>,
) -> core::result::Result<(), ()> {
    entry.modify_flags(El1Attributes::READ_ONLY, El1Attributes::empty())
}

impl Subject for Aarch64Paging {
    fn name(&self) -> &'static str {
        if self.live {
            "aarch64-paging, live"
        } else {
            "aarch64-paging"
        }
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        self.make(job);
        for tree in &mut self.trees {
            map_each(tree, job, job.kept(), job.leaf.bytes())?;
        }
        Ok(())
    }

    fn map(&mut self, job: &Job) -> Result<()> {
        if self.trees.is_empty() {
            self.make(job);
        }
        for tree in &mut self.trees {
            map_each(tree, job, job.each(), job.call_bytes())?;
        }
        Ok(())
    }

    fn protect(&mut self, job: &Job) -> Result<()> {
        for tree in &mut self.trees {
            for (start, _) in job.each() {
                tree.modify_range(&region(start, job.call_bytes()), &read_only)
                    .context("modify_range")?;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, job: &Job) -> Result<()> {
        let (nowhere, invalid) = (PhysicalAddress(0), El1Attributes::empty());
        for tree in &mut self.trees {
            for (start, _) in job.each() {
                let range = region(start, job.call_bytes());
                tree.map_range(&range, nowhere, invalid, Constraints::empty())
                    .context("map_range without VALID")?;
            }
        }
        Ok(())
    }

    fn query(&self, tree: usize, address: u64) -> Option<Found> {
        let start = address as usize;
        let mut found = None;
        let page = MemoryRegion::new(start, start + TABLE as usize);
        let mut visit = |_: &MemoryRegion, entry: &Descriptor<El1Attributes>, level: usize| {
            let bytes = 1_u64 << (39 - 9 * level);
            let flags = entry.flags();
            found = flags.contains(El1Attributes::VALID).then(|| Found {
                output: entry.output_address().0 as u64 + (address & (bytes - 1)),
                bytes,
                writable: !flags.contains(El1Attributes::READ_ONLY),
            });
            Ok(())
        };
        self.trees.get(tree)?.walk_range(&page, &mut visit).ok()?;
        found
    }

    fn query_each(&self, job: &Job) -> u64 {
        let mut sum = 0_u64;
        for tree in &self.trees {
            for (start, _) in job.each() {
                let mut visit =
                    |_: &MemoryRegion, entry: &Descriptor<El1Attributes>, level: usize| {
                        let within = start & ((1_u64 << (39 - 9 * level)) - 1);
                        if entry.flags().contains(El1Attributes::VALID) {
                            sum = sum.wrapping_add(entry.output_address().0 as u64 + within);
                        }
                        Ok(())
                    };
                // A failure leaves the sum wrong.
                let _ = tree.walk_range(&region(start, TABLE), &mut visit);
            }
        }
        sum
    }

    fn forget(&mut self, trees: usize) {
        self.trees.clear();
        self.trees.reserve(trees);
    }
}
