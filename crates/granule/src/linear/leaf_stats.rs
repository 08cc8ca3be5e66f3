//! Counts the leaves and tables of a linear map by arithmetic, before the map exists.
//!
//! Pure code: no memory is read or written. The strategies size their table memory by
//! it, `granule plan` prints it, and the kernel's self-check compares its walk of the tables with
//! it.

use crate::arch::Geometry;
use crate::arch::geometry::LeafSize;
use crate::arch::page_size::Level;
use crate::table::Piece;
use crate::table::plan::Plan;

/// The contents of a linear map. The root table is not counted, because it exists before the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafStats {
    geometry: Geometry,
    /// Per level: the number of leaves without the contiguous hint, then of groups with it.
    leaves: [[u64; 2]; Level::ALL.len()],
    /// The number of tables without the root.
    pub tables: u64,
    /// The number of bytes mapped.
    pub bytes: u64,
}

impl LeafStats {
    /// Counts `pieces`, which ascend and lie inside `geometry`'s half. A piece that breaks this
    /// rule is skipped.
    #[must_use]
    pub fn new(geometry: &Geometry, pieces: &[Piece]) -> Self {
        let mut stats = Self {
            geometry: *geometry,
            leaves: [[0; 2]; Level::ALL.len()],
            tables: 0,
            bytes: 0,
        };
        // Per level, the last entry that got a table: the next piece may share that table.
        let mut tabled = [u64::MAX; Level::ALL.len()];
        let mut done = 0;
        for piece in pieces {
            let Some(from) = geometry.offset(piece.start) else {
                continue;
            };
            let room = geometry.span() - from;
            if piece.bytes == 0 || piece.bytes > room || from < done {
                continue;
            }
            let to = from + piece.bytes;
            done = to;
            let plan = Plan::shape(geometry, piece, from);
            stats.bytes += piece.bytes;
            stats.count_tables(geometry, &plan, &mut tabled, from, to);
            stats.count_leaves(geometry, &plan, from, to);
        }
        stats
    }

    /// The number of leaves of each size, largest size first; sizes without leaves are left out. A
    /// contiguous group counts as one leaf.
    pub fn leaves(&self) -> impl Iterator<Item = (LeafSize, u64)> + '_ {
        self.geometry.leaf_sizes().filter_map(|size| {
            let [plain, grouped] = self.leaves.get((size.level.number() + 1) as usize)?;
            let count = *(if size.contiguous { grouped } else { plain });
            (count > 0).then_some((size, count))
        })
    }

    fn count_tables(
        &mut self,
        geometry: &Geometry,
        plan: &Plan,
        tabled: &mut [u64; Level::ALL.len()],
        from: u64,
        to: u64,
    ) {
        let size = geometry.page_size();
        for (level, tabled) in Level::ALL.into_iter().zip(tabled) {
            if level < geometry.start_level() || level.is_last() {
                continue;
            }
            let shift = size.level_shift(level);
            let (first, last) = (from >> shift, (to - 1) >> shift);
            let mask = (1u64 << shift) - 1;
            if level < plan.top() {
                let shared = *tabled == first;
                self.tables += last - first + 1 - u64::from(shared);
                *tabled = last;
                continue;
            }
            for (entry, cut) in [(first, from & mask != 0), (last, to & mask != 0)] {
                if cut && *tabled != entry {
                    self.tables += 1;
                    *tabled = entry;
                }
            }
        }
    }

    /// Counts the leaves of the offsets from `from` to `to`, from the top level down. Each level
    /// takes the whole entries and leaves at most a head and a tail for the next level.
    fn count_leaves(&mut self, geometry: &Geometry, plan: &Plan, from: u64, to: u64) {
        let size = geometry.page_size();
        let mut pieces = [(from, to), (to, to)];
        for (level, leaves) in Level::ALL.into_iter().zip(&mut self.leaves) {
            if level < plan.top() || level < geometry.start_level() {
                continue;
            }
            let entry = size.entry_bytes(level);
            let group = entry * plan.group(size, level) as u64;
            let mut head = (from, from);
            let mut tail = (to, to);
            let mut first = true;
            for (start, end) in pieces {
                if start >= end {
                    continue;
                }
                let inner = ((start + entry - 1) & !(entry - 1), end & !(entry - 1));
                if inner.0 >= inner.1 {
                    // No whole entry at this level: the piece goes down unchanged.
                    if first {
                        head = (start, end)
                    } else {
                        tail = (start, end)
                    }
                    first = false;
                    continue;
                }
                if start < inner.0 {
                    head = (start, inner.0);
                    first = false;
                }
                if inner.1 < end {
                    tail = (inner.1, end);
                }
                let groups = ((inner.0 + group - 1) & !(group - 1), inner.1 & !(group - 1));
                let grouped = if group > entry {
                    groups.1.saturating_sub(groups.0)
                } else {
                    0
                };
                leaves[0] += (inner.1 - inner.0 - grouped) >> entry.trailing_zeros();
                leaves[1] += grouped >> group.trailing_zeros();
            }
            pieces = [head, tail];
        }
    }
}
