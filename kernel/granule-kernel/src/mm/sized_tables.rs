//! Table pages of programs whose page size may be another than the kernel's, from [`sized`].

#![allow(unsafe_code, reason = "frames for tables have no other owner")]

use super::environment::TableSource;
use super::hook::refuses_allocation;
use super::kernel::Kernel;
use super::kernel_tables::pointer;
use super::sized;
use super::table_pages::TablePages;
use granule::arch::PageSize;
use granule::table::{FreedTable, Reservation, TableRun};

/// The allocator of table pages of any size.
pub(crate) enum SizedTables {
    /// Of the kernel's page size.
    Frames(TablePages<'static>),
    /// Of another page size. Other CPUs may take any page that is not allocated, so nothing is reserved here.
    Others(PageSize),
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
            Self::Others(size)
        }
    }
}

// SAFETY: frames have one owner, and the caller of `new` promises it for those of the kernel's size.
unsafe impl TableSource for SizedTables {
    #[inline(never)]
    fn reserve(&mut self, tables: usize) -> Reservation {
        match self {
            Self::Frames(frames) => frames.reserve(tables).into(),
            Self::Others(_) => Reservation::Unsupported,
        }
    }

    #[inline(never)]
    fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        match self {
            Self::Frames(frames) => frames.allocate_run(most),
            Self::Others(_) if refuses_allocation() => None,
            Self::Others(size) => {
                let page = sized::allocate_one(*size)?;
                if pointer(page).is_none() {
                    sized::release(*size, page, 1);
                    return None;
                }
                Some(TableRun {
                    first: page,
                    count: 1,
                })
            }
        }
    }

    #[inline(never)]
    fn free(&mut self, table: FreedTable) {
        match self {
            Self::Frames(frames) => frames.free(table),
            Self::Others(size) => sized::release(*size, table.address(), 1),
        }
    }
}
