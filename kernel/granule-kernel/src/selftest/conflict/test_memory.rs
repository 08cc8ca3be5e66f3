//! The memory that the conflict tests split: a free gigabyte, its tables, and a loop over all splits.

use super::super::inject;
use crate::dev::console::println;
use crate::exception::conflict as conflicts;
use crate::mm::kernel_tables::{self, Flush, Tree};
use crate::mm::map::Request;
use crate::mm::pages::Pages;
use crate::mm::table_allocator::KernelTableAllocator;
use crate::mm::walker::Opened;
use granule::arch::bbm::BbmLevel;
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::{Holes, Leaves, PermissionChange, TableError};
use granule_kcore::frames::tables::Source;
use granule_trace::recorder::Counters;

/// Base-2 logarithm of the size in bytes: at least one block with each page size.
const SHIFT: u32 = 30;
/// Offset of the changed page, less one page.
pub(super) const PAGE_AT: u64 = 4 << 20;
/// Offset of an earlier change, if any. Each leaves leaves of other sizes around the page.
const SPLIT_BEFORE: [Option<u64>; 4] = [None, Some(64 << 20), Some(8 << 20), Some(5 << 20)];

pub(super) const READ_ONLY: PermissionChange = PermissionChange {
    writable: Some(false),
    ..PermissionChange::NONE
};

/// Free memory that the linear map shows with at least one block, and the inputs for changing it.
pub(super) struct TestMemory<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) start: VirtualAddress,
}

impl<'r> TestMemory<'r> {
    pub(super) fn prepare(request: &'r Request<'r>) -> Result<Self, TableError> {
        inject::prepare()?;
        let size = request.geometry.page_size();
        let order = SHIFT - size.shift();
        let frame = Pages.with(|frames| frames.allocate(order));
        let Some(frame) = frame else {
            panic!("there is no free gigabyte for it");
        };
        let physical = frame.address(size).0;
        let start = VirtualAddress(physical.wrapping_add(request.placement.distance()));
        let memory = Self { request, start };
        let leaf = memory.tables(None, &Counters::new())?.query(memory.page(0));
        let bytes = leaf.map_or(0, |leaf| leaf.bytes);
        assert!(
            bytes > size.bytes(),
            "the linear map shows {:?} in leaves of {bytes} bytes: boot with rodata=noalias",
            memory.page(0)
        );
        println!("@granule test.leaf_bytes={bytes}");
        Ok(memory)
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.request.geometry.page_size().bytes()
    }

    /// The changed page, or the page `pages` further.
    pub(super) fn page(&self, pages: u64) -> VirtualAddress {
        VirtualAddress(self.start.0 + PAGE_AT + (1 + pages) * self.page_bytes())
    }

    /// The kernel's tables, with pages from the page allocator, or from address `own` in the memory.
    pub(super) fn tables<'a>(
        &self,
        own: Option<PhysicalAddress>,
        counters: &'a Counters,
    ) -> Result<Opened<'a>, TableError> {
        let allocator = own.map(|next| KernelTableAllocator::Range {
            next,
            page: self.page_bytes(),
        });
        let mut tables = kernel_tables::open_unlocked(counters, Flush::Now, allocator)?;
        // The kernel handles conflicts, as level 2 requires.
        // SAFETY: the test alone uses the memory.
        unsafe { tables.set_bbm(BbmLevel::Level2) };
        Ok(tables)
    }

    /// Changes the page's permissions, which splits every larger leaf.
    pub(super) fn change(
        &self,
        tables: &mut Tree<'_>,
        writable: bool,
        executable: bool,
    ) -> Result<(), TableError> {
        let change = PermissionChange {
            writable: Some(writable),
            privileged_execute: Some(executable),
            ..PermissionChange::NONE
        };
        let page = self.page(0);
        tables.protect(page, self.page_bytes(), change, Holes::Refuse)
    }

    /// Makes the change again and again, each time with another of its splits injected as a conflict. `work`
    /// changes the page, must cause the conflict, and returns how many conflicts it saw in the right place.
    pub(super) fn each_split(
        &self,
        name: &str,
        own: Option<PhysicalAddress>,
        at_most: u64,
        work: &mut dyn FnMut(&mut Tree<'_>) -> Result<u64, TableError>,
    ) -> Result<(), TableError> {
        let counters = Counters::new();
        let mut tables = self.tables(own, &counters)?;
        let page = self.page_bytes();
        let (mut injected, mut seen) = (0, 0);
        let whole = tables.query(self.page(0));
        for before in SPLIT_BEFORE {
            for number in 1.. {
                if let Some(at) = before {
                    let start = VirtualAddress(self.start.0 + at + page);
                    tables.protect(start, page, READ_ONLY, Holes::Refuse)?;
                }
                inject::arm(number);
                let count = conflicts::count();
                seen += work(&mut tables)?;
                let count = conflicts::count() - count;
                assert!(
                    !inject::is_pending(),
                    "{name}: split {number} (before: {before:?}) was made to look like a conflict, which nobody met"
                );
                let met = inject::is_mended();
                let fits = if met { 1..=at_most } else { 0..=0 };
                assert!(
                    fits.contains(&count),
                    "{name}: {count} conflicts at split {number} (before: {before:?}), expected {fits:?}"
                );
                inject::disarm();
                self.restore(&mut tables)?;
                assert_eq!(
                    tables.query(self.page(0)),
                    whole,
                    "{name}: the leaf after it was merged"
                );
                if !met {
                    break;
                }
                injected += 1;
            }
        }
        assert!(injected > 0, "{name}: nothing was split");
        println!("@granule test.conflict.{name}.splits={injected}");
        println!("@granule test.conflict.{name}.met={seen}");
        Ok(())
    }

    /// Makes everything writable and merges it to the original sizes.
    pub(super) fn restore(&self, tables: &mut Tree<'_>) -> Result<(), TableError> {
        let bytes = 1 << SHIFT;
        let change = PermissionChange {
            writable: Some(true),
            privileged_execute: Some(false),
            ..PermissionChange::NONE
        };
        tables.protect(self.start, bytes, change, Holes::Refuse)?;
        tables.merge(self.start, bytes, Leaves::LARGEST)?;
        Ok(())
    }
}

pub(super) fn read(address: VirtualAddress) -> u64 {
    // SAFETY: in the memory, which this test owns, and mapped.
    unsafe { (address.0 as *const u64).read_volatile() }
}

pub(super) fn write(address: VirtualAddress, value: u64) {
    // SAFETY: in the memory, which this test owns, and mapped writable except the changed page.
    unsafe { (address.0 as *mut u64).write_volatile(value) };
}

/// The number of conflicts that this CPU handles during `work`.
pub(super) fn seen_in(work: impl FnOnce() -> Result<(), TableError>) -> Result<u64, TableError> {
    let before = conflicts::of_this_cpu();
    work()?;
    Ok(conflicts::of_this_cpu() - before)
}
