//! Merging leaves again: what a split took apart, and whatever else turns out to be alike.
//!
//! A table whose entries are leaves that follow each other in memory with the same attributes
//! becomes a block; entries of a whole, aligned group get the contiguous hint. Both change only
//! the size, under the same rules as splitting. What is unlinked is freed only after the TLB was
//! invalidated for all that it translated, at the size of the small leaves and at all levels:
//! stale small entries translate alike, but the next change of the block invalidates by one
//! address of it and would miss them. Until then not a bit of an unlinked table may change: what
//! it maps stays mapped, and a walker that still has a pointer to it goes on reading it.

use super::piece::Leaves;
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
    /// `leaves` allows. What reaches across the ends of the range stays as it is, and so do
    /// hidden leaves.
    ///
    /// Nothing is broken first, so an access never faults. On live tables that takes CPUs with
    /// level 2 of FEAT_BBM ([`set_bbm`](Self::set_bbm)); with level 1 only groups get their hint,
    /// with level 0 everything stays as it is.
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
        let nothing = self.liveness == Liveness::Live && self.bbm == BbmLevel::Level0;
        if from == to || nothing {
            return Ok(merged);
        }
        let mut retired = Retired::NONE;
        let (root, level) = (self.root, self.geometry.start_level());
        self.merge_tables(root, level, from, to, leaves, &mut merged, &mut retired);
        self.merge_groups(root, level, from, to, leaves, &mut merged, &mut retired);
        self.free_retired(&mut retired);
        Ok(merged)
    }

    /// Merges the tables below `table`, smallest leaves first. A table that stays gets its groups
    /// then, when nothing in it changes any more; one that becomes a block never needs them.
    #[allow(clippy::too_many_arguments)]
    fn merge_tables(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
        merged: &mut Merged,
        retired: &mut Retired,
    ) {
        if level.is_last() {
            return;
        }
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let next = to.min((at & !(bytes - 1)) + bytes);
            let index = Self::index(at, level);
            let entry = self.load(table, index);
            if entry.is_table(level) {
                let (child, below) = (self.geometry.address_of(entry, level), level.next());
                self.merge_tables(child, below, at, next, leaves, merged, retired);
                let whole = next - at == bytes;
                let wanted = whole && level >= leaves.top && self.geometry.leaf_allowed(level);
                if !(wanted && self.merge_table(table, index, level, at, child, merged, retired)) {
                    self.merge_groups(child, below, at, next, leaves, merged, retired);
                }
            }
            at = next;
        }
    }

    /// Puts a block in the place of `child`, if its entries are alike and the rules allow it.
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
    ) -> bool {
        let below = level.next();
        let bytes = P::SIZE.entry_bytes(level);
        let old = self.load(table, index);
        let first = self.load(child, 0);
        let output = self.geometry.address_of(first, below);
        let bits = self.geometry.attribute_bits(first, below);
        let block = Descriptor::leaf(&self.geometry, level, output, bits);
        if old.0 & Descriptor::RESTRICTIONS != 0
            || output.0 & (bytes - 1) != 0
            || !self.allows(level, old, block)
            || !self.alike(child, below, 0, P::SIZE.entries())
        {
            return false;
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
        true
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
    #[allow(clippy::too_many_arguments)]
    fn merge_groups(
        &mut self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        leaves: Leaves,
        merged: &mut Merged,
        retired: &mut Retired,
    ) {
        let group = P::SIZE.contiguous_entries(level);
        let wanted = leaves.contiguous && level >= leaves.top;
        if group <= 1 || !wanted || !self.geometry.leaf_allowed(level) {
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
                && self.allows(level, old, grouped)
                && self.alike(table, level, first, group)
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

    /// Whether `count` entries from `first` on are valid leaves that differ in nothing but the
    /// contiguous hint and in their outputs, which follow each other.
    fn alike(&self, table: PhysicalAddress, level: Level, first: usize, count: usize) -> bool {
        let step = P::SIZE.entry_bytes(level);
        let start = self.load(table, first);
        let output = self.geometry.address_of(start, level).0;
        let bits = self.geometry.attribute_bits(start, level);
        (0..count).all(|number| {
            let entry = self.load(table, first + number);
            entry.kind(&self.geometry, level) == Kind::Leaf
                && self.geometry.address_of(entry, level).0 == output + number as u64 * step
                && self.geometry.attribute_bits(entry, level) == bits
        })
    }
}
