//! The published strategies: every table is reached through a fixmap slot.
//!
//! Before the linear map exists no RAM is mapped, so a table in RAM can be written only while a
//! fixmap slot maps it: store the slot's descriptor, DSB, ISB; write; clear the slot's descriptor,
//! DSB, TLBI, DSB, ISB. This module keeps the strategies as they were published, as a baseline for
//! measurements. Each one includes the steps before it:
//!
//! - `base`: a table is mapped once for zeroing and linked (a DSB and an ISB). It is then mapped
//!   again for each contiguous span of its entries, 16 to 128 of them, whether or not the hint is
//!   used. Each entry costs a DSB and an ISB. A 4K table of 512 pages: 33 TLBIs, 612 DSBs, 579
//!   ISBs.
//! - `no-cont-remap`: a table is mapped once for all of its spans. 2 TLBIs.
//! - `batch-barriers`: page entries are stored without barriers; the barriers of closing the slot
//!   follow all of them and suffice. Links and blocks keep their own.
//! - `no-alloc-remap`: a new table is mapped once. It is zeroed, a DSB makes the zeros visible to
//!   the walker, the table is linked, then filled. 1 TLBI, 5 DSBs, 3 ISBs a table.
//! - `lazy-unmap`: a last-level table takes the next of sixteen slots and stays there. When no slot
//!   is free, and at the end of each piece, all slots are cleared and invalidated together: as many
//!   TLBIs as slots (one where the CPU has range operations), but one wait for them. Tables of
//!   upper levels are few and leave their slots at once.
//!
//! The first posting had no `batch-barriers`: its later steps are these with [`Barriers::Entry`].
//! From the second posting on, `base` and `no-cont-remap` also paid barriers for each entry, so
//! that is their default. `lazy-unmap` was never merged.
//!
//! By the description of `lazy-unmap`, a slot stays mapped until the next table of its level needs
//! it. A single slot for each level cannot explain the savings that were measured: before a slot
//! maps another table its entry must be made invalid and invalidated in the TLB (RWHZWS), so each
//! table would still cost a TLBI and a wait. On an Altra with 64 GiB the step saved 48 ms for
//! 32 841 tables, 1.5 us each, which is about one wait. So many tables must share a wait, hence a
//! series of slots.
//!
//! Barriers and TLBIs come from `table::flush`, as in the rest of the library, so errata
//! workarounds apply here too.

#![allow(unsafe_code, reason = "the slots, whose users keep the trait's rules")]

mod slots;

use super::{Barriers, LeafStats, Strategy};
use crate::arch::page_size::{Level, Page};
use crate::arch::{Descriptor, Geometry, Kind, PageSize, PhysicalAddress, VirtualAddress};
use crate::table::plan::Plan;
use crate::table::{Maintenance, Piece, Reservation, TableError, publish};
use core::marker::PhantomData;
pub use slots::{Entries, FixmapSlots, Slot};

/// Makes the linear map of `pieces`, which ascend, below `root` through the slots of
/// `environment`, which also allocates the tables. Returns the map's leaf statistics. The part of
/// the root that the map uses must be empty.
///
/// # Errors
///
/// [`TableError::WrongPageSize`], [`WrongTablePages`](TableError::WrongTablePages),
/// [`TablesTooHigh`](TableError::TablesTooHigh) and [`OutOfTables`](TableError::OutOfTables)
/// before anything is changed. [`OutsideSpace`](TableError::OutsideSpace) for a piece outside the
/// half and [`AlreadyMapped`](TableError::AlreadyMapped) for an entry in use; in both cases the
/// earlier pieces are mapped.
///
/// # Safety
///
/// `root` is the root of live tables of the slots' geometry, which nothing else changes meanwhile.
/// No slot is open.
pub unsafe fn create<P, E>(
    environment: &mut E,
    root: PhysicalAddress,
    pieces: &[Piece],
    strategy: Strategy,
    barriers: Barriers,
) -> Result<LeafStats, TableError>
where
    P: Page,
    E: FixmapSlots,
{
    let builder = FixmapBuilder::<P, E> {
        geometry: *environment.geometry(),
        strategy,
        barriers,
        environment,
        series: 0,
        page: PhantomData,
    };
    builder.create(root, pieces)
}

