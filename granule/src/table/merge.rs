//! Merging leaves again: what a split took apart, and whatever else turns out to be alike.
//!
//! A table whose entries are leaves that follow each other in memory with the same attributes
//! becomes a block; entries of a whole, aligned group get the contiguous hint. Both change only
//! the size, under the same rules as splitting. What is unlinked is freed only after the TLB was
//! invalidated for all that it translated, at the size of the small leaves and at all levels:
//! stale small entries translate alike, but the next change of the block invalidates by one
//! address of it and would miss them. Until then not a bit of an unlinked table may change: what
//! it maps stays mapped, and a walker that still has a pointer to it goes on reading it.

use super::map::Leaves;
use super::{BitChange, Environment, Liveness, PageTables, TableError, flush};
use crate::arch::bbm::{BbmLevel, Change, classify};
use crate::arch::page_size::{Level, Page};
use crate::arch::tlbi::{Invalidation, Reach};
use crate::arch::{Descriptor, Kind, PhysicalAddress, VirtualAddress};

/// What a merge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Tables that were given back.
    pub tables: u64,
    /// Contiguous groups that were made.
    pub groups: u64,
}

/// Tables that wait for one invalidation together.
const MOST_RETIRED: usize = 32;

/// Tables that were unlinked by merging, with their contents as they were.
struct Retired {
    tables: [PhysicalAddress; MOST_RETIRED],
    count: usize,
    /// The offsets that they, and groups merged meanwhile, translate; empty if `last` is 0.
    first: u64,
    last: u64,
    /// The smallest entry among them, in bytes.
    stride: u64,
}

impl Retired {
    const NONE: Self = Self {
        tables: [PhysicalAddress(0); MOST_RETIRED],
        count: 0,
        first: u64::MAX,
        last: 0,
        stride: u64::MAX,
    };

