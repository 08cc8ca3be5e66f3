//! Allocates the kernel's table pages from the page allocator after the boot, and frees them to it,
//! including tables that the boot allocated elsewhere.

#![allow(unsafe_code, reason = "frames for tables have no other owner")]

use super::hook::refuses_allocation;
use super::kernel::Kernel;
use super::pages::{Pages, notify_allocated, notify_freed};
use granule::table::{FreedTable, TableRun};
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::{Source, Tables};

/// The allocator of the kernel's table pages.
pub(crate) struct TablePages<'k> {
    inner: Tables<Pages>,
    kernel: &'k Kernel,
}

impl<'k> TablePages<'k> {
    /// # Safety
    ///
    /// As for [`Tables::new`], with the kernel's own pages.
    pub(crate) const unsafe fn new(kernel: &'k Kernel) -> Self {
        Self {
            // SAFETY: the caller keeps the rules of `Tables::new`.
            inner: unsafe { Tables::new(Pages) },
            kernel,
        }
    }

    pub(crate) fn reserve(&mut self, tables: usize) -> bool {
        if tables as u64 > self.inner.held() && refuses_allocation() {
            return false;
        }
        self.inner.reserve(tables)
    }

    /// See [`Tables::release_reserved`].
    pub(super) fn release_reserved(&mut self) {
        self.inner.release_reserved();
    }

    /// See [`Tables::allocate_run`]. Where free pages are invalid, these are made valid first.
    pub(crate) fn allocate_run(&mut self, most: usize) -> Option<TableRun> {
        if self.inner.held() == 0 && refuses_allocation() {
            return None;
        }
        let run = self.inner.allocate_run(most)?;
        let bytes = run.count as u64 * self.kernel.page();
        notify_allocated(run.first, bytes);
        Some(run)
    }

    pub(crate) fn free(&mut self, table: FreedTable) {
        let page = self.kernel.page();
        let frame = Frame::containing(table.address(), self.kernel.geometry.page_size());
        let given = Pages.with(|frames| frames.is_given(frame));
        // Before another CPU can allocate the page.
        notify_freed(table.address(), page);
        if given {
            self.inner.free(table);
        } else {
            // The boot took the page from early memory, which is gone, or from the static pool. A
            // page outside all spans stays reserved.
            let _ = Pages.with(|frames| frames.add_range(frame, 1));
        }
    }
}
