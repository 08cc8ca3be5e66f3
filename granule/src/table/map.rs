//! Mapping a range: largest leaves first, tables written once.
//!
//! Two passes. The first walks what exists, finds what is in the way and counts the tables that
//! are missing; below an entry that does not exist yet the count is arithmetic, not a walk. The
//! second cannot fail: it fills tables while they are private, in runs, and links each with one
//! store after it is full, so a table is neither zeroed first nor read back.

use super::{Environment, PageTables, TableError, Visibility, flush};
use crate::arch::page_size::{Level, Page, PageSize};
use crate::arch::{Attributes, Descriptor, Geometry, Kind, PhysicalAddress, VirtualAddress};

/// How large leaves may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The first level at which leaves are made where everything else allows it.
    pub top: Level,
    /// Whether the contiguous hint is set on whole, naturally aligned groups.
    pub contiguous: bool,
}

impl Leaves {
    /// The largest that the geometry and the alignment allow.
    pub const LARGEST: Self = Self {
        top: Level::Minus1,
        contiguous: true,
    };
    /// Single pages, so that the permissions of each can change without a split.
    pub const PAGES: Self = Self {
        top: Level::L3,
        contiguous: false,
    };
}

/// Consecutive outputs may be written as one run only where adding a step to the descriptor
/// gives the next address: the 52-bit formats keep the bits from here up elsewhere.
const OUTPUT_RUN_SHIFT: u32 = 48;

/// A mapping to be made, with what is the same for all of its tables worked out once.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Output address less offset, wrapping.
    distance: u64,
    /// The first level at which leaves are made.
    top: Level,
    /// For each level, entries in a contiguous group, or 1 where the hint is not used.
    groups: [usize; Level::ALL.len()],
    /// The encoded attributes.
    bits: u64,
}

impl Plan {
    /// What mapping with `distance` from offset to output makes of `leaves`.
    pub(crate) fn new(
        geometry: &Geometry,
        size: PageSize,
        distance: u64,
        bits: u64,
        leaves: Leaves,
    ) -> Self {
        let mut top = Level::L3;
        let mut groups = [1; Level::ALL.len()];
        for (level, group) in Level::ALL.into_iter().zip(&mut groups) {
            let bytes = size.entry_bytes(level);
            if level < leaves.top || level < geometry.start_level() || !geometry.leaf_allowed(level)
            {
                continue;
            }
            // Offset and output must agree in the bits below the leaf; the distance says it for
            // the whole range at once.
            if distance & (bytes - 1) != 0 {
                continue;
            }
            if top > level {
                top = level;
            }
            let entries = size.contiguous_entries(level);
            if leaves.contiguous && distance & (bytes * entries as u64 - 1) == 0 {
                *group = entries;
            }
        }
        Self {
            distance,
            top,
            groups,
            bits,
        }
    }

    pub(crate) const fn top(&self) -> Level {
        self.top
    }

    pub(crate) const fn bits(&self) -> u64 {
        self.bits
    }

    pub(crate) fn group(&self, level: Level) -> usize {
        self.groups
            .get((level.number() + 1) as usize)
            .copied()
            .unwrap_or(1)
    }

    pub(crate) const fn output(&self, offset: u64) -> u64 {
        offset.wrapping_add(self.distance)
    }

    /// The tables to build below one missing table of `level` that translates the offsets from
    /// `start` to `end`, itself included.
    pub(crate) fn tables_below(&self, size: PageSize, level: Level, start: u64, end: u64) -> usize {
        let mut tables = 1;
        let mut at = level;
        while !at.is_last() {
            let shift = size.level_shift(at);
            let first = start >> shift;
            let last = (end - 1) >> shift;
            if at < self.top {
                tables += (last - first + 1) as usize;
            } else {
                let mask = (1 << shift) - 1;
                let head = start & mask != 0;
                let tail = end & mask != 0;
                tables += match (head, tail) {
                    (true, true) if first == last => 1,
                    (head, tail) => usize::from(head) + usize::from(tail),
                };
            }
            at = at.next();
        }
        tables
    }
}

impl<P: Page, E: Environment> PageTables<P, E> {
    /// Maps `bytes` bytes from `start` to the physical addresses from `output` on.
    ///
    /// Nothing may be mapped there yet. No TLBI is issued: an entry that was invalid is never
    /// cached (IWZCBG). On live tables one DSB and one ISB make the whole range usable by this
    /// CPU; another CPU may use it after a context synchronisation event of its own.
    ///
    /// # Errors
    ///
    /// [`TableError::Misaligned`], [`OutsideSpace`](TableError::OutsideSpace),
    /// [`OutputTooLarge`](TableError::OutputTooLarge),
    /// [`AlreadyMapped`](TableError::AlreadyMapped), [`OutOfTables`](TableError::OutOfTables).
    pub fn map(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        self.map_unpublished(start, output, bytes, attributes, leaves)?;
        self.publish();
        Ok(())
    }

