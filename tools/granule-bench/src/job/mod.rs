//! The job of every subject: which range, in which leaves, by which calls.

mod leaf;
mod list;

pub use leaf::Leaf;
pub use list::{jobs, jobs_of_larger_pages};

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::hint::black_box;

/// Where the range begins: the first address of an entry of the root, so that a tree has as few
/// tables as the range needs. It is aligned to more bytes than any range has.
pub const VIRTUAL: u64 = 1 << 46;

/// The bits of an address that the tables translate.
const ADDRESS_BITS: u32 = 48;

/// The steps of a job, in the order of results. Queries come between `map` and `protect`.
pub const STEPS: [&str; 4] = ["map", "protect", "unmap", "query"];

/// The tables that calls find, and those that they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// In each table of leaves the first was mapped before and stays: all tables are there, and none
    /// becomes empty. No call leaves its table.
    There,
    /// As before, but the leaf in the middle stays, and each call crosses the edge between two tables.
    Crossed,
    /// The tree is empty: calls that map make tables, and calls that unmap leave them empty.
    Made,
    /// Each call has a table of leaves of its own, which it makes or leaves empty. The tables above
    /// are there, by one leaf in each that was mapped before.
    Own,
}

/// The calls by which the range is mapped, protected and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The leaves of a call, a power of two; 0 stands for all of the range.
    pub leaves: u64,
    pub tables: Tables,
    pub descending: bool,
}

impl Calls {
    /// One call for the range, or what comes nearest to it.
    pub const RANGE: Self = Self::of(0, Tables::Made);

    /// Returns calls of so many leaves each, in ascending order.
    pub const fn of(leaves: u64, tables: Tables) -> Self {
        Self {
            leaves,
            tables,
            descending: false,
        }
    }

    pub const fn is_range(&self) -> bool {
        self.leaves == 0
    }
}

/// One range in one size of leaf, mapped in some trees one after the other: a single small tree
/// is done before the clock has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The bytes of the range in each tree, a multiple of 2 MiB and of at most 512 GiB with 4K pages.
    pub bytes: u64,
    pub leaf: Leaf,
    pub trees: u64,
    pub calls: Calls,
}

/// The offsets of a job's calls, and which leaves were mapped before.
struct Plan {
    /// The offset of the lowest call.
    lowest: u64,
    /// The bytes from one call to the next.
    stride: u64,
    /// The number of calls, with those that are passed over because they begin with a leaf that was
    /// mapped before.
    count: u64,
    /// The bits of an offset that say whether the leaf was mapped before.
    mask: u64,
    /// The value of those bits where it was.
    kept: u64,
}

impl Job {
    /// Whether a call is one page.
    pub const fn is_page(&self) -> bool {
        self.calls.leaves == 1 && self.leaf.is_page()
    }

    /// Whether the range is mapped in pages by one call.
    pub const fn is_pages_at_once(&self) -> bool {
        self.calls.is_range() && self.leaf.is_page()
    }

