//! Changing bits of the pages of a range in place, one way or the other: by what their frames are.
//!
//! Whole runs of frames are asked for and changed together, so nothing is decided once a page. For
//! tables with nothing but pages and groups of them, of which the ends of a range cut none.

use super::page::Slot;
use super::{BitChange, Environment, PageTables};
use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, Page};

/// What becomes of pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// Of those whose frames nobody else has.
    pub(crate) alone: BitChange,
    /// Of all others, and of every member of a group in which there is such a one: members have the
    /// same permissions (RJQQTC).
    pub(crate) shared: BitChange,
}

impl Choice {
    /// The same of all.
    pub(crate) const fn all(change: BitChange) -> Self {
        Self {
            alone: change,
            shared: change,
        }
    }
}

/// Pages whose frames follow each other.
#[derive(Clone, Copy)]
struct Run {
    slot: Slot,
    output: PhysicalAddress,
    pages: usize,
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Changes the pages between two offsets by a choice, and then, if there was one, invalidates
    /// them: permissions may change in place (RWHZWS). `sharing` says of the first of so many frames
    /// whether it is shared, and how many are alike in that; it is not asked where there is no choice.
    pub(crate) fn change_by_choice(
        &mut self,
        from: u64,
        to: u64,
        choice: Choice,
        sharing: impl Fn(PhysicalAddress, u64) -> (bool, u64),
    ) {
        let mut changed = 0;
        let mut at = from;
        while at < to {
            let (slot, next) = self.pages_from(at, to);
            if let Some(slot) = slot {
                let count = ((next - at) >> P::SIZE.shift()) as usize;
                changed += self.change_table(slot, count, choice, &sharing);
            }
            at = next;
        }
        if changed > 0 {
            self.flush_pages(from, to);
        }
    }

    /// The same for `count` entries of one table, and how many of them changed.
    fn change_table(
        &mut self,
        from: Slot,
        count: usize,
        choice: Choice,
        sharing: &impl Fn(PhysicalAddress, u64) -> (bool, u64),
    ) -> usize {
        let table = from.table;
        if choice.alone == choice.shared {
            return self.update(table, from.index, count, choice.shared);
        }
        let end = from.index + count;
        let mut index = from.index;
        let mut changed = 0;
        while let Some(found) = self.next_mapped(table, index, end) {
            index = found;
            let first = self.load(table, index);
            let mut output = self.geometry.address_of(first, Level::L3);
            let most = self.most_in_run(output, end - index);
            let run_end = index + self.output_run_length(table, index, first, most);
            while index < run_end {
                let run = Run {
                    slot: Slot { table, index },
                    output,
                    pages: run_end - index,
                };
                let (shared, pages) = self.whole_groups(run, sharing);
                let change = if shared { choice.shared } else { choice.alone };
                changed += self.update(table, index, pages, change);
                index += pages;
                output.0 += (pages as u64) << P::SIZE.shift();
            }
        }
        changed
    }

    /// How many pages at the start of a run are dealt with together, and whether as shared: a group
    /// that is shared in part is shared, and nothing ends within one.
    fn whole_groups(
        &self,
        run: Run,
        sharing: &impl Fn(PhysicalAddress, u64) -> (bool, u64),
    ) -> (bool, usize) {
        let group = P::SIZE.contiguous_entries(Level::L3);
        let mut alone = 0;
        while alone < run.pages {
            let output = PhysicalAddress(run.output.0 + ((alone as u64) << P::SIZE.shift()));
            let (shared, alike) = sharing(output, (run.pages - alone) as u64);
            let alike = alone + (alike as usize).max(1);
            if alone > 0 && shared {
                // Within a group, of which others have a part.
                let inside = (run.slot.index + alone) & (group - 1);
                if alone > inside {
                    return (false, alone - inside);
                }
            }
            let behind = run.slot.index + alike;
            let inside = behind & (group - 1);
            let cut = inside != 0
                && alike < run.pages
                && self.load(run.slot.table, behind - 1).is_contiguous();
            if shared {
                let rest = if cut { group - inside } else { 0 };
                return (true, run.pages.min(alike + rest));
            }
            alone = run.pages.min(alike);
            if !cut {
                break;
            }
        }
        (false, alone)
    }
}
