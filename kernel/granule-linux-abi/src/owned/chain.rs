//! Values of one type in blocks of frames that are added one by one and freed together. What is there already stays
//! where it is, and no contiguous memory is needed for all.

use super::{Block, Frames, SMALLEST_FRAME};
use core::fmt;
use core::ptr::NonNull;

/// Blocks of values, which others use by their addresses for as long as the chain is there.
pub struct Chain<T, F: Frames> {
    last: Option<NonNull<Link<F>>>,
    /// The first place of the last block that has no value yet.
    free: NonNull<T>,
    /// The number of such places.
    left: usize,
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
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= SMALLEST_FRAME) };
        const { assert!(align_of::<Link<F>>() <= SMALLEST_FRAME) };
        Self {
            last: None,
            free: NonNull::dangling(),
            left: 0,
        }
    }

    /// Makes up to `most` values, but at least one, that are there until the chain is dropped. Where the last block is
    /// full, another one of `bytes` bytes is added. `None` if memory is exhausted, or such a block has no room.
    pub fn add(
        &mut self,
        most: usize,
        bytes: usize,
        mut make: impl FnMut() -> T,
    ) -> Option<NonNull<[T]>> {
        if self.left == 0 {
            self.add_block(bytes)?;
        }
        let (first, count) = (self.free, self.left.min(most));
        for index in 0..count {
            // SAFETY: `left` places from `free` on are in the last block, and nothing uses them yet.
            unsafe { first.add(index).write(make()) };
        }
        // SAFETY: as above; behind the last place is the end of the block, or padding in it.
        self.free = unsafe { first.add(count) };
        self.left -= count;
        Some(NonNull::slice_from_raw_parts(first, count))
    }

    fn add_block(&mut self, bytes: usize) -> Option<()> {
        let left = bytes.checked_sub(Self::FIRST)? / size_of::<T>();
        if left == 0 {
            return None;
        }
        let block = Block::allocate(bytes)?;
        let start = block.start();
        let link = Link {
            before: self.last,
            block,
        };
        // SAFETY: the block has room for the link and, behind it, for `left` values. It is aligned as `new` asserts,
        // and nothing else uses it.
        unsafe {
            start.cast::<Link<F>>().write(link);
            self.free = start.add(Self::FIRST).cast();
        }
        (self.last, self.left) = (Some(start.cast()), left);
        Some(())
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
            // SAFETY: `add_block` wrote the link, and it is taken out once, because the chain forgets it here.
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
        let mut chain = Chain::<[u64; 100]>::new();
        let (mut all, mut counts) = (Vec::new(), Vec::new());
        for number in 0..5 {
            let values = chain.add(3, 4096, || [number; 100]).unwrap();
            counts.push(values.len());
            all.push(values);
        }
        // Five have room in a block.
        assert_eq!(counts, [3, 2, 3, 2, 3]);
        assert_eq!(host::held(), before + 3);
        for (number, values) in (0..).zip(&mut all) {
            // SAFETY: the chain is there, and nothing else uses its values.
            let values = unsafe { values.as_mut() };
            assert!(values.iter().all(|value| *value == [number; 100]));
            values.fill([7; 100]);
        }
        drop(chain);
        assert_eq!(host::held(), before);
    }

    #[test]
    fn a_block_without_room_or_memory_is_none() {
        let before = host::held();
        let mut chain = Chain::<[u64; 9]>::new();
        assert!(chain.add(1, 8, || [0; 9]).is_none());
        assert!(chain.add(1, 72, || [0; 9]).is_none());
        host::run_out_after(0);
        assert!(chain.add(1, 4096, || [0; 9]).is_none());
        host::run_out_after(usize::MAX);
        assert_eq!(host::held(), before);
    }
}
