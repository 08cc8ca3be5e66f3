//! The expected leaves of a linear map, worked out apart from the library: greedily, the largest
//! leaf that fits at each address, from the architecture's table of leaves (Arm ARM D8, tables of
//! block sizes and contiguous spans).
//!
//! It holds where virtual and physical address agree below the largest leaf, which they do when all
//! of RAM fits the linear map.

use granule_cli::PageSize::{self, K4, K16, K64};

use crate::kernel::machine::Leaves;

/// A range of physical addresses that is mapped alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

pub(crate) const fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The leaf sizes, largest first: bytes, whether a contiguous group, and the level of the entries.
/// `wide` is the 52-bit format (LPA2, or LPA with 64K pages), which allows blocks a level higher.
pub(crate) fn sizes(size: PageSize, wide: bool) -> Vec<(u64, bool, i32)> {
    let narrow: &[(u64, bool, i32)] = match size {
        K4 => &[
            (16 * GIB, true, 1),
            (GIB, false, 1),
            (32 * MIB, true, 2),
            (2 * MIB, false, 2),
            (64 * KIB, true, 3),
            (4 * KIB, false, 3),
        ],
        K16 => &[
            (GIB, true, 2),
            (32 * MIB, false, 2),
            (2 * MIB, true, 3),
            (16 * KIB, false, 3),
        ],
        K64 => &[
            (16 * GIB, true, 2),
            (512 * MIB, false, 2),
            (2 * MIB, true, 3),
            (64 * KIB, false, 3),
        ],
    };
    let higher = match size {
        K4 => (512 * GIB, false, 0),
        K16 => (64 * GIB, false, 1),
        K64 => (4 * TIB, false, 1),
    };
    wide.then_some(higher)
        .into_iter()
        .chain(narrow.iter().copied())
        .collect()
}

/// A stretch of equal leaves.
struct Run {
    start: u64,
    end: u64,
    bytes: u64,
    contiguous: bool,
    level: i32,
}

/// A linear map of ranges that ascend and do not touch unless their permissions differ.
pub(crate) struct Reference {
    size: PageSize,
    runs: Vec<Run>,
}

impl Reference {
    /// With the largest leaves, or with pages only.
    pub(crate) fn new(size: PageSize, wide: bool, pages_only: bool, ranges: &[Range]) -> Self {
        let sizes = sizes(size, wide);
        let sizes = if pages_only {
            &sizes[sizes.len() - 1..]
        } else {
            &sizes[..]
        };
        let mut runs = Vec::new();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let &(bytes, contiguous, level) = sizes
                    .iter()
                    .find(|(bytes, _, _)| at % bytes == 0 && at + bytes <= range.end)
                    .expect("a range of whole pages");
                // Larger leaves begin at multiples of the next larger size only.
                let larger = sizes.iter().rev().find(|(other, _, _)| *other > bytes);
                let mut end = at + bytes;
                while end + bytes <= range.end
                    && !larger.is_some_and(|(l, _, _)| end % l == 0 && end + l <= range.end)
                {
                    end += bytes;
                }
                runs.push(Run {
                    start: at,
                    end,
                    bytes,
                    contiguous,
                    level,
                });
                at = end;
            }
        }
        Self { size, runs }
    }

    pub(crate) fn leaves(&self) -> Leaves {
        let mut leaves = Leaves::new();
        for run in &self.runs {
            let count = (run.end - run.start) / run.bytes;
            let same =
                |leaf: &&mut (u64, bool, u64)| leaf.0 == run.bytes && leaf.1 == run.contiguous;
            match leaves.iter_mut().find(same) {
                Some(leaf) => leaf.2 += count,
                None => leaves.push((run.bytes, run.contiguous, count)),
            }
        }
        leaves.sort_unstable_by(|a, b| b.cmp(a));
        leaves
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// The tables below a root at `start_level`: one for each entry above a leaf, counted once.
    pub(crate) fn tables(&self, start_level: i32) -> u64 {
        (start_level..3).map(|level| self.tables_under(level)).sum()
    }

    /// The entries of `level` that point to tables.
    fn tables_under(&self, level: i32) -> u64 {
        let entry = entry_bytes(self.size, level);
        let mut last = None;
        let mut count = 0;
        for run in self.runs.iter().filter(|run| run.level > level) {
            let (first, end) = (run.start / entry, (run.end - 1) / entry);
            count += end - first + 1;
            if last == Some(first) {
                count -= 1;
            }
            last = Some(end);
        }
        count
    }
}

fn shift(size: PageSize) -> u32 {
    size.bytes().trailing_zeros()
}

/// Bytes that one entry of a level translates.
pub(crate) fn entry_bytes(size: PageSize, level: i32) -> u64 {
    let page = shift(size);
    1 << (page + (3 - level) as u32 * (page - 3))
}

/// Levels of tables for so many bits of virtual address.
pub(crate) fn levels(size: PageSize, va_bits: u32) -> u32 {
    let page = shift(size);
    (va_bits - page).div_ceil(page - 3)
}

#[test]
fn the_reference_agrees_with_counts_made_by_hand() {
    // 4K: 0x4000_0000 to 0x1_4000_0000 is four blocks of 1G, as a group of 16G would have to begin
    // at a multiple of 16G.
    let four = Reference::new(K4, false, false, &[range(GIB, 5 * GIB)]);
    assert_eq!(four.leaves(), [(GIB, false, 4)]);
    assert_eq!(four.tables(0), 1);
    let pages = Reference::new(K4, false, true, &[range(GIB, 5 * GIB)]);
    assert_eq!(pages.leaves(), [(4 * KIB, false, 1 << 20)]);
    // One table of level 1, four of level 2, 2048 of level 3.
    assert_eq!(pages.tables(0), 1 + 4 + 2048);
    // 2M less one page at its start: 15 pages, then groups of 64K.
    let odd = Reference::new(K4, false, false, &[range(GIB + 4 * KIB, GIB + 2 * MIB)]);
    assert_eq!(odd.leaves(), [(64 * KIB, true, 31), (4 * KIB, false, 15)]);
    let k16 = Reference::new(K16, false, false, &[range(GIB, 3 * GIB + 64 * MIB)]);
    assert_eq!(k16.leaves(), [(GIB, true, 2), (32 * MIB, false, 2)]);
    let k64 = Reference::new(K64, false, false, &[range(15 * GIB, 33 * GIB)]);
    assert_eq!(k64.leaves(), [(16 * GIB, true, 1), (512 * MIB, false, 4)]);
    assert_eq!(levels(K4, 52), 5);
    assert_eq!(levels(K16, 48), 4);
    assert_eq!(levels(K64, 36), 2);
    assert_eq!(entry_bytes(K16, 1), 64 * GIB);
}