/// Builds a linear map through fixmap slots. [`create`]'s caller vouched for the root and the slots.
struct FixmapBuilder<'e, P, E> {
    geometry: Geometry,
    strategy: Strategy,
    barriers: Barriers,
    environment: &'e mut E,
    /// The number of slots of the series in use.
    series: usize,
    page: PhantomData<P>,
}

/// Why a walk stopped: the slots broke their reservation, or an entry is already mapped.
enum Stop {
    Exhausted,
    Occupied { offset: u64 },
}

impl<P, E> FixmapBuilder<'_, P, E>
where
    P: Page,
    E: FixmapSlots,
{
    /// See the function [`create`].
    fn create(mut self, root: PhysicalAddress, pieces: &[Piece]) -> Result<LeafStats, TableError> {
        if self.geometry.page_size() != P::SIZE {
            return Err(TableError::WrongPageSize {
                geometry: self.geometry.page_size(),
                page: P::SIZE,
            });
        }
        self.check_table_pages()?;
        let stats = LeafStats::new(&self.geometry, pieces);
        let needed = stats.tables as usize;
        let exhausted = TableError::OutOfTables { needed };
        if self.environment.reserve(needed) != Reservation::Granted {
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
            let made = self.table(&plan, root, level, from, from + bytes);
            // On success and on error alike, no slot may still map a table.
            self.empty_series();
            made.map_err(|stop| match stop {
                Stop::Exhausted => exhausted,
                Stop::Occupied { offset } => TableError::AlreadyMapped {
                    address: VirtualAddress(self.geometry.base().0.wrapping_add(offset)),
                },
            })?;
        }
        Ok(stats)
    }

    /// Checks that the slots' pages are tables of the geometry.
    fn check_table_pages(&self) -> Result<(), TableError> {
        let Some(pages) = self.environment.pages() else {
            return Ok(());
        };
        if pages.page_size != P::SIZE {
            return Err(TableError::WrongTablePages {
                given: pages.page_size,
                page: P::SIZE,
            });
        }
        let (end, pa_bits) = (pages.end, self.geometry.pa_bits());
        if end.0 > 1 << pa_bits {
            return Err(TableError::TablesTooHigh { end, pa_bits });
        }
        Ok(())
    }

    /// Writes the entries for the offsets from `start` to `end` in `table` and the tables below it.
    fn table(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
    ) -> Result<(), Stop> {
        if self.strategy > Strategy::Base {
            let slot = self.open_slot(level, table);
            let made = self.entries(plan, slot, level, start, end);
            self.close_slot(slot);
            return made;
        }
        let span = base_span(P::SIZE, level);
        let mut at = start;
        while at < end {
            let next = end.min((at & !(span - 1)) + span);
            let slot = self.open_slot(level, table);
            let made = self.entries(plan, slot, level, at, next);
            self.close_slot(slot);
            made?;
            at = next;
        }
        Ok(())
    }

    /// Allocates a table, links it at `index` of the table in slot `parent`, and writes the offsets
    /// from `start` to `end` in it.
    fn new_table(
        &mut self,
        plan: &Plan,
        parent: Slot,
        (level, index): (Level, usize),
        start: u64,
        end: u64,
    ) -> Result<(), Stop> {
        let table = self.environment.allocate().ok_or(Stop::Exhausted)?;
        let link = Descriptor::table(&self.geometry, table);
        if self.strategy < Strategy::NoAllocRemap {
            // One slot zeroes tables of every level. The slot of the last level is free here,
            // because it is never open while a table is made.
            let slot = Slot::Level(Level::L3);
            // SAFETY: the slot is closed, and opened for a new table, which is this builder's alone.
            unsafe {
                self.environment.open(slot, table);
                self.environment.zero(slot);
            }
            self.environment.close(slot);
            self.link(parent, index, link);
            return self.table(plan, table, level.next(), start, end);
        }
        let slot = self.open_slot(level.next(), table);
        // SAFETY: `open_slot` opened it for a new table, which is this builder's alone.
        unsafe { self.environment.zero(slot) };
        // A walker that sees the link must see the zeros.
        self.environment.issue(Maintenance::DsbIshst);
        self.link(parent, index, link);
        let made = self.entries(plan, slot, level.next(), start, end);
        self.close_slot(slot);
        made
    }

    /// Stores a link with its own barriers, as every strategy does.
    fn link(&mut self, slot: Slot, index: usize, link: Descriptor) {
        // SAFETY: the slot is open while its entries are written, the index came from an offset
        // masked to a table, and the caller of `create` vouched that nothing else changes the tables.
        unsafe { self.environment.store(slot, index, link) };
        publish(|instruction| self.environment.issue(instruction));
    }

    /// Writes the entries for the offsets from `start` to `end` in the table in `slot`.
    fn entries(
        &mut self,
        plan: &Plan,
        slot: Slot,
        level: Level,
        start: u64,
        end: u64,
    ) -> Result<(), Stop> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = start;
        while at < end {
            let whole = if at & (bytes - 1) == 0 && level >= plan.top() {
                end & !(bytes - 1)
            } else {
                at
            };
            if whole > at {
                self.leaves(plan, slot, level, at, whole)?;
                at = whole;
                continue;
            }
            let next = end.min((at & !(bytes - 1)) + bytes);
            let index = P::SIZE.index(at, level);
            // SAFETY: as for `link`.
            let old = unsafe { self.environment.load(slot, index) };
            match old.kind(&self.geometry, level) {
                Kind::Table => {
                    let below = self.geometry.address_of(old, level);
                    self.table(plan, below, level.next(), at, next)?;
                }
                Kind::Invalid => self.new_table(plan, slot, (level, index), at, next)?,
                Kind::Leaf | Kind::PresentInvalid => return Err(Stop::Occupied { offset: at }),
            }
            at = next;
        }
        Ok(())
    }

    /// Writes leaves for the whole entries from `start` to `end`, with the contiguous hint on each
    /// whole group.
    fn leaves(
        &mut self,
        plan: &Plan,
        slot: Slot,
        level: Level,
        start: u64,
        end: u64,
    ) -> Result<(), Stop> {
        let barriers = !level.is_last() || self.barriers == Barriers::Entry;
        let (shift, group) = (P::SIZE.level_shift(level), plan.group(P::SIZE, level));
        let mut at = start;
        while at < end {
            let (count, hint) = plan.run(shift, group, at, end);
            let output = PhysicalAddress(plan.output(at));
            let entries = Entries {
                first: P::SIZE.index(at, level),
                count,
                descriptor: Descriptor::leaf(&self.geometry, level, output, plan.bits() | hint),
                step: 1 << shift,
                barriers,
            };
            // SAFETY: as for `link`; a run never leaves its table.
            let written = unsafe { self.environment.write(slot, &entries) };
            if written < count {
                let offset = at + ((written as u64) << shift);
                return Err(Stop::Occupied { offset });
            }
            at += (count as u64) << shift;
        }
        Ok(())
    }

    /// Maps `table`, of `level`, in the slot that the strategy uses for this level.
    fn open_slot(&mut self, level: Level, table: PhysicalAddress) -> Slot {
        let slot = if level.is_last() && self.strategy >= Strategy::LazyUnmap {
            if self.series == Slot::SERIES {
                self.empty_series();
            }
            self.series += 1;
            Slot::Series(self.series - 1)
        } else {
            Slot::Level(level)
        };
        // SAFETY: the table is below the root that the caller of `create` vouched for. One of a level is
        // closed before another of that level is opened, and `create` began with none open. In the series
        // the slots from the private `series` on are closed.
        unsafe { self.environment.open(slot, table) };
        slot
    }

    /// Unmaps a slot of a level. Slots of the series stay mapped until `empty_series`.
    fn close_slot(&mut self, slot: Slot) {
        if let Slot::Level(_) = slot {
            self.environment.close(slot);
        }
    }

    fn empty_series(&mut self) {
        if self.series > 0 {
            self.environment.close_series(self.series);
            self.series = 0;
        }
    }
}

/// The bytes of a table of `level` that `base` maps at a time: a contiguous group at the last two
/// levels, else the whole table.
const fn base_span(size: PageSize, level: Level) -> u64 {
    let entries = match level {
        Level::L2 | Level::L3 => size.contiguous_entries(level),
        _ => size.entries(),
    };
    size.entry_bytes(level) * entries as u64
}