    fn reach(&mut self, from: u64, to: u64, stride: u64) {
        self.first = self.first.min(from);
        self.last = self.last.max(to);
        self.stride = self.stride.min(stride);
    }
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Merges what is alike among `bytes` bytes from `start`, into leaves no larger than
    /// `leaves` allows. Leaves that reach across the ends of the range stay as they are, and so
    /// does everything on live tables whose CPUs have not level 2 of FEAT_BBM
    /// ([`set_bbm`](Self::set_bbm)): nothing is broken first, so an access never faults.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn merge(
        &mut self,
        start: VirtualAddress,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<Merged, TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let mut merged = Merged::default();
        if from == to || !self.may_resize() {
            return Ok(merged);
        }
        let mut retired = Retired::NONE;
        let level = self.geometry.start_level();
        self.merge_in(
            self.root,
            level,
            from,
            to,
            leaves,
            &mut merged,
            &mut retired,
        );
        self.free_retired(&mut retired);
        Ok(merged)
    }

    /// Whether a block may become a table and a table a block in place.
    const fn may_resize(&self) -> bool {
        matches!(self.liveness, Liveness::Private) || self.bbm.number() >= BbmLevel::Level2.number()
    }

    #[allow(clippy::too_many_arguments)]
    fn merge_in(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
        merged: &mut Merged,
        retired: &mut Retired,
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        if !level.is_last() {
            let mut at = from;
            while at < to {
                let next = to.min((at & !(bytes - 1)) + bytes);
                let index = Self::index(at, level);
                let entry = self.load(table, index);
                if entry.is_table(level) {
                    let below = self.geometry.address_of(entry, level);
                    self.merge_in(below, level.next(), at, next, leaves, merged, retired);
                    let whole = next - at == bytes;
                    if whole && level >= leaves.top && self.geometry.leaf_allowed(level) {
                        self.merge_table(table, index, level, at, below, merged, retired);
                    }
                }
                at = next;
            }
        }
        if leaves.contiguous && level >= leaves.top {
            self.merge_groups(table, level, from, to, merged, retired);
        }
    }

    /// Puts a block in the place of `child`, if its entries are alike.
    #[allow(clippy::too_many_arguments)]
    fn merge_table(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        level: Level,
        offset: u64,
        child: PhysicalAddress,
        merged: &mut Merged,
        retired: &mut Retired,
    ) {
        let below = level.next();
        let Some(bits) = self.alike(child, below, 0, P::SIZE.entries()) else {
            return;
        };
        let first = self.geometry.address_of(self.load(child, 0), below);
        let bytes = P::SIZE.entry_bytes(level);
        if first.0 & (bytes - 1) != 0 {
            return;
        }
        let old = self.load(table, index);
        let block = Descriptor::leaf(&self.geometry, level, first, bits);
        if !self.allows(level, old, block) {
            return;
        }
        self.store(table, index, block, self.visibility());
        retired.reach(offset, offset + bytes, P::SIZE.entry_bytes(below));
        if let Some(slot) = retired.tables.get_mut(retired.count) {
            *slot = child;
            retired.count += 1;
        }
        merged.tables += 1;
        if retired.count == MOST_RETIRED {
            self.free_retired(retired);
        }
    }

    /// Invalidates what the retired tables translated, then frees them.
    fn free_retired(&mut self, retired: &mut Retired) {
        if self.liveness == Liveness::Live && retired.last > 0 {
            let what = Invalidation {
                start: self.address(retired.first),
                bytes: retired.last - retired.first,
                stride: retired.stride,
                reach: Reach::AllLevels,
                asid: self.asid,
                level: None,
            };
            flush::invalidate(&mut self.environment, &what);
        }
        for table in retired.tables.iter().take(retired.count) {
            self.environment.free(*table);
        }
        *retired = Retired::NONE;
    }

    /// Sets the contiguous hint on each whole group between the offsets whose entries are alike.
    fn merge_groups(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        merged: &mut Merged,
        retired: &mut Retired,
    ) {
        let group = P::SIZE.contiguous_entries(level);
        if group <= 1 || !self.geometry.leaf_allowed(level) {
            return;
        }
        let entry = P::SIZE.entry_bytes(level);
        let bytes = entry * group as u64;
        let mut at = from.next_multiple_of(bytes);
        while at + bytes <= to {
            let first = Self::index(at, level);
            let old = self.load(table, first);
            let grouped = Descriptor(old.0 | Descriptor::CONTIGUOUS);
            let output = self.geometry.address_of(old, level);
            if !old.is_contiguous()
                && output.0 & (bytes - 1) == 0
                && self.alike(table, level, first, group).is_some()
                && self.allows(level, old, grouped)
            {
                let of = BitChange::LEAVES;
                let change = BitChange {
                    of,
                    clear: 0,
                    set: Descriptor::CONTIGUOUS,
                };
                self.update(table, first, group, change);
                retired.reach(at, at + bytes, entry);
                merged.groups += 1;
            }
            at += bytes;
        }
    }

    fn allows(&self, level: Level, old: Descriptor, new: Descriptor) -> bool {
        self.liveness == Liveness::Private
            || matches!(
                classify(&self.geometry, level, old, new, self.bbm),
                Change::StoreResized { .. }
            )
    }

    /// The bits, without address, contiguous hint and kind, that `count` entries from `first` on
    /// have in common, if all are valid leaves whose outputs follow each other.
    fn alike(
        &self,
        table: PhysicalAddress,
        level: Level,
        first: usize,
        count: usize,
    ) -> Option<u64> {
        let step = P::SIZE.entry_bytes(level);
        let start = self.load(table, first);
        if start.kind(&self.geometry, level) != Kind::Leaf {
            return None;
        }
        let output = self.geometry.address_of(start, level).0;
        let bits = self.geometry.attribute_bits(start, level);
        for number in 1..count {
            let entry = self.load(table, first + number);
            let alike = entry.kind(&self.geometry, level) == Kind::Leaf
                && self.geometry.address_of(entry, level).0 == output + number as u64 * step
                && self.geometry.attribute_bits(entry, level) == bits;
            if !alike {
                return None;
            }
        }
        Some(bits)
    }
}
