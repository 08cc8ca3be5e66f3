//! Several values in their own block of frames.

use super::{Block, Frames, SMALLEST_FRAME};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Values of one type, at most as many as it was made with.
pub struct Array<T, F: Frames> {
    block: Block<F>,
    /// The initialised values: all of them, except during construction or after a truncation.
    count: usize,
    values: PhantomData<T>,
}

impl<T, F: Frames> Array<T, F> {
    /// Makes `count` values with `make`. `None` if there is no contiguous memory for them.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> T) -> Option<Self> {
        const { assert!(align_of::<T>() <= SMALLEST_FRAME) };
        let bytes = size_of::<T>().checked_mul(count)?;
        let mut array = Self {
            block: Block::allocate(bytes)?,
            count: 0,
            values: PhantomData,
        };
        let start = array.block.start().cast::<T>();
        for index in 0..count {
            // SAFETY: the block has room for `count` values from its start, the assertion guarantees
            // their alignment, and nothing else uses the block.
            unsafe { start.add(index).write(make(index)) };
            array.count = index + 1;
        }
        Some(array)
    }

    /// The values for the kernel's lifetime.
    pub fn leak(self) -> &'static mut [T]
    where
        T: 'static,
    {
        let values = self.values();
        core::mem::forget(self);
        // SAFETY: as in `deref_mut`, and nothing drops the values now.
        unsafe { &mut *values.as_ptr() }
    }

    /// The initialised values.
    const fn values(&self) -> NonNull<[T]> {
        NonNull::slice_from_raw_parts(self.block.start().cast(), self.count)
    }
}

impl<T: Copy, F: Frames> Array<T, F> {
    /// Forgets all values behind the first `count`, without dropping them.
    pub fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }
}

impl<T, F: Frames> Deref for Array<T, F> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `count` values are initialised, and the array owns the block.
        unsafe { self.values().as_ref() }
    }
}

impl<T, F: Frames> DerefMut for Array<T, F> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the mutable borrow is exclusive.
        unsafe { self.values().as_mut() }
    }
}

impl<T, F: Frames> AsRef<[T]> for Array<T, F> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T, F: Frames> AsMut<[T]> for Array<T, F> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T, F: Frames> Drop for Array<T, F> {
    fn drop(&mut self) {
        let values = self.values();
        self.count = 0;
        // SAFETY: the values are initialised, and with a count of 0 they are not accessed again. The
        // block is a field and is freed after this.
        unsafe { values.drop_in_place() };
    }
}

impl<T, F: Frames> fmt::Debug for Array<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} values)", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{self, Array};
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
    fn an_array_that_is_too_long_is_refused() {
        assert!(Array::new(usize::MAX, |_| 0u64).is_none());
        host::run_out_after(1);
        let first = Array::new(1, |_| 0u64);
        assert!(first.is_some());
        assert!(Array::new(1, |_| 0u64).is_none());
        host::run_out_after(usize::MAX);
        assert!(Array::new(0, |_| 0u64).is_some_and(|none| none.is_empty()));
    }

    #[test]
    fn a_truncated_array_has_the_first_values() {
        let before = host::held();
        let mut array = Array::new(9000, |index| index).unwrap();
        array.truncate(9001);
        assert_eq!(array.len(), 9000);
        array.truncate(3);
        assert_eq!(*array, [0, 1, 2]);
        drop(array);
        assert_eq!(host::held(), before);
    }
}
