//! The published strategies: every table is reached through a fixmap slot.
//!
//! Before the linear map exists no RAM is mapped, so a table taken from RAM can be written only
//! while a slot of the fixmap shows it: map the slot, write, unmap it, and invalidate the TLB for
//! each unmapping. Here they are as they were published, to be measured against: `base` maps the
//! table anew for every contiguous span of entries inside it, and once more to zero it, and each
//! entry pays its own DSB and ISB.

use super::Census;
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Geometry, Kind, PhysicalAddress};
use crate::table::map::{Piece, Plan};
use crate::table::{self, Maintenance, TableAllocator, TableError};
use core::marker::PhantomData;

/// The slot through which tables of a level are shown: one a level, as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub Level);

impl Slot {
    /// The slot that shows a new table while it is zeroed, whatever its level.
    pub const ZEROING: Self = Self(Level::L3);
}

/// Slots that show a table each.
///
/// # Safety
///
/// Between [`open`](Self::open) and [`close`](Self::close) the slot's loads and stores must reach
/// exactly the table it was opened for.
pub unsafe trait Windows {
    /// Shows `table` in `slot`, with the barriers that make it usable.
    fn open(&mut self, slot: Slot, table: PhysicalAddress);
    /// Takes the slot's mapping away and invalidates the TLB for it, completely.
    fn close(&mut self, slot: Slot);
    /// Loads an entry of the table that `slot` shows.
    ///
    /// # Safety
    ///
    /// The slot must be open and `index` inside a table.
    unsafe fn load(&self, slot: Slot, index: usize) -> Descriptor;
    /// Stores an entry of the table that `slot` shows.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and nobody else writes the table.
    unsafe fn store(&mut self, slot: Slot, index: usize, descriptor: Descriptor);
}

/// Makes a linear map through fixmap slots.
#[derive(Debug)]
pub struct WindowBuilder<'e, P, E> {
    geometry: Geometry,
    environment: &'e mut E,
    page: PhantomData<P>,
}

impl<'e, P, E> WindowBuilder<'e, P, E>
where
    P: Page,
    E: Windows + TableAllocator + Maintenance,
{
    /// For live tables of `geometry`.
    pub const fn new(geometry: Geometry, environment: &'e mut E) -> Self {
        Self {
            geometry,
            environment,
            page: PhantomData,
        }
    }

    /// Makes the linear map of `pieces`, which ascend, below `root`, strategy `base`. The part
    /// of the root that it uses must be empty.
    ///
    /// # Errors
    ///
    /// [`TableError::OutOfTables`] before anything is changed,
    /// [`OutsideSpace`](TableError::OutsideSpace) for a piece outside the half.
    pub fn create_base(
        &mut self,
        root: PhysicalAddress,
        pieces: &[Piece],
    ) -> Result<(), TableError> {
        let census = Census::new(&self.geometry, pieces);
        let needed = census.tables() as usize;
        let exhausted = TableError::OutOfTables { needed };
        if !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        for piece in pieces {
            let (start, bytes) = (piece.start, piece.bytes);
            let va_bits = self.geometry.va_bits();
            let from = match self.geometry.offset(start) {
                Some(from) if from.saturating_add(bytes) <= self.geometry.span() => from,
                _ => {
                    return Err(TableError::OutsideSpace {
                        start,
                        bytes,
                        va_bits,
                    });
                }
            };
            if bytes == 0 {
                continue;
            }
            let plan = Plan::new(&self.geometry, piece, from);
            let level = self.geometry.start_level();
            self.range(&plan, root, level, from, from + bytes)
                .ok_or(exhausted)?;
        }
        Ok(())
    }

    /// Writes the entries of `table` for the offsets from `start` to `end`, opening its slot for
    /// each contiguous span of entries. Levels without a contiguous hint are one span.
    fn range(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
    ) -> Option<()> {
        let entry = P::SIZE.entry_bytes(level);
        let span = match (level, P::SIZE.contiguous_entries(level)) {
            (Level::L2 | Level::L3, group) if group > 1 => entry * group as u64,
            _ => entry * P::SIZE.entries() as u64,
        };
        let mut at = start;
        while at < end {
            let next = end.min((at & !(span - 1)) + span);
            self.environment.open(Slot(level), table);
            let done = self.span(plan, level, at, next);
            self.environment.close(Slot(level));
            done?;
            at = next;
        }
        Some(())
    }

    /// Writes the entries for the offsets from `start` to `end` of the table in the open slot.
    fn span(&mut self, plan: &Plan, level: Level, start: u64, end: u64) -> Option<()> {
        let bytes = P::SIZE.entry_bytes(level);
        let group = bytes * plan.group(P::SIZE, level) as u64;
        let grouped = (start.next_multiple_of(group), end & !(group - 1));
        let mut at = start;
        while at < end {
            let next = end.min((at & !(bytes - 1)) + bytes);
            let index = (at >> P::SIZE.level_shift(level)) as usize & (P::SIZE.entries() - 1);
            // SAFETY: `range` opened the slot for this table; the index is masked to a table.
            let old = unsafe { self.environment.load(Slot(level), index) };
            let kind = old.kind(&self.geometry, level);
            if kind == Kind::Invalid && level >= plan.top() && next - at == bytes {
                let mut bits = plan.bits();
                if group > bytes && at >= grouped.0 && next <= grouped.1 {
                    bits |= Descriptor::CONTIGUOUS;
                }
                let output = PhysicalAddress(plan.output(at));
                self.store(
                    level,
                    index,
                    Descriptor::leaf(&self.geometry, level, output, bits),
                );
            } else {
                let below = if kind == Kind::Table {
                    self.geometry.address_of(old, level)
                } else {
                    let below = self.new_table()?;
                    self.store(level, index, Descriptor::table(&self.geometry, below));
                    below
                };
                self.range(plan, below, level.next(), at, next)?;
            }
            at = next;
        }
        Some(())
    }

    /// Stores one entry with its own barriers.
    fn store(&mut self, level: Level, index: usize, descriptor: Descriptor) {
        // SAFETY: the slot of `level` is open while its span is written, and this builder is the
        // only writer of the tables.
        unsafe { self.environment.store(Slot(level), index, descriptor) };
        table::publish(self.environment);
    }

    /// Takes a table and zeroes it through the zeroing slot.
    fn new_table(&mut self) -> Option<PhysicalAddress> {
        let table = self.environment.allocate(1)?.first;
        self.environment.open(Slot::ZEROING, table);
        for index in 0..P::SIZE.entries() {
            // SAFETY: the slot was just opened; the table is new and nobody else's.
            unsafe {
                self.environment
                    .store(Slot::ZEROING, index, Descriptor::INVALID)
            };
        }
        self.environment.close(Slot::ZEROING);
        Some(table)
    }
}
