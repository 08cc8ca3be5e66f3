//! Pages for the kernel's tables once it is up: from the page allocator, and back to it, those that
//! the boot took elsewhere included.

use super::hook::refuses_allocation;
use super::kernel::Kernel;
use super::pages::{Pages, tell_allocated, tell_freed};
use granule::table::{FreedTable, TableAllocator, TableRun};
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::{Source, Tables};

/// Gives and takes back pages for the kernel's tables.
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
            // SAFETY: the caller's promise.
            inner: unsafe { Tables::new(Pages) },
            kernel,
        }
    }
}

// SAFETY: gives what `Tables` gives, once it is valid where free pages are not.
unsafe impl TableAllocator for TablePages<'_> {
    fn reserve(&mut self, tables: usize) -> bool {
        if tables as u64 > self.inner.held() && refuses_allocation() {
            return false;
        }
        self.inner.reserve(tables)
    }

    fn allocate(&mut self, most: usize) -> Option<TableRun> {
        if self.inner.held() == 0 && refuses_allocation() {
            return None;
        }
        let run = self.inner.allocate(most)?;
        let bytes = run.count as u64 * self.kernel.page();
        tell_allocated(run.first, bytes);
        Some(run)
    }

    fn free(&mut self, table: FreedTable) {
        let page = self.kernel.page();
        let frame = Frame::containing(table.address(), self.kernel.geometry.page_size());
        let given = Pages.with(|frames| frames.is_given(frame));
        // Before another CPU can get it.
        tell_freed(table.address(), page);
        if given {
            self.inner.free(table);
        } else {
            // The boot had it from early memory, which is no more, or from the static pool. Outside
            // of all spans it stays reserved.
            let _ = Pages.with(|frames| frames.add_range(frame, 1));
        }
    }
}
