//! What the tests split: a free gigabyte, the tables that show it, and going through its splits.

use super::super::inject;
use crate::dev::console::println;
use crate::exception::conflict as conflicts;
use crate::mm::live::{self, Flush, Tree};
use crate::mm::map::Request;
use crate::mm::pages::Pages;
use crate::mm::supply::Supply;
use crate::mm::walker::Opened;
use granule::arch::bbm::BbmLevel;
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::{Counters, Leaves, PermissionChange, TableError};
use granule_kcore::frames::tables::Source;

/// The base-2 logarithm of the bytes that are worked on: with each page size at least one block.
const GROUND_SHIFT: u32 = 30;
/// Where the page that is changed lies, less one page.
pub(super) const PAGE_AT: u64 = 4 << 20;
/// Another change that was made before, if any: behind it lie leaves that differ in size with each.
const SPLIT_BEFORE: [Option<u64>; 4] = [None, Some(64 << 20), Some(8 << 20), Some(5 << 20)];

/// Free memory of which the linear map shows at least one block, and what is needed to change it.
pub(super) struct Ground<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) start: VirtualAddress,
}

impl<'r> Ground<'r> {
    pub(super) fn prepare(request: &'r Request<'r>) -> Result<Self, TableError> {
        inject::prepare()?;
        let size = request.geometry.page_size();
        let order = GROUND_SHIFT - size.shift();
        let frame = Pages.with(|frames| frames.allocate(order));
        let Some(frame) = frame else {
            panic!("there is no free gigabyte for it");
        };
        let physical = frame.address(size).0;
        let start = VirtualAddress(physical.wrapping_add(request.placement.distance()));
        let ground = Self { request, start };
        let leaf = ground.tables(None, &Counters::new())?.query(ground.page(0));
        let bytes = leaf.map_or(0, |leaf| leaf.bytes);
        assert!(
            bytes > size.bytes(),
            "the linear map shows {:?} in leaves of {bytes} bytes: boot with rodata=noalias",
            ground.page(0)
        );
        println!("@granule test.leaf_bytes={bytes}");
        Ok(ground)
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.request.geometry.page_size().bytes()
    }

    /// The page that is changed, or the one `pages` further.
    pub(super) fn page(&self, pages: u64) -> VirtualAddress {
        VirtualAddress(self.start.0 + PAGE_AT + (1 + pages) * self.page_bytes())
    }

    /// The kernel's tables, with pages from the page allocator, or from `own` on in the ground.
    pub(super) fn tables<'a>(
        &self,
        own: Option<PhysicalAddress>,
        counters: &'a Counters,
    ) -> Result<Opened<'a>, TableError> {
        let supply = own.map(|next| Supply::Range {
            next,
            page: self.page_bytes(),
        });
        let mut tables = live::open_unlocked(counters, Flush::Now, supply)?;
        // Conflicts are dealt with, which is what level 2 takes.
        tables.set_bbm(BbmLevel::Level2);
        Ok(tables)
    }

    /// Changes the page's permissions, for which everything larger is split.
    pub(super) fn change(
        &self,
        tables: &mut dyn Tree,
        writable: bool,
        executable: bool,
    ) -> Result<(), TableError> {
        let change = PermissionChange {
            writable: Some(writable),
            privileged_execute: Some(executable),
            ..PermissionChange::default()
        };
        let page = self.page(0);
        tables.protect(page, self.page_bytes(), change)
    }

    /// Splits, with each of the splits in turn looking like a conflict, which `work` must meet;
    /// `work` changes the page and says how many conflicts it has seen where they were to be.
    pub(super) fn each_split(
        &self,
        name: &str,
        own: Option<PhysicalAddress>,
        at_most: u64,
        work: &mut dyn FnMut(&mut dyn Tree) -> Result<u64, TableError>,
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
                    let change = PermissionChange {
                        writable: Some(false),
                        ..PermissionChange::default()
                    };
                    tables.protect(start, page, change)?;
                }
                inject::arm(number);
                let count = conflicts::count();
                seen += work(&mut *tables)?;
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
                self.restore(&mut *tables)?;
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

    /// Everything writable again and as large as it was.
    pub(super) fn restore(&self, tables: &mut dyn Tree) -> Result<(), TableError> {
        let bytes = 1 << GROUND_SHIFT;
        let change = PermissionChange {
            writable: Some(true),
            privileged_execute: Some(false),
            ..PermissionChange::default()
        };
        tables.protect(self.start, bytes, change)?;
        tables.merge(self.start, bytes, Leaves::LARGEST)?;
        Ok(())
    }
}

pub(super) fn read(address: VirtualAddress) -> u64 {
    // SAFETY: in the ground, which is ours, and mapped.
    unsafe { (address.0 as *const u64).read_volatile() }
}

pub(super) fn write(address: VirtualAddress, value: u64) {
    // SAFETY: in the ground, which is ours, mapped writable but for the changed page.
    unsafe { (address.0 as *mut u64).write_volatile(value) };
}

/// The conflicts that this CPU deals with in `work`.
pub(super) fn seen_in(work: impl FnOnce() -> Result<(), TableError>) -> Result<u64, TableError> {
    let before = conflicts::of_this_cpu();
    work()?;
    Ok(conflicts::of_this_cpu() - before)
}
