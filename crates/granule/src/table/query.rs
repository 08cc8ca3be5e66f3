//! Queries of one address, and visits of all entries of a range.

use super::plan::OUTPUT_RUN_SHIFT;
use super::stage::Stage;
use super::visit::{self, Entry, LeftOut, Mapping, Source, Visit};
use super::walk::Place;
use super::{BitChange, PageTables, TableEnvironment, TableError};
use crate::arch::page_size::{Level, PageChoice, PageSize};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress};
use core::convert::Infallible;
use core::ops::ControlFlow;

/// The most bits of an output address in any format.
const MOST_OUTPUT_BITS: u32 = 52;

/// Every table of the tree can be read, and none is met twice.
impl<P: PageChoice, E: TableEnvironment, S: Stage> Source for PageTables<P, E, S> {
    type Stage = S;
    type Why = Infallible;

    #[inline(always)]
    fn page_size(&self) -> PageSize {
        self.size()
    }

    #[inline(always)]
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline(always)]
    fn enter(&self, _: PhysicalAddress, _: Level) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline(always)]
    fn load(&self, table: PhysicalAddress, index: usize) -> Result<Descriptor, Infallible> {
        Ok(Self::load(self, table, index))
    }
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> PageTables<P, E, S> {
    /// The mapping of `address`, if it is mapped.
    // In line, so that what the caller does not look at is not decoded.
    #[must_use]
    #[inline(always)]
    pub fn query(&self, address: S::Input) -> Option<Mapping<S::Input, S::Attributes>> {
        let offset = self.geometry.offset(S::address(address))?;
        let Place { level, entry, .. } = self.place(offset);
        visit::mapping(self, level, entry, offset)
    }

    /// Calls `found` with the mapping of each valid leaf that translates a part of the range, by ascending
    /// address. [`visit`](Self::visit) shows tables and present-invalid leaves too, and can end early.
    ///
    /// # Errors
    ///
    /// As for [`visit`](Self::visit).
    pub fn for_each(
        &self,
        start: S::Input,
        bytes: u64,
        mut found: impl FnMut(Mapping<S::Input, S::Attributes>),
    ) -> Result<(), TableError> {
        let _ = self.visit(start, bytes, |entry| {
            if entry.kind == Kind::Leaf {
                found(Mapping {
                    output: entry.output,
                    start: entry.start,
                    bytes: entry.bytes,
                    level: entry.level,
                    contiguous: entry.descriptor.is_contiguous(),
                    attributes: S::decode(entry.descriptor, &self.geometry),
                });
            }
            Visit::EVERYTHING
        })?;
        Ok(())
    }

    /// Calls `visit` for each entry, valid or present-invalid, that translates a part of the range.
    /// The order is by ascending address, with a table before its entries. The visit ends when
    /// `visit` returns [`ControlFlow::Break`], and returns its value.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace).
    pub fn visit<B>(
        &self,
        start: S::Input,
        bytes: u64,
        visit: impl FnMut(&Entry<S::Input>) -> ControlFlow<B, Visit>,
    ) -> Result<ControlFlow<B>, TableError> {
        let offsets = self.offsets(start, bytes)?;
        Ok(self.visit_in::<B, false>(offsets, visit))
    }

    /// As [`visit`](Self::visit), for the whole address space.
    pub fn visit_all<B>(
        &self,
        visit: impl FnMut(&Entry<S::Input>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        self.visit_in::<B, false>((0, self.geometry.span()), visit)
    }

    /// As [`visit_all`](Self::visit_all), but calls `visit` once for a run of leaves in one table
    /// that have the same attributes and consecutive outputs. The call gets the first leaf, with
    /// the run's [`count`](Entry::count). On a map of pages this is about twenty times as fast.
    pub fn visit_runs<B>(
        &self,
        visit: impl FnMut(&Entry<S::Input>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        self.visit_in::<B, true>((0, self.geometry.span()), visit)
    }

    fn visit_in<B, const RUNS: bool>(
        &self,
        offsets: (u64, u64),
        mut visit: impl FnMut(&Entry<S::Input>) -> ControlFlow<B, Visit>,
    ) -> ControlFlow<B> {
        let mut each = |found: Result<&Entry<S::Input>, LeftOut<Infallible>>| match found {
            Ok(entry) => visit(entry),
            Err(never) => match never.why {},
        };
        visit::visit_tree::<_, B, RUNS>(self, self.root, offsets, &mut each)
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
        let step = self.size().entry_bytes(level);
        visit::run_length(self, table, index, step, first, most)
    }

    /// As [`run_length`](Self::run_length), for pages with consecutive outputs and any attributes. The first
    /// entry of a contiguous group answers for all of it, because groups here are whole: the hint is given to
    /// all members together, whose outputs follow each other, and taken from all together.
    #[inline(always)]
    pub(super) fn output_run_length(
        &self,
        table: PhysicalAddress,
        index: usize,
        first: Descriptor,
        most: usize,
    ) -> usize {
        let page = self.size().bytes();
        let all = PhysicalAddress(((1 << MOST_OUTPUT_BITS) - 1) & !(page - 1));
        // The leaf bits tell an empty entry from an output at zero.
        let looked_at = self.geometry.address_bits(all) | BitChange::LEAVES;
        let (step, looked_at) = if first.is_contiguous() {
            let members = self.size().contiguous_entries(Level::L3);
            (members, looked_at | Descriptor::CONTIGUOUS)
        } else {
            (1, looked_at)
        };
        let mut count = step - (index & (step - 1));
        while count < most {
            let expected = first.0.wrapping_add(count as u64 * page);
            if (self.load(table, index + count).0 ^ expected) & looked_at != 0 {
                break;
            }
            count += step;
        }
        count.min(most)
    }

    /// The number of pages from `output` on, at most `most`, whose descriptors can differ by a
    /// constant step in this format.
    pub(super) fn most_in_run(&self, output: PhysicalAddress, most: usize) -> usize {
        let rest = (1 << OUTPUT_RUN_SHIFT) - (output.0 & ((1 << OUTPUT_RUN_SHIFT) - 1));
        most.min((rest >> self.size().shift()) as usize)
    }
}
