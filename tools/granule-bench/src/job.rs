//! The job of every subject: which range, in which leaves, by which calls.

use crate::arena::TABLE;
use core::fmt;
use core::hint::black_box;

/// Where the range begins: the first address of an entry of the root, so that a tree has as few
/// tables as the range needs.
pub const VIRTUAL: u64 = 1 << 39;

/// The output address in all but the largest leaves: aligned to 2 MiB and no more, so that a subject that
/// takes the largest leaf that fits takes 2 MiB blocks.
pub const PHYSICAL: u64 = (1 << 39) + (2 << 20);

/// The size of the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    Page4K,
    Block2M,
    Block1G,
}

impl Leaf {
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Page4K => 4 << 10,
            Self::Block2M => 2 << 20,
            Self::Block1G => 1 << 30,
        }
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Page4K => "4K leaves",
            Self::Block2M => "2M blocks",
            Self::Block1G => "1G blocks",
        })
    }
}

/// The calls by which the range is mapped, protected and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// One call for the range, or what comes nearest to it.
    Range,
    /// One call for each page, in ascending order. In each last-level table the first page was
    /// mapped before and stays: all tables are there, and none becomes empty.
    Page,
    /// One call for each page, in ascending order, in an empty tree: calls that map make tables,
    /// and calls that unmap leave them empty.
    PageAndTables,
}

impl Calls {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Page => "page",
            Self::PageAndTables => "page and tables",
        }
    }
}

/// One range in one size of leaf, mapped in some trees one after the other: a single small tree
/// is done before the clock has moved.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The bytes mapped in each tree, a multiple of 2 MiB and of at most 512 GiB.
    pub bytes: u64,
    pub leaf: Leaf,
    pub trees: u64,
    pub calls: Calls,
}

impl Job {
    /// The leaves in all trees.
    pub const fn leaves(&self) -> u64 {
        let all = self.bytes / self.leaf.bytes();
        self.trees * (all - self.kept())
    }

    /// The pages of one tree that are mapped before.
    const fn kept(&self) -> u64 {
        match self.calls {
            Calls::Page => self.leaf_tables(),
            Calls::Range | Calls::PageAndTables => 0,
        }
    }

    /// Whether the range is mapped in pages by one call.
    pub fn is_pages_at_once(&self) -> bool {
        self.leaf == Leaf::Page4K && self.calls == Calls::Range
    }

    /// Returns the output address of the range.
    pub const fn physical(&self) -> u64 {
        match self.leaf {
            Leaf::Page4K | Leaf::Block2M => PHYSICAL,
            Leaf::Block1G => (1 << 39) + (1 << 30),
        }
    }

    /// Whether the leaf at an offset is mapped before anything is timed.
    pub const fn is_kept(&self, offset: u64) -> bool {
        matches!(self.calls, Calls::Page) && offset & ((2 << 20) - 1) == 0
    }

    /// The offsets of the leaves of one tree that are mapped before.
    pub fn kept_leaves(self) -> impl Iterator<Item = u64> {
        (0..self.bytes)
            .step_by(2 << 20)
            .filter(move |&offset| self.is_kept(offset))
    }

    /// Each leaf of one tree in ascending order, for calls that name no virtual address: whether it
    /// is mapped before, and the physical address.
    #[inline(always)]
    pub fn all(&self) -> impl Iterator<Item = (bool, u64)> + use<> {
        let job = *self;
        (0..self.bytes / self.leaf.bytes()).map(move |leaf| {
            let offset = leaf * job.leaf.bytes();
            (job.is_kept(offset), black_box(job.physical() + offset))
        })
    }

    /// The addresses of the leaves of one tree, virtual and physical, as the calls name them. The
    /// compiler cannot see them.
    #[inline(always)]
    pub fn each(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let job = *self;
        let distance = self.physical() - VIRTUAL;
        (0..self.bytes / self.leaf.bytes())
            .map(move |leaf| leaf * job.leaf.bytes())
            .filter(move |&offset| !job.is_kept(offset))
            .map(move |offset| {
                let start = black_box(VIRTUAL + offset);
                (start, start + distance)
            })
    }

    /// The tables that hold leaves, in one tree.
    pub const fn leaf_tables(&self) -> u64 {
        self.bytes.div_ceil(self.leaf.bytes() * (TABLE / 8))
    }

    /// The tables of one tree: the root, one below it, and those that the range needs.
    pub const fn tables(&self) -> u64 {
        let above = match self.leaf {
            Leaf::Page4K => 2 + self.bytes.div_ceil(1 << 30),
            Leaf::Block2M => 2,
            Leaf::Block1G => 1,
        };
        above + self.leaf_tables()
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes >= 1 << 30 {
            write!(f, "{} GiB in {}", self.bytes >> 30, self.leaf)?;
        } else {
            write!(f, "{} MiB in {}", self.bytes >> 20, self.leaf)?;
        }
        f.write_str(match self.calls {
            Calls::Range => "",
            Calls::Page => ", one page a call, tables there",
            Calls::PageAndTables => ", one page a call, tables made and emptied",
        })
    }
}

/// Trees to each job so that the fastest step is far above the clock's own time.
pub fn jobs(quick: bool) -> [Job; 7] {
    let large = if quick { 4 << 30 } else { 64 << 30 };
    let small = if quick { 256 << 20 } else { 1 << 30 };
    let job = |bytes, leaf, trees| Job {
        bytes,
        leaf,
        trees,
        calls: Calls::Range,
    };
    let by_page = |calls| Job {
        calls,
        ..job(64 << 20, Leaf::Page4K, 1)
    };
    [
        by_page(Calls::Page),
        by_page(Calls::PageAndTables),
        job(small, Leaf::Page4K, 1),
        job(large, Leaf::Page4K, 1),
        job(small, Leaf::Block2M, 64),
        job(large, Leaf::Block2M, 8),
        job(64 << 30, Leaf::Block1G, 64),
    ]
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
            calls: Calls::Range,
        };
        // 64 GiB: 16 777 216 pages, 512 to a table; 64 tables above them; one each above those.
        assert_eq!(job(64 << 30, Leaf::Page4K).tables(), 32_768 + 64 + 2);
        assert_eq!(job(64 << 30, Leaf::Page4K).leaves(), 3 * 16_777_216);
        assert_eq!(job(64 << 30, Leaf::Block2M).tables(), 64 + 2);
        assert_eq!(job(1 << 30, Leaf::Page4K).tables(), 512 + 1 + 2);
        assert_eq!(job(1 << 30, Leaf::Block2M).tables(), 1 + 2);
        assert_eq!(job(8 << 20, Leaf::Page4K).tables(), 4 + 1 + 2);
        assert_eq!(job(64 << 30, Leaf::Block1G).tables(), 1 + 1);
        assert_eq!(job(64 << 30, Leaf::Block1G).leaves(), 3 * 64);
        // One page of 512 is mapped before.
        let calls = Calls::Page;
        let pages = Job {
            calls,
            ..job(8 << 20, Leaf::Page4K)
        };
        assert_eq!(pages.leaves(), 3 * 4 * 511);
        assert_eq!(pages.each().count(), 4 * 511);
        assert_eq!(pages.kept_leaves().count(), 4);
    }
}