    /// Returns the names of the steps. Single leaves are also queried, where that is not the same as before.
    pub const fn steps(&self) -> &'static [&'static str] {
        let all: &'static [&'static str] = &STEPS;
        let is_one = self.calls.leaves == 1 && !self.calls.descending;
        if is_one && matches!(self.calls.tables, Tables::There) {
            return all;
        }
        all.split_at(STEPS.len() - 1).0
    }

    /// Returns the output address of the range: aligned to a leaf, or to 2 MiB and no more, so that a
    /// subject that takes the largest leaf that fits takes 2 MiB blocks.
    pub const fn physical(&self) -> u64 {
        let leaf = self.leaf.bytes();
        (1 << 39) + if leaf > 2 << 20 { leaf } else { 2 << 20 }
    }

    /// Returns the bytes that a call names.
    pub const fn call_bytes(&self) -> u64 {
        match self.calls.leaves {
            0 => self.bytes,
            leaves => leaves * self.leaf.bytes(),
        }
    }

    const fn plan(&self) -> Plan {
        let (call, span) = (self.call_bytes(), self.leaf.span());
        let (stride, lowest) = match self.calls.tables {
            Tables::There | Tables::Made => (call, 0),
            Tables::Crossed => (span, span - call / 2),
            Tables::Own => (span, 0),
        };
        // No offset has a bit that is not in the mask.
        let (mask, kept) = match self.calls.tables {
            Tables::There => (span - 1, 0),
            Tables::Crossed => (span - 1, span / 2),
            Tables::Own => ((1 << self.leaf.shift(2)) - 1, 0),
            Tables::Made => (0, 1),
        };
        Plan {
            lowest,
            stride,
            count: (self.bytes - lowest) / stride,
            mask,
            kept,
        }
    }

    /// Whether the leaf at an offset is mapped before anything is timed.
    pub const fn is_kept(&self, offset: u64) -> bool {
        let plan = self.plan();
        offset & plan.mask == plan.kept
    }

    /// Whether a call names the leaf at an offset.
    pub const fn is_named(&self, offset: u64) -> bool {
        let plan = self.plan();
        if offset < plan.lowest {
            return false;
        }
        let behind = offset - plan.lowest;
        let start = offset - behind % plan.stride;
        behind / plan.stride < plan.count
            && behind % plan.stride < self.call_bytes()
            && !self.is_kept(start)
    }

    /// Whether anything is mapped before.
    pub const fn has_kept(&self) -> bool {
        !matches!(self.calls.tables, Tables::Made)
    }

    /// Returns the addresses of the leaves of one tree that are mapped before.
    pub fn kept(&self) -> Each {
        let plan = self.plan();
        let (start, step) = (VIRTUAL + plan.kept, plan.mask + 1);
        let count = match self.has_kept() {
            true => (self.bytes - plan.kept).div_ceil(step),
            false => 0,
        };
        Each {
            start,
            end: start + count * step,
            step,
            passed: u64::MAX,
            distance: VIRTUAL - self.physical(),
        }
    }

    /// Returns each leaf of one tree in ascending order, for calls that name no virtual address: whether it
    /// is mapped before, and the physical address.
    #[inline(always)]
    pub fn all(&self) -> impl Iterator<Item = (bool, u64)> + use<> {
        let (job, Plan { mask, kept, .. }) = (*self, self.plan());
        (0..self.bytes / self.leaf.bytes()).map(move |leaf| {
            let offset = leaf * job.leaf.bytes();
            (offset & mask == kept, black_box(job.physical() + offset))
        })
    }

    /// Returns the addresses of the calls of one tree, virtual and physical. The compiler cannot see them.
    #[inline(always)]
    pub fn each(&self) -> Each {
        let plan = self.plan();
        let lowest = VIRTUAL + plan.lowest;
        let end = lowest + plan.count * plan.stride;
        let (start, end, step) = match self.calls.descending {
            false => (lowest, end, plan.stride),
            true => (
                end - plan.stride,
                lowest - plan.stride,
                plan.stride.wrapping_neg(),
            ),
        };
        Each {
            start,
            end,
            step,
            passed: match self.calls.tables {
                Tables::There | Tables::Own => plan.mask,
                // No call begins with a leaf that was mapped before, and no address is 0.
                Tables::Crossed | Tables::Made => u64::MAX,
            },
            distance: VIRTUAL - self.physical(),
        }
    }

    /// Counts the calls of a step, in all trees.
    pub fn call_count(&self) -> u64 {
        self.trees * self.each().count() as u64
    }

    /// Counts the leaves that calls name, in all trees.
    pub fn leaves(&self) -> u64 {
        self.call_count() * (self.call_bytes() / self.leaf.bytes())
    }

    /// Counts the tables that hold leaves, in one tree.
    pub const fn leaf_tables(&self) -> u64 {
        self.bytes.div_ceil(self.leaf.span())
    }

    /// Counts the tables of one tree: those with leaves, and those above them that the range needs.
    pub const fn tables(&self) -> u64 {
        let (mut tables, mut level) = (0, 1);
        loop {
            let shift = self.leaf.shift(level);
            tables += ((VIRTUAL + self.bytes - 1) >> shift) - (VIRTUAL >> shift) + 1;
            if shift >= ADDRESS_BITS {
                return tables;
            }
            level += 1;
        }
    }

    /// Returns the bytes of the tables of all trees.
    pub const fn table_bytes(&self) -> u64 {
        self.trees * self.tables() * self.leaf.page_bytes()
    }

    /// Returns the name of the calls in JSON.
    pub fn calls_name(&self) -> String {
        let name = match (self.calls.leaves, self.leaf.is_page()) {
            (0, _) => return "range".into(),
            (1, true) => "page".into(),
            (1, false) => "block".into(),
            (leaves, _) => format!("{leaves} pages"),
        };
        let order = if self.calls.descending {
            ", descending"
        } else {
            ""
        };
        match self.calls.tables {
            Tables::There => format!("{name}{order}"),
            Tables::Crossed => format!("{name} across tables{order}"),
            Tables::Made => format!("{name} and tables{order}"),
            Tables::Own => format!("{name} in a new table{order}"),
        }
    }
}

