//! Table pages of programs whose page size may be another than the kernel's, from [`sized`].

#![allow(
    unsafe_code,
    reason = "the chain of reserved table pages, through the linear map"
)]

use super::hook::refuses_allocation;
use super::kernel::Kernel;
use super::kernel_tables::pointer;
use super::sized;
use super::table_pages::TablePages;
use granule::arch::{PageSize, PhysicalAddress};
use granule::table::{FreedTable, TableAllocator, TableRun};

/// The allocator of table pages of any size.
pub(crate) enum SizedTables {
    /// Of the kernel's page size.
    Frames(TablePages<'static>),
    /// Of another page size.
    Others(Others),
}

impl SizedTables {
    /// # Safety
    ///
    /// As for [`TablePages::new`].
    pub(crate) unsafe fn new(kernel: &'static Kernel, size: PageSize) -> Self {
        if size == kernel.geometry.page_size() {
            // SAFETY: the caller keeps the rules.
            Self::Frames(unsafe { TablePages::new(kernel) })
        } else {
            Self::Others(Others {
                size,
                held: 0,
                first: PhysicalAddress(0),
                last: PhysicalAddress(0),
            })
        }
    }
}

// SAFETY: both kinds answer for their pages.
unsafe impl TableAllocator for SizedTables {
    #[inline(never)]
    fn reserve(&mut self, tables: usize) -> bool {
        match self {
            Self::Frames(frames) => frames.reserve(tables),
            Self::Others(others) => others.reserve(tables as u64),
        }
    }

    #[inline(never)]
    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        match self {
            Self::Frames(frames) => frames.allocate(most),
            Self::Others(others) => others.allocate(most as u64),
        }
    }

    #[inline(never)]
    fn free(&mut self, table: FreedTable) {
        match self {
            Self::Frames(frames) => frames.free(table),
            Self::Others(others) => sized::release(others.size, table.address(), 1),
        }
    }
}

/// Table pages of another size than the kernel's. Other CPUs may take any page that is not allocated, so a
/// reserved page is one that is allocated already. Each keeps the address of the next in its first word.
pub(crate) struct Others {
    size: PageSize,
    /// Reserved pages, and the first and last of them.
    held: u64,
    first: PhysicalAddress,
    last: PhysicalAddress,
}

impl Others {
    fn reserve(&mut self, tables: u64) -> bool {
        if tables > self.held && refuses_allocation() {
            return false;
        }
        let before = self.held;
        while self.held < tables {
            let Some(page) = sized::allocate_one(self.size).filter(|page| pointer(*page).is_some())
            else {
                // Those that came last, with or without reservations that were left over.
                while self.held > before && self.take().is_some_and(|page| self.give(page)) {}
                return false;
            };
            if self.held > 0 {
                link(self.last, page);
            } else {
                self.first = page;
            }
            self.last = page;
            self.held += 1;
        }
        true
    }

    /// Gives a page back to its memory.
    fn give(&self, page: PhysicalAddress) -> bool {
        sized::release(self.size, page, 1);
        true
    }

    /// The first reserved page, which is reserved no more.
    fn take(&mut self) -> Option<PhysicalAddress> {
        let page = self.first;
        self.held = self.held.checked_sub(1)?;
        if self.held > 0 {
            self.first = next(page)?;
        }
        Some(page)
    }

    fn allocate(&mut self, most: u64) -> Option<TableRun> {
        if most == 0 || (self.held == 0 && !self.reserve(1)) {
            return None;
        }
        let first = self.take()?;
        let mut count = 1;
        while count < most
            && self.held > 0
            && self.first.0 == first.0 + (count << self.size.shift())
            && self.take().is_some()
        {
            count += 1;
        }
        let count = count as usize;
        Some(TableRun { first, count })
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        while let Some(page) = self.take() {
            self.give(page);
        }
    }
}

/// Stores the address of the next reserved page.
fn link(page: PhysicalAddress, next: PhysicalAddress) {
    if let Some(word) = pointer(page) {
        // SAFETY: a reserved page is this allocator's, and the linear map shows it writable.
        unsafe { word.cast::<u64>().write(next.0) };
    }
}

/// The address that [`link`] stored.
fn next(page: PhysicalAddress) -> Option<PhysicalAddress> {
    // SAFETY: as in `link`, which wrote the word.
    Some(PhysicalAddress(unsafe {
        pointer(page)?.cast::<u64>().read()
    }))
}