    /// As [`map`](Self::map), but without the barriers: nothing of it may be used before
    /// [`publish`](Self::publish). For several ranges that one pair of barriers then serves.
    ///
    /// # Errors
    ///
    /// As for [`map`](Self::map).
    pub fn map_unpublished(
        &mut self,
        start: VirtualAddress,
        output: PhysicalAddress,
        bytes: u64,
        attributes: Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let (from, to) = self.offsets(start, bytes)?;
        let page_size = P::SIZE;
        if output.0 & (page_size.bytes() - 1) != 0 {
            return Err(TableError::Misaligned {
                value: output.0,
                page_size,
            });
        }
        let pa_bits = self.geometry.pa_bits();
        match output.0.checked_add(bytes) {
            Some(end) if end <= 1 << pa_bits => {}
            _ => {
                return Err(TableError::OutputTooLarge {
                    start: output,
                    bytes,
                    pa_bits,
                });
            }
        }
        if from == to {
            return Ok(());
        }
        let bits = attributes.encode(&self.geometry);
        let distance = output.0.wrapping_sub(from);
        let plan = Plan::new(&self.geometry, page_size, distance, bits, leaves);
        let level = self.geometry.start_level();
        let needed = self.missing(&plan, self.root, level, from, to)?;
        let exhausted = TableError::OutOfTables { needed };
        if needed > 0 && !self.environment.reserve(needed) {
            return Err(exhausted);
        }
        self.map_in(&plan, self.root, level, from, to)
            .ok_or(exhausted)
    }

    /// Makes all that was mapped so far usable by this CPU. Nothing on tables that are not live.
    pub fn publish(&mut self) {
        if self.liveness == super::Liveness::Live {
            flush::publish(&mut self.environment);
        }
    }

    /// Counts the tables that mapping the offsets from `start` to `end` in `table` takes, or
    /// finds what is in the way.
    fn missing(
        &self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
    ) -> Result<usize, TableError> {
        let bytes = P::SIZE.entry_bytes(level);
        let mut needed = 0;
        let mut at = start;
        while at < end {
            let next = end.min((at & !(bytes - 1)) + bytes);
            let entry = self.load(table, Self::index(at, level));
            match entry.kind(&self.geometry, level) {
                Kind::Leaf => {
                    return Err(TableError::AlreadyMapped {
                        address: self.address(at),
                    });
                }
                Kind::Table => {
                    let below = self.geometry.address_of(entry, level);
                    needed += self.missing(plan, below, level.next(), at, next)?;
                }
                Kind::Invalid if level >= plan.top && next - at == bytes => {}
                Kind::Invalid => needed += plan.tables_below(P::SIZE, level.next(), at, next),
            }
            at = next;
        }
        Ok(needed)
    }

    /// Maps the offsets from `start` to `end` in a table that exists. `None` only if the
    /// allocator breaks its word.
    fn map_in(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
    ) -> Option<()> {
        if level.is_last() {
            // The first pass saw every one of these entries invalid.
            self.fill_leaves(plan, table, level, start, end, self.visibility());
            return Some(());
        }
        let bytes = P::SIZE.entry_bytes(level);
        let mut at = start;
        while at < end {
            // Runs of entries that do not exist yet are built together.
            let mut run = at;
            while run < end {
                let entry = self.load(table, Self::index(run, level));
                if entry.is_table(level) {
                    break;
                }
                run = end.min((run & !(bytes - 1)) + bytes);
            }
            if run > at {
                self.build_entries(
                    plan,
                    table,
                    level,
                    at,
                    run,
                    self.visibility(),
                    self.linking(),
                )?;
                at = run;
            } else {
                let next = end.min((at & !(bytes - 1)) + bytes);
                let entry = self.load(table, Self::index(at, level));
                let below = self.geometry.address_of(entry, level);
                self.map_in(plan, below, level.next(), at, next)?;
                at = next;
            }
        }
        Some(())
    }

    /// Fills a new table of `level`, which is private, so that it translates the offsets from
    /// `start` to `end` and nothing else.
    fn build(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
    ) -> Option<()> {
        let first = Self::index(start, level);
        let last = Self::index(end - 1, level) + 1;
        let private = Visibility::Private;
        if first > 0 {
            self.fill(table, 0, first, Descriptor::INVALID, 0, private);
        }
        if last < P::SIZE.entries() {
            let rest = P::SIZE.entries() - last;
            self.fill(table, last, rest, Descriptor::INVALID, 0, private);
        }
        if level.is_last() {
            self.fill_leaves(plan, table, level, start, end, private);
            return Some(());
        }
        self.build_entries(plan, table, level, start, end, private, private)
    }

