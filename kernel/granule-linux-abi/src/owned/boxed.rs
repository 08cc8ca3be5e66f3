//! One value in its own block of frames; it can be turned into a pointer and back.

use super::{Block, Frames, SMALLEST_FRAME};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A value in frames of its own.
pub struct Boxed<T, F: Frames> {
    block: Block<F>,
    value: PhantomData<T>,
}

impl<T, F: Frames> Boxed<T, F> {
    /// Moves `value` to a new block. `None` if memory is exhausted.
    pub fn new(value: T) -> Option<Self> {
        const { assert!(align_of::<T>() <= SMALLEST_FRAME) };
        let block = Block::allocate(size_of::<T>())?;
        // SAFETY: the block is large enough, aligned as asserted, and nothing else uses it.
        unsafe { block.start().cast::<T>().write(value) };
        Some(Self {
            block,
            value: PhantomData,
        })
    }

    const fn pointer(&self) -> NonNull<T> {
        self.block.start().cast()
    }

    /// The address of the value, which is no longer dropped automatically.
    pub fn into_pointer(self) -> NonNull<T> {
        let pointer = self.pointer();
        core::mem::forget(self);
        pointer
    }

    /// # Safety
    ///
    /// `pointer` must come from [`into_pointer`](Self::into_pointer) and be passed once for each call of
    /// it; nothing may use it afterwards.
    pub const unsafe fn from_pointer(pointer: NonNull<T>) -> Self {
        Self {
            // SAFETY: `new` made the block for this many bytes, and `into_pointer` forgot it.
            block: unsafe { Block::forgotten(pointer.cast(), size_of::<T>()) },
            value: PhantomData,
        }
    }
}

impl<T, F: Frames> Deref for Boxed<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` wrote the value, and this box owns it until it is dropped.
        unsafe { self.pointer().as_ref() }
    }
}

impl<T, F: Frames> DerefMut for Boxed<T, F> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the mutable borrow is exclusive.
        unsafe { self.pointer().as_mut() }
    }
}

impl<T, F: Frames> Drop for Boxed<T, F> {
    fn drop(&mut self) {
        // SAFETY: this box owns the value, which is not accessed again. The block is a field and is
        // freed after this.
        unsafe { self.pointer().drop_in_place() };
    }
}

impl<T: fmt::Debug, F: Frames> fmt::Debug for Boxed<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{self, Boxed};
    use std::rc::Rc;

    #[test]
    fn a_value_is_found_by_its_address_and_dropped_once() {
        let value = Rc::new(5);
        let before = host::held();
        let mut boxed = Boxed::new((value.clone(), 7)).unwrap();
        boxed.1 += 1;
        assert_eq!(boxed.1, 8);
        let pointer = boxed.into_pointer();
        assert_eq!((Rc::strong_count(&value), host::held()), (2, before + 1));
        // SAFETY: the pointer was just made by `into_pointer`, once.
        drop(unsafe { Boxed::from_pointer(pointer) });
        assert_eq!((Rc::strong_count(&value), host::held()), (1, before));
        host::run_out_after(0);
        assert!(Boxed::new(0u64).is_none());
        host::run_out_after(usize::MAX);
    }
}
