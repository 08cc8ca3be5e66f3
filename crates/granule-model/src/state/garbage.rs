//! Memory that was linked as a table and holds something else, whose words lead back to it.

use super::ids::{PAGE_SHIFT, PER_PAGE};
use super::memory::Memory;
use crate::arch::descriptor::{self, EntryKind};
use crate::arch::format::Format;

/// The most entries by which a table leads back to itself, or to the table that leads to it. A kernel that maps its
/// tables by themselves has one; with many a walk has more paths than can be followed.
const MOST: usize = 8;

/// Empties the entries of a table (address, entries, level, format) that lead back to it, or to the table at `from`, if
/// there are too many: the model goes on as if the table had been zeroed. Returns the place of the first.
pub(super) fn empty(
    memory: &mut Memory,
    (base, entries, level, format): (u64, u64, i8, Format),
    from: Option<u64>,
) -> Option<u64> {
    let leads_back = |at: &u64| {
        let raw = memory.load(*at);
        let target = descriptor::table_address(raw, format);
        descriptor::kind(raw, level, format) == EntryKind::Table
            && (target == base || Some(target) == from)
    };
    let back: Vec<u64> = (0..entries)
        .map(|index| base + index * 8)
        .filter(leads_back)
        .collect();
    if back.len() <= MOST {
        return None;
    }
    for at in &back {
        memory.page_mut(at >> PAGE_SHIFT).values_mut()[(at >> 3) as usize % PER_PAGE] = 0;
    }
    back.first().copied()
}
