//! Values and slices in frames of their own: what the kernel allocates for processes, so that the
//! count of frames at the end sees whatever is forgotten.
//!
//! They lie in the linear map, so nothing that an exception needs before it is dealt with may be in
//! one.

use crate::frames::Frame;
use crate::memory::live::{self, Kernel};
use crate::memory::pages;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use granule::arch::{PageSize, PhysicalAddress, VirtualAddress};

/// The order of the block of frames that holds so many bytes; `None` if there is none so large.
fn order_of(kernel: &Kernel, bytes: usize) -> Option<u32> {
    let pages = (bytes.max(1) as u64).div_ceil(kernel.page());
    Some(pages.checked_next_power_of_two()?.trailing_zeros())
}

/// Where the linear map shows `address`, if it is RAM that it reaches.
pub(crate) fn pointer(address: PhysicalAddress) -> Option<NonNull<u8>> {
    let address = live::kernel()?.placement.virtual_address(address)?;
    NonNull::new(core::ptr::with_exposed_provenance_mut(address.0 as usize))
}

/// Frames for so many bytes, with anything in them.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let kernel = live::kernel()?;
    let order = order_of(kernel, bytes)?;
    let frame = pages::allocate(order)?;
    let start = pointer(frame.address(kernel.geometry.page_size()));
    if start.is_none() {
        // The frames count what they refuse.
        let _ = pages::free(frame, order);
    }
    start
}

/// Gives back what [`allocate`] gave for so many bytes.
pub(super) fn free(start: NonNull<u8>, bytes: usize) {
    let Some(kernel) = live::kernel() else {
        return;
    };
    let address = VirtualAddress(start.as_ptr().expose_provenance() as u64);
    let physical = kernel.placement.physical_address(address);
    if let (Some(physical), Some(order)) = (physical, order_of(kernel, bytes)) {
        let frame = Frame::containing(physical, kernel.geometry.page_size());
        // The frames count what they refuse.
        let _ = pages::free(frame, order);
    }
}

/// A value in frames of its own.
pub(crate) struct Boxed<T>(NonNull<T>);

// SAFETY: it owns its value alone, as the value itself would be owned.
unsafe impl<T: Send> Send for Boxed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Boxed<T> {}

impl<T> Boxed<T> {
    /// `None` if there is no memory.
    pub(crate) fn new(value: T) -> Option<Self> {
        // A block begins at a page, of the smallest size at least.
        const { assert!(align_of::<T>() as u64 <= PageSize::MIN.bytes()) };
        let pointer = allocate(size_of::<T>())?.cast();
        // SAFETY: frames that are large enough, aligned, mapped writable, and nobody else's.
        unsafe { pointer.write(value) };
        Some(Self(pointer))
    }

    /// The value, not to be dropped by itself any more.
    pub(crate) fn into_pointer(self) -> NonNull<T> {
        let pointer = self.0;
        core::mem::forget(self);
        pointer
    }

    /// # Safety
    ///
    /// `pointer` must come from [`into_pointer`](Self::into_pointer), once for each call of that,
    /// and nobody use it any more.
    pub(crate) const unsafe fn from_pointer(pointer: NonNull<T>) -> Self {
        Self(pointer)
    }
}

impl<T> Deref for Boxed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, owned alone until it is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Boxed<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Boxed<T> {
    fn drop(&mut self) {
        // SAFETY: owned alone, and not reached any more.
        unsafe { self.0.drop_in_place() };
        free(self.0.cast(), size_of::<T>());
    }
}

impl<T: fmt::Debug> fmt::Debug for Boxed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// So many values in frames of their own, at least one.
pub(crate) struct Slice<T: Copy> {
    start: NonNull<T>,
    count: usize,
    /// What it was made with: so large are its frames.
    made: usize,
}

// SAFETY: it owns its values alone, as the values themselves would be owned.
unsafe impl<T: Copy + Send> Send for Slice<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Slice<T> {}

impl<T: Copy> Slice<T> {
    /// `count` times `value`; `None` if there is no memory.
    pub(crate) fn new(count: usize, value: T) -> Option<Self> {
        const { assert!(align_of::<T>() as u64 <= PageSize::MIN.bytes()) };
        let bytes = count.checked_mul(size_of::<T>())?;
        let start: NonNull<T> = allocate(bytes)?.cast();
        for index in 0..count {
            // SAFETY: inside the frames, which are mapped writable and nobody else's.
            unsafe { start.add(index).write(value) };
        }
        Some(Self {
            start,
            count,
            made: count,
        })
    }

    /// Forgets all values behind the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// The values for as long as the kernel runs, or until somebody gives them back with
    /// [`from_static`](Self::from_static).
    pub(crate) fn leak(self) -> &'static mut [T] {
        let (start, count) = (self.start, self.count);
        core::mem::forget(self);
        // SAFETY: as in `deref_mut`, and nobody drops them now.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), count) }
    }

    /// # Safety
    ///
    /// `values` must be all that [`leak`](Self::leak) gave, once for each call of that, and not
    /// have been [truncated](Self::truncate) before.
    pub(crate) const unsafe fn from_static(values: &'static mut [T]) -> Option<Self> {
        let count = values.len();
        match NonNull::new(values.as_mut_ptr()) {
            Some(start) => Some(Self {
                start,
                count,
                made: count,
            }),
            None => None,
        }
    }
}

impl<T: Copy> Deref for Slice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: written by `new`, owned alone until they are dropped.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Copy> DerefMut for Slice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T: Copy> Drop for Slice<T> {
    fn drop(&mut self) {
        free(self.start.cast(), self.made * size_of::<T>());
    }
}

impl<T: Copy> fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice of {}", self.count)
    }
}
