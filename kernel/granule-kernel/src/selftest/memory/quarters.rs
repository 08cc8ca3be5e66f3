//! A block of 1 GiB that is partly allocated and partly free, so that changed memory and removed memory share
//! leaves.

use crate::bench::support::Block;
use arrayvec::ArrayVec;

const GIB: u64 = 1 << 30;
pub(super) const QUARTER: u64 = GIB / 4;
/// Most blocks that are searched for the quarters of one block.
const MOST_BLOCKS: usize = 16;

/// Three allocated quarters of an aligned GiB. The fourth is free.
pub(super) struct Quarters {
    pub(super) blocks: ArrayVec<Block, 3>,
    /// Linear-map address of the whole GiB.
    pub(super) start: u64,
    /// Physical address of the free quarter.
    pub(super) free: u64,
}

impl Quarters {
    pub(super) fn find() -> Self {
        let whole = Block::new(GIB);
        let (start, physical) = (whole.start, whole.physical().0);
        whole.free();
        let mut blocks = ArrayVec::<Block, 3>::new();
        let mut elsewhere = ArrayVec::<Block, MOST_BLOCKS>::new();
        while !blocks.is_full() {
            let block = Block::new(QUARTER);
            if block.physical().0 & !(GIB - 1) == physical {
                blocks.push(block);
            } else {
                assert!(!elsewhere.is_full(), "too many other blocks are free");
                elsewhere.push(block);
            }
        }
        for block in elsewhere {
            block.free();
        }
        let mut quarters = (0..4).map(|quarter| physical + quarter * QUARTER);
        let free = quarters.find(|quarter| blocks.iter().all(|b| b.physical().0 != *quarter));
        Self {
            blocks,
            start,
            free: free.unwrap_or(physical),
        }
    }

    pub(super) fn free(self) {
        for block in self.blocks {
            block.free();
        }
    }
}
