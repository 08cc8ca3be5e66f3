//! What every subject is asked to do: which range, in which leaves.

use crate::arena::TABLE;
use std::fmt;

/// Where the range begins: the first address of an entry of the root, so that a tree has as few
/// tables as the range needs.
pub(crate) const VIRTUAL: u64 = 1 << 39;

/// What it translates to: aligned to 2 MiB and no more, so that who takes the largest leaf that
/// fits takes 2 MiB blocks.
pub(crate) const PHYSICAL: u64 = (1 << 39) + (2 << 20);

/// The size of the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    Page4K,
    Block2M,
}

impl Leaf {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Page4K => 4 << 10,
            Self::Block2M => 2 << 20,
        }
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Page4K => "4K leaves",
            Self::Block2M => "2M blocks",
        })
    }
}

/// One range in one size of leaf, mapped in some trees one after the other: a single small tree
/// is done before the clock has moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The bytes mapped in each tree, a multiple of 2 MiB and of at most 512 GiB.
    pub(crate) bytes: u64,
    pub(crate) leaf: Leaf,
    pub(crate) trees: u64,
}

impl Job {
    /// The leaves in all trees.
    pub(crate) const fn leaves(&self) -> u64 {
        self.trees * (self.bytes / self.leaf.bytes())
    }

    /// The tables that hold leaves, in one tree.
    pub(crate) const fn leaf_tables(&self) -> u64 {
        self.bytes.div_ceil(self.leaf.bytes() * (TABLE / 8))
    }

    /// The tables of one tree: the root, one below it, and those that the range needs.
    pub(crate) const fn tables(&self) -> u64 {
        let above = match self.leaf {
            Leaf::Page4K => self.bytes.div_ceil(1 << 30),
            Leaf::Block2M => 0,
        };
        2 + above + self.leaf_tables()
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes >= 1 << 30 {
            write!(f, "{} GiB in {}", self.bytes >> 30, self.leaf)
        } else {
            write!(f, "{} MiB in {}", self.bytes >> 20, self.leaf)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_tables() {
        let job = |bytes, leaf| Job {
            bytes,
            leaf,
            trees: 3,
        };
        // 64 GiB: 16 777 216 pages, 512 to a table; 64 tables above them; one each above those.
        assert_eq!(job(64 << 30, Leaf::Page4K).tables(), 32_768 + 64 + 2);
        assert_eq!(job(64 << 30, Leaf::Page4K).leaves(), 3 * 16_777_216);
        assert_eq!(job(64 << 30, Leaf::Block2M).tables(), 64 + 2);
        assert_eq!(job(1 << 30, Leaf::Page4K).tables(), 512 + 1 + 2);
        assert_eq!(job(1 << 30, Leaf::Block2M).tables(), 1 + 2);
        assert_eq!(job(8 << 20, Leaf::Page4K).tables(), 4 + 1 + 2);
    }
}
