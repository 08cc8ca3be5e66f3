//! Changes of the pages of a range in place that depend on whether their frames are shared.
//!
//! The code asks about whole runs of frames and changes them together, so it decides nothing page
//! by page. An end of a range must not cut a contiguous group or a block.

use super::block::{BLOCK, MappedBy};
use super::page::Slot;
use super::{BitChange, PageTables, TableEnvironment};
use crate::arch::PhysicalAddress;
use crate::arch::page_size::{Level, PageChoice, PageSize};

/// The change of unshared pages and the change of shared pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// For pages whose frames no other space has.
    pub(crate) alone: BitChange,
    /// For all other pages, and for all of a group or block with such a page, because all members of
    /// a group must have the same permissions (RJQQTC).
    pub(crate) shared: BitChange,
}

impl Choice {
    /// The same change for all pages.
    pub(crate) const fn all(change: BitChange) -> Self {
        Self {
            alone: change,
            shared: change,
        }
    }
}

/// Pages whose frames are consecutive.
#[derive(Clone, Copy)]
struct Run {
    slot: Slot,
    output: PhysicalAddress,
    pages: usize,
}

/// Whether any of the frames of `bytes` bytes from `first` on is shared.
pub(crate) fn any_shared(
    size: PageSize,
    mut first: PhysicalAddress,
    bytes: u64,
    sharing: impl Fn(PhysicalAddress, u64) -> (bool, u64),
) -> bool {
    let mut left = bytes >> size.shift();
    while left > 0 {
        let (shared, alike) = sharing(first, left);
        if shared {
            return true;
        }
        let alike = alike.clamp(1, left);
        first.0 += alike << size.shift();
        left -= alike;
    }
    false
}

impl<P: PageChoice, E: TableEnvironment> PageTables<P, E> {
    /// Changes the pages between two offsets by a choice, and invalidates the range if a page
    /// changed: permissions may change in place (RWHZWS). `sharing` takes a run of frames. It
    /// returns whether the first one is shared, and how many from there on are alike. If both
    /// changes of the choice are equal, `sharing` is not called.
    pub(crate) fn change_by_choice(
        &mut self,
        from: u64,
        to: u64,
        choice: Choice,
        sharing: impl Fn(PhysicalAddress, u64) -> (bool, u64),
    ) {
        let (mut pages, mut blocks) = (0, 0);
        let mut at = from;
        while at < to {
            let (mapped, next) = self.mapped_from(at, to);
            match mapped {
                MappedBy::Pages(slot) => {
                    let count = ((next - at) >> self.size().shift()) as usize;
                    pages += self.change_table(slot, count, choice, &sharing);
                }
                MappedBy::Block(slot, entry) => {
                    let shared = choice.alone != choice.shared
                        && any_shared(
                            self.size(),
                            self.block_output(entry),
                            self.block_bytes(),
                            &sharing,
                        );
                    let change = if shared { choice.shared } else { choice.alone };
                    blocks += self.update(slot.table, slot.index, 1, change);
                }
                MappedBy::Nothing => {}
            }
            at = next;
        }
        if blocks > 0 {
            self.pending.leaves(from, to, BLOCK, self.block_bytes());
            if pages > 0 {
                self.pending.pages(from, to, self.size());
            }
            self.flush();
        } else if pages > 0 {
            self.flush_pages(from, to);
        }
    }

    /// As `change_by_choice` for `count` entries of one table, without the invalidation. Returns
    /// how many entries changed.
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
                output.0 += (pages as u64) << self.size().shift();
            }
        }
        changed
    }

    /// Whether the first pages of a run count as shared, and how many of them change together. A
    /// partly shared group counts as shared, and the result never ends inside a group.
    fn whole_groups(
        &self,
        run: Run,
        sharing: &impl Fn(PhysicalAddress, u64) -> (bool, u64),
    ) -> (bool, usize) {
        let group = self.size().contiguous_entries(Level::L3);
        let mut alone = 0;
        while alone < run.pages {
            let output = PhysicalAddress(run.output.0 + ((alone as u64) << self.size().shift()));
            let (shared, alike) = sharing(output, (run.pages - alone) as u64);
            let alike = alone + (alike as usize).max(1);
            if alone > 0 && shared {
                // The shared frame may be inside a group, which is then partly shared.
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