/// The addresses of calls ([`Job::each`]). Written out, as it is part of every measurement of a call.
#[derive(Clone, Debug)]
pub struct Each {
    start: u64,
    end: u64,
    step: u64,
    /// Calls are passed over whose address has none of these bits.
    passed: u64,
    distance: u64,
}

impl Iterator for Each {
    type Item = (u64, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<(u64, u64)> {
        while self.start != self.end {
            let start = self.start;
            self.start = start.wrapping_add(self.step);
            if start & self.passed != 0 {
                let start = black_box(start);
                return Some((start, start - self.distance));
            }
        }
        None
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, shift) = match self.bytes >= 1 << 30 {
            true => ("GiB", 30),
            false => ("MiB", 20),
        };
        write!(f, "{} {unit} in {}", self.bytes >> shift, self.leaf)?;
        match (self.calls.leaves, self.leaf.is_page()) {
            (0, _) => return Ok(()),
            (1, true) => f.write_str(", one page a call")?,
            (1, false) => f.write_str(", one block a call")?,
            (leaves, _) => write!(f, ", {leaves} pages a call")?,
        }
        if self.calls.descending {
            f.write_str(", descending")?;
        }
        f.write_str(match self.calls.tables {
            Tables::There => ", tables there",
            Tables::Crossed => ", across two tables, which are there",
            Tables::Made => ", tables made and emptied",
            Tables::Own => ", a table made and emptied by each",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn job(bytes: u64, leaf: Leaf, calls: Calls) -> Job {
        Job {
            bytes,
            leaf,
            trees: 3,
            calls,
        }
    }

    #[test]
    fn counts_tables() {
        let job = |bytes, leaf| job(bytes, leaf, Calls::RANGE);
        // 64 GiB: 16 777 216 pages, 512 to a table; 64 tables above them; one each above those.
        assert_eq!(job(64 << 30, Leaf::PAGE_4K).tables(), 32_768 + 64 + 2);
        assert_eq!(job(64 << 30, Leaf::PAGE_4K).leaves(), 3 * 16_777_216);
        assert_eq!(job(64 << 30, Leaf::BLOCK_2M).tables(), 64 + 2);
        assert_eq!(job(1 << 30, Leaf::PAGE_4K).tables(), 512 + 1 + 2);
        assert_eq!(job(1 << 30, Leaf::BLOCK_2M).tables(), 1 + 2);
        assert_eq!(job(8 << 20, Leaf::PAGE_4K).tables(), 4 + 1 + 2);
        assert_eq!(job(64 << 30, Leaf::BLOCK_1G).tables(), 1 + 1);
        assert_eq!(job(64 << 30, Leaf::BLOCK_1G).leaves(), 3 * 64);
        // 2048 pages of 16K to a table, and four levels; 8192 of 64K, and three.
        assert_eq!(job(64 << 20, Leaf::PAGE_16K).tables(), 2 + 3);
        assert_eq!(job(1 << 30, Leaf::PAGE_64K).tables(), 2 + 2);
    }

    /// The offsets of calls, in pages.
    fn pages(calls: Each) -> Vec<u64> {
        calls.map(|(start, _)| (start - VIRTUAL) >> 12).collect()
    }

    #[test]
    fn calls_leave_out_what_was_mapped_before() {
        let page = |leaves, tables| job(4 << 20, Leaf::PAGE_4K, Calls::of(leaves, tables));
        let one = page(1, Tables::There);
        assert_eq!(
            pages(one.each()),
            [1..512, 513..1024]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        );
        assert_eq!(one.leaves(), 3 * 2 * 511);
        let mut four = page(4, Tables::There);
        assert_eq!(pages(four.each())[..2], [4, 8]);
        assert_eq!(pages(four.each())[126..128], [508, 516]);
        assert_eq!((four.call_count(), four.leaves()), (3 * 254, 3 * 1016));
        four.calls.descending = true;
        assert_eq!(pages(four.each())[..2], [1020, 1016]);
        assert_eq!(pages(four.each()).last(), Some(&4));
        let across = page(4, Tables::Crossed);
        assert_eq!(pages(across.each()), [510]);
        assert_eq!(pages(across.kept()), [256, 768]);
        let own = page(1, Tables::Own);
        assert_eq!(pages(own.each()), [512]);
        assert_eq!(pages(own.kept()), [0]);
        assert_eq!(pages(page(0, Tables::Made).each()), [0]);
    }
}
