//! Memory that the kernel keeps for user space: arrays in whole blocks of frames, taken when they
//! are needed and given back when they are dropped. So the count of frames at the end sees each
//! one that was forgotten.
//!
//! On the host the frames are the allocator's, each test can let them run out, and counts them.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Values of one type, as many as it was made with.
pub(crate) struct Array<T> {
    block: Block,
    /// Values that are initialised: all, but while it is made.
    count: usize,
    values: core::marker::PhantomData<T>,
}

impl<T> Array<T> {
    /// `count` values, each as `make` says; `None` if there is no memory for them in one piece.
    pub(crate) fn new(count: usize, mut make: impl FnMut(usize) -> T) -> Option<Self> {
        // Frames are aligned to their own size, which is larger.
        const { assert!(align_of::<T>() <= SMALLEST_FRAME) };
        let bytes = size_of::<T>().checked_mul(count)?;
        let mut array = Self {
            block: Block::allocate(bytes.max(1))?,
            count: 0,
            values: core::marker::PhantomData,
        };
        let start = array.block.start().cast::<T>();
        for index in 0..count {
            // SAFETY: the block has room for `count` values from its start, aligned for them as
            // asserted, and is nobody else's.
            unsafe { start.add(index).write(make(index)) };
            array.count = index + 1;
        }
        Some(array)
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `count` values are initialised and the block is this array's own.
        unsafe {
            NonNull::slice_from_raw_parts(self.block.start().cast::<T>(), self.count).as_ref()
        }
    }
}

impl<T> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; borrowed mutably, nobody else looks.
        unsafe {
            NonNull::slice_from_raw_parts(self.block.start().cast::<T>(), self.count).as_mut()
        }
    }
}

impl<T> AsRef<[T]> for Array<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T> AsMut<[T]> for Array<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let values: *mut [T] = &raw mut **self;
        self.count = 0;
        // SAFETY: they were initialised, and with a count of 0 nobody reaches them again. The
        // block goes after this, as a field.
        unsafe { core::ptr::drop_in_place(values) };
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} values)", self.count)
    }
}

// SAFETY: the array owns its values, as a box would.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above; a shared array shares its values only.
unsafe impl<T: Sync> Sync for Array<T> {}

/// The smallest frame there is; nothing here needs a larger alignment.
const SMALLEST_FRAME: usize = granule::arch::PageSize::MIN.bytes() as usize;

#[cfg(target_os = "none")]
use frames::Block;

#[cfg(target_os = "none")]
mod frames {
    use crate::user::boxed;
    use core::ptr::NonNull;

    /// A block of frames, where the linear map shows it writable for as long as it is allocated.
    pub(super) struct Block {
        start: NonNull<u8>,
        bytes: usize,
    }

    impl Block {
        pub(super) fn allocate(bytes: usize) -> Option<Self> {
            let start = boxed::allocate(bytes)?;
            Some(Self { start, bytes })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            self.start
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            boxed::free(self.start, self.bytes);
        }
    }
}

#[cfg(not(target_os = "none"))]
use host::Block;

#[cfg(not(target_os = "none"))]
pub(crate) mod host {
    use super::SMALLEST_FRAME;
    use core::ptr::NonNull;
    use std::alloc::{Layout, alloc, dealloc};
    use std::cell::Cell;

    std::thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
        static HELD: Cell<usize> = const { Cell::new(0) };
    }

    /// This thread's next `allocations` succeed, and no more after them.
    pub(crate) fn run_out_after(allocations: usize) {
        LEFT.set(allocations);
    }

    /// Blocks that this thread allocated and has not given back.
    pub(crate) fn held() -> usize {
        HELD.get()
    }

    pub(super) struct Block {
        start: NonNull<u8>,
        layout: Layout,
    }

    impl Block {
        pub(super) fn allocate(bytes: usize) -> Option<Self> {
            let left = LEFT.get();
            if left == 0 {
                return None;
            }
            if left != usize::MAX {
                LEFT.set(left - 1);
            }
            let layout = Layout::from_size_align(bytes, SMALLEST_FRAME).ok()?;
            // SAFETY: the caller asks for one byte or more.
            let start = NonNull::new(unsafe { alloc(layout) })?;
            HELD.set(HELD.get() + 1);
            Some(Self { start, layout })
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            self.start
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            HELD.set(HELD.get().wrapping_sub(1));
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn values_are_made_changed_and_dropped_once() {
        let value = Rc::new(5);
        let before = host::held();
        let mut array = Array::new(1000, |index| (index, value.clone())).unwrap();
        assert_eq!(Rc::strong_count(&value), 1001);
        assert_eq!(array.len(), 1000);
        assert_eq!(array[999].0, 999);
        array[3].0 = 77;
        assert_eq!(
            array.iter().map(|(index, _)| index).sum::<usize>(),
            499_500 + 74
        );
        assert_eq!(host::held(), before + 1);
        drop(array);
        assert_eq!(Rc::strong_count(&value), 1);
        assert_eq!(host::held(), before);
    }

    #[test]
    fn what_is_too_much_is_none() {
        assert!(Array::new(usize::MAX, |_| 0u64).is_none());
        host::run_out_after(1);
        let first = Array::new(1, |_| 0u64);
        assert!(first.is_some());
        assert!(Array::new(1, |_| 0u64).is_none());
        host::run_out_after(usize::MAX);
        assert!(Array::new(0, |_| 0u64).is_some_and(|none| none.is_empty()));
    }
}
