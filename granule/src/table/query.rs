//! Queries of one address, and visits of all entries of a range.
//!
//! The code here only reads: it stores nothing, allocates nothing and issues no barrier.

use super::plan::OUTPUT_RUN_SHIFT;
use super::stage::Stage;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Attributes, Descriptor, Kind, PhysicalAddress, VirtualAddress};

/// The most bits of an output address in any format.
const MOST_OUTPUT_BITS: u32 = 52;

/// The mapping of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<I = VirtualAddress, A = Attributes> {
    /// The physical address of the queried address.
    pub output: PhysicalAddress,
    /// The first address of the entry.
    pub start: I,
    /// The bytes of the entry; in a contiguous group still those of the entry, not of the group.
    pub bytes: u64,
    /// The level of the entry.
    pub level: Level,
    /// Whether the contiguous hint is set.
    pub contiguous: bool,
    /// The memory type and permissions.
    pub attributes: A,
}

/// One entry found by [`PageTables::visit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<I = VirtualAddress> {
    /// The table that holds the entry.
    pub table: PhysicalAddress,
    /// The index in that table.
    pub index: usize,
    /// The level of that table.
    pub level: Level,
    /// The first address that the entry translates.
    pub start: I,
    /// The bytes that the entry translates.
    pub bytes: u64,
    /// The length of the run that begins here: entries of this table with the same attributes and
    /// consecutive outputs. Always 1 except in [`PageTables::visit_runs`].
    pub count: usize,
    /// The descriptor itself.
    pub descriptor: Descriptor,
    /// The kind: a leaf, a present-invalid leaf, or a table.
    pub kind: Kind,
    /// The address of the next table, or the first byte of the output.
    pub output: PhysicalAddress,
}

/// The last entry of a walk to one offset.
pub(super) struct Found {
    pub table: PhysicalAddress,
    pub level: Level,
    pub descriptor: Descriptor,
    pub kind: Kind,
}