    /// Writes the entries of `table` for the offsets from `start` to `end`, all of which are
    /// missing: whole ones as leaves where the plan has leaves at this level, the others as
    /// tables. Leaves are stored as `leaf` says, tables linked as `link` says.
    #[allow(clippy::too_many_arguments)]
    fn build_entries(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        leaf: Visibility,
        link: Visibility,
    ) -> Option<()> {
        if level < plan.top {
            return self.build_children(plan, table, level, start, end, link);
        }
        let mask = P::SIZE.entry_bytes(level) - 1;
        let whole_start = (start + mask) & !mask;
        let whole_end = end & !mask;
        if whole_start >= whole_end {
            return self.build_children(plan, table, level, start, end, link);
        }
        if start < whole_start {
            self.build_children(plan, table, level, start, whole_start, link)?;
        }
        self.fill_leaves(plan, table, level, whole_start, whole_end, leaf);
        if whole_end < end {
            self.build_children(plan, table, level, whole_end, end, link)?;
        }
        Some(())
    }

    /// Builds a table for each entry of the offsets from `start` to `end` and links them all.
    fn build_children(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        link: Visibility,
    ) -> Option<()> {
        let bytes = P::SIZE.entry_bytes(level);
        let page = P::SIZE.bytes();
        let mut index = Self::index(start, level);
        let mut left = Self::index(end - 1, level) + 1 - index;
        let mut at = start;
        while left > 0 {
            let run = self.environment.allocate(left)?;
            let until_format_break =
                (1 << OUTPUT_RUN_SHIFT) - (run.first.0 & ((1 << OUTPUT_RUN_SHIFT) - 1));
            let linked_at_once = run
                .count
                .min((until_format_break >> P::SIZE.shift()) as usize);
            let mut child = run.first;
            for _ in 0..run.count {
                let next = end.min((at & !(bytes - 1)) + bytes);
                if level.next().is_last() && next - at == bytes {
                    // The common case, kept short: a whole table of pages.
                    self.fill_leaves(plan, child, Level::L3, at, next, Visibility::Private);
                } else {
                    self.build(plan, child, level.next(), at, next)?;
                }
                child.0 += page;
                at = next;
            }
            let descriptor = Descriptor::table(&self.geometry, run.first);
            self.fill(table, index, linked_at_once, descriptor, page, link);
            if linked_at_once < run.count {
                let first = PhysicalAddress(run.first.0 + linked_at_once as u64 * page);
                let descriptor = Descriptor::table(&self.geometry, first);
                let rest = run.count - linked_at_once;
                self.fill(table, index + linked_at_once, rest, descriptor, page, link);
            }
            index += run.count;
            left -= run.count;
        }
        Some(())
    }

    /// Writes leaves for the whole entries from `start` to `end`, with the contiguous hint on
    /// each whole group.
    #[inline(always)]
    fn fill_leaves(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        how: Visibility,
    ) {
        let group = plan.group(level);
        if group <= 1 {
            self.fill_run(plan, table, level, start, end, 0, how);
            return;
        }
        let mask = group as u64 * P::SIZE.entry_bytes(level) - 1;
        let groups_start = (start + mask) & !mask;
        let groups_end = end & !mask;
        if groups_start >= groups_end {
            self.fill_run(plan, table, level, start, end, 0, how);
            return;
        }
        self.fill_run(plan, table, level, start, groups_start, 0, how);
        self.fill_run(
            plan,
            table,
            level,
            groups_start,
            groups_end,
            Descriptor::CONTIGUOUS,
            how,
        );
        self.fill_run(plan, table, level, groups_end, end, 0, how);
    }

    /// Writes leaves of one kind for the entries from `start` to `end`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn fill_run(
        &mut self,
        plan: &Plan,
        table: PhysicalAddress,
        level: Level,
        start: u64,
        end: u64,
        more: u64,
        how: Visibility,
    ) {
        let step = P::SIZE.entry_bytes(level);
        let mut at = start;
        while at < end {
            let output = plan.output(at);
            let format_break = (output | ((1 << OUTPUT_RUN_SHIFT) - 1)) + 1;
            let run = (end - at).min(format_break - output);
            let count = (run >> P::SIZE.level_shift(level)) as usize;
            let descriptor = Descriptor::leaf(
                &self.geometry,
                level,
                PhysicalAddress(output),
                plan.bits | more,
            );
            self.fill(table, Self::index(at, level), count, descriptor, step, how);
            at += run;
        }
    }
}
