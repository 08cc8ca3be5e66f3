//! A table with an entry for each task, made once, with as many entries as the machine's memory allows.

#![allow(unsafe_code, reason = "a table that is made once")]

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The entries of tasks by place; none before [`open`](Self::open).
pub(crate) struct Table<T: Sync + 'static> {
    first: AtomicPtr<T>,
    count: AtomicUsize,
}

impl<T: Sync> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            first: AtomicPtr::new(core::ptr::dangling_mut()),
            count: AtomicUsize::new(0),
        }
    }

    /// Gives the table its entries; only the first call has an effect.
    pub(crate) fn open(&self, entries: &'static [T]) {
        if self.count.load(Ordering::Relaxed) == 0 {
            self.first
                .store(entries.as_ptr().cast_mut(), Ordering::Relaxed);
            self.count.store(entries.len(), Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn all(&self) -> &'static [T] {
        let count = self.count.load(Ordering::Acquire);
        // SAFETY: the pointer is dangling while the count is 0. Later both are those of the slice that `open` got,
        // once: the count was stored after the pointer, and neither changes again.
        unsafe { core::slice::from_raw_parts(self.first.load(Ordering::Relaxed), count) }
    }
}