impl<P: Page, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The mapping of `address`, if it is mapped.
    #[must_use]
    pub fn query(&self, address: S::Input) -> Option<Mapping<S::Input, S::Attributes>> {
        let offset = self.geometry.offset(S::address(address))?;
        let found = self.walk(offset);
        if found.kind != Kind::Leaf {
            return None;
        }
        let bytes = P::SIZE.entry_bytes(found.level);
        let start = offset & !(bytes - 1);
        let first = self.geometry.address_of(found.descriptor, found.level);
        Some(Mapping {
            output: PhysicalAddress(first.0 + (offset - start)),
            start: S::input(self.address(start)),
            bytes,
            level: found.level,
            contiguous: found.descriptor.is_contiguous(),
            attributes: S::decode(found.descriptor, &self.geometry),
        })
    }

    /// Calls `visit` for each entry, valid or present-invalid, that translates a part of the range.
    /// The order is by ascending address, with a table before its entries. If `visit` returns false
    /// for a table, its entries are skipped.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn visit(
        &self,
        start: S::Input,
        bytes: u64,
        mut visit: impl FnMut(&Entry<S::Input>) -> bool,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        self.visit_roots::<false>(from, to, &mut visit);
        Ok(())
    }

    /// As [`visit`](Self::visit), for the whole address space.
    pub fn visit_all(&self, mut visit: impl FnMut(&Entry<S::Input>) -> bool) {
        self.visit_roots::<false>(0, self.geometry.span(), &mut visit);
    }

    /// As [`visit_all`](Self::visit_all), but calls `visit` once for a run of leaves in one table
    /// that have the same attributes and consecutive outputs. The call gets the first leaf, with
    /// the run's [`count`](Entry::count). On a map of pages this is about twenty times as fast.
    pub fn visit_runs(&self, mut visit: impl FnMut(&Entry<S::Input>) -> bool) {
        self.visit_roots::<true>(0, self.geometry.span(), &mut visit);
    }

    /// The length, at most `most`, of the run of entries that begins at `index`: the descriptors
    /// are equal except for the address, which grows by one entry each time.
    #[inline(always)]
    pub(super) fn run_length(
        &self,
        table: PhysicalAddress,
        index: usize,
        level: Level,
        first: Descriptor,
        most: usize,
    ) -> usize {
        let step = P::SIZE.entry_bytes(level);
        self.run_length_in(table, index, step, first, u64::MAX, most)
    }

    /// As [`run_length`](Self::run_length), for pages with consecutive outputs and any attributes.
    #[inline(always)]
    pub(super) fn output_run_length(
        &self,
        table: PhysicalAddress,
        index: usize,
        first: Descriptor,
        most: usize,
    ) -> usize {
        let page = P::SIZE.bytes();
        let all = PhysicalAddress(((1 << MOST_OUTPUT_BITS) - 1) & !(page - 1));
        // The leaf bits tell an empty entry from an output at zero.
        let looked_at = self.geometry.address_bits(all) | BitChange::LEAVES;
        self.run_length_in(table, index, page, first, looked_at, most)
    }

    /// The number of entries from `index` on, at most `most`, whose `looked_at` bits grow by
    /// `step`.
    #[inline(always)]
    fn run_length_in(
        &self,
        table: PhysicalAddress,
        index: usize,
        step: u64,
        first: Descriptor,
        looked_at: u64,
        most: usize,
    ) -> usize {
        let mut expected = first.0;
        let mut count = 1;
        while count < most {
            expected = expected.wrapping_add(step);
            if (self.load(table, index + count).0 ^ expected) & looked_at != 0 {
                break;
            }
            count += 1;
        }
        count
    }

    /// The number of pages from `output` on, at most `most`, whose descriptors can differ by a
    /// constant step in this format.
    pub(super) fn most_in_run(&self, output: PhysicalAddress, most: usize) -> usize {
        let rest = (1 << OUTPUT_RUN_SHIFT) - (output.0 & ((1 << OUTPUT_RUN_SHIFT) - 1));
        most.min((rest >> P::SIZE.shift()) as usize)
    }

    fn visit_roots<const RUNS: bool>(
        &self,
        from: u64,
        to: u64,
        visit: &mut impl FnMut(&Entry<S::Input>) -> bool,
    ) {
        let level = self.geometry.start_level();
        let mut at = from;
        while at < to {
            let next = self.root_end(at, to);
            self.visit_in::<RUNS>(self.root_of(at), level, at, next, visit);
            at = next;
        }
    }

    fn visit_in<const RUNS: bool>(
        &self,
        table: PhysicalAddress,
        level: Level,
        from: u64,
        to: u64,
        visit: &mut impl FnMut(&Entry<S::Input>) -> bool,
    ) {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = from;
        while at < to {
            let first = at & !(bytes - 1);
            let mut next = to.min(first + bytes);
            let index = Self::index(at, level);
            let descriptor = self.load(table, index);
            let kind = descriptor.kind(&self.geometry, level);
            if kind != Kind::Invalid {
                let output = self.geometry.address_of(descriptor, level);
                let start = S::input(self.address(first));
                let mut count = 1;
                if RUNS && kind == Kind::Leaf {
                    let most = P::SIZE.entries() - index;
                    let in_range = (to - first).div_ceil(bytes) as usize;
                    // Beyond this limit the addition carries into bits that are no address (with
                    // TCR.DS from bit 49 into GP), and an unrelated leaf would look like the next
                    // one.
                    let rest = (1 << OUTPUT_RUN_SHIFT) - (output.0 & ((1 << OUTPUT_RUN_SHIFT) - 1));
                    let in_format = (rest >> P::SIZE.level_shift(level)) as usize;
                    let most = most.min(in_range).min(in_format);
                    count = self.run_length(table, index, level, descriptor, most);
                    next = to.min(first + count as u64 * bytes);
                }
                let entry = Entry {
                    table,
                    index,
                    level,
                    start,
                    bytes,
                    count,
                    descriptor,
                    kind,
                    output,
                };
                if visit(&entry) && kind == Kind::Table {
                    self.visit_in::<RUNS>(output, level.next(), at, next, visit);
                }
            }
            at = next;
        }
    }

    /// Walks to `offset` and returns the last entry on the way.
    pub(super) fn walk(&self, offset: u64) -> Found {
        let mut table = self.root_of(offset);
        let mut level = self.geometry.start_level();
        loop {
            let descriptor = self.load(table, Self::index(offset, level));
            let kind = descriptor.kind(&self.geometry, level);
            if kind != Kind::Table {
                return Found {
                    table,
                    level,
                    descriptor,
                    kind,
                };
            }
            table = self.geometry.address_of(descriptor, level);
            level = level.next();
        }
    }
}
