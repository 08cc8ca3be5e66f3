//! Values of one type in blocks of frames that are added one by one and freed together. What is there already stays
//! where it is, and no contiguous memory is needed for all.

use super::{Block, Frames, SMALLEST_FRAME};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// Blocks of values, which others use by their addresses for as long as the chain is there.
pub struct Chain<T, F: Frames> {
    last: Option<NonNull<Link<F>>>,
    values: PhantomData<*mut T>,
}

/// The beginning of a block.
struct Link<F: Frames> {
    /// The block that was added before.
    before: Option<NonNull<Self>>,
    /// The block itself.
    block: Block<F>,
}

// SAFETY: a chain owns its values, and gives no access to them but by the addresses that it returned.
unsafe impl<T: Send, F: Frames> Send for Chain<T, F> {}

impl<T, F: Frames> Chain<T, F> {
    /// Where the values of a block begin.
    const FIRST: usize = size_of::<Link<F>>().next_multiple_of(align_of::<T>());

    /// Begins without a block.
    pub const fn new() -> Self {
        const { assert!(!core::mem::needs_drop::<T>(), "values are not dropped") };
        const { assert!(align_of::<T>() <= SMALLEST_FRAME && align_of::<Link<F>>() <= SMALLEST_FRAME) };
        Self {
            last: None,
            values: PhantomData,
        }
    }

    /// Adds a block of `bytes` bytes, and as many values as it has room for; they are there until the chain is
    /// dropped. `None` if memory is exhausted, or if not even one value has room.
    pub fn add(&mut self, bytes: usize, mut make: impl FnMut() -> T) -> Option<NonNull<[T]>> {
        let count = bytes.checked_sub(Self::FIRST)? / size_of::<T>().max(1);
        if count == 0 {
            return None;
        }
        let block = Block::allocate(bytes)?;
        let start = block.start();
        let link = Link {
            before: self.last,
            block,
        };
        // SAFETY: the block has room for the link and, behind it, for `count` values. It is aligned to at least
        // what `new` asserts, and nothing else uses it.
        let first = unsafe {
            start.cast::<Link<F>>().write(link);
            let first = start.add(Self::FIRST).cast::<T>();
            for index in 0..count {
                first.add(index).write(make());
            }
            first
        };
        self.last = Some(start.cast());
        Some(NonNull::slice_from_raw_parts(first, count))
    }
}

impl<T, F: Frames> Default for Chain<T, F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, F: Frames> Drop for Chain<T, F> {
    fn drop(&mut self) {
        while let Some(last) = self.last {
            // SAFETY: `add` wrote the link, and it is taken out once, because the chain forgets it here.
            let Link { before, block } = unsafe { last.read() };
            self.last = before;
            drop(block);
        }
    }
}

impl<T, F: Frames> fmt::Debug for Chain<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Chain")
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{self, Chain};

    #[test]
    fn values_stay_where_they_are_until_all_go() {
        let before = host::held();
        let mut chain = Chain::<[u64; 9]>::new();
        let mut all = Vec::new();
        for number in 0..3 {
            let values = chain.add(4096, || [number; 9]).unwrap();
            assert!(values.len() > 50 && values.len() * 72 <= 4096);
            all.push(values);
        }
        assert_eq!(host::held(), before + 3);
        for (number, values) in (0..).zip(&mut all) {
            // SAFETY: the chain is there, and nothing else uses its values.
            let values = unsafe { values.as_mut() };
            assert!(values.iter().all(|value| *value == [number; 9]));
            values.fill([7; 9]);
        }
        drop(chain);
        assert_eq!(host::held(), before);
    }

    #[test]
    fn a_block_without_room_or_memory_is_none() {
        let before = host::held();
        let mut chain = Chain::<[u64; 9]>::new();
        assert!(chain.add(8, || [0; 9]).is_none());
        assert!(chain.add(72, || [0; 9]).is_none());
        host::run_out_after(0);
        assert!(chain.add(4096, || [0; 9]).is_none());
        host::run_out_after(usize::MAX);
        assert_eq!(host::held(), before);
    }
}
