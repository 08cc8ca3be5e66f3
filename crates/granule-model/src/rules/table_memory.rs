//! Table memory: tables that walkers reach must lie in memory that was obtained for tables, stored
//! in full, and not given back.

use super::evidence;
use crate::arch::descriptor;
use crate::arch::format::Format;
use crate::state::cpu::Cpus;
use crate::state::extents::Owner;
use crate::state::ids::{PAGE_SHIFT, PER_PAGE, TableId};
use crate::state::memory::Memory;
use crate::state::stale_range::StaleRange;
use crate::state::stale_tlb::StaleTlb;
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use std::collections::BTreeSet;

/// The state of the rule: which memory is for tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableMemory {
    /// Table memory was obtained at least once.
    pub(crate) tracked: bool,
    /// The addresses of reachable tables that something else is stored to.
    pub(crate) misused: BTreeSet<u64>,
}

impl TableMemory {
    /// Checks that the table entry `raw` points to table memory.
    pub(crate) fn check_target(
        &self,
        memory: &Memory,
        cpu: u32,
        (raw, location): (u64, u64),
        format: Format,
        report: &mut Report,
    ) {
        let target = descriptor::table_address(raw, format);
        self.check_owner(memory, cpu, (target, Some(location)), format, report);
    }

    /// Checks that a table lies in table memory. A top table, which no descriptor at a location
    /// points to, may lie in memory of unknown use.
    pub(crate) fn check_owner(
        &self,
        memory: &Memory,
        cpu: u32,
        (table, location): (u64, Option<u64>),
        format: Format,
        report: &mut Report,
    ) {
        let text = match memory.owner(table) {
            Owner::Tables => return,
            Owner::Freed => "walks memory that was given back",
            Owner::Unknown if self.tracked && location.is_some() => {
                "walks memory that was never obtained for tables"
            }
            Owner::Unknown => return,
        };
        let last = table + ((1 << format.granule.shift()) - 1);
        let mut found = Violation::in_memory(Rule::NotTableMemory, cpu, (table, last), text);
        found.location = location;
        report.add(found);
    }
}

/// Checks that a part of a reachable table, from one physical address to another in one page, was
/// stored in full since it was obtained.
pub(crate) fn check_stored(memory: &Memory, cpu: u32, (from, to): (u64, u64), report: &mut Report) {
    let number = from >> PAGE_SHIFT;
    let first = (from >> 3) as usize % PER_PAGE;
    let count = ((to - from) >> 3) as usize;
    let unknown = memory
        .page(number)
        .and_then(|page| page.unknown(first, count));
    if let Some(index) = unknown {
        let location = (number << PAGE_SHIFT) + index as u64 * 8;
        let found = Violation::in_memory(
            Rule::UninitialisedTable,
            cpu,
            (location, to - 1),
            "may walk whatever was in the memory before it became a table",
        );
        report.add(found.located(location));
    }
}

/// Reports a table whose entries lead back to it, the first at a physical address.
pub(crate) fn leads_back(cpu: u32, location: u64, report: &mut Report) {
    let text = "may walk whatever was in the memory before it became a table: many entries lead back to it";
    let range = (location, location + 7);
    let found = Violation::in_memory(Rule::UninitialisedTable, cpu, range, text);
    report.add(found.located(location));
}

/// Reports a reachable table, from its first byte to its last, that a CPU stores other data to, at a physical address.
pub(crate) fn misused(cpu: u32, table: (u64, u64), location: u64, report: &mut Report) {
    let text = "may walk other data as a table: a store here is not of a descriptor";
    let found = Violation::in_memory(Rule::NotTableMemory, cpu, table, text);
    report.add(found.located(location));
}

/// Checks that a part of a reachable table was not walked with another granule since it was made.
/// An empty table is one of every granule. From here on it is one of this granule.
pub(crate) fn check_granule(
    memory: &mut Memory,
    cpu: u32,
    (from, to): (u64, u64),
    format: Format,
    report: &mut Report,
) {
    let number = from >> PAGE_SHIFT;
    let known = memory.page(number).and_then(|page| page.granule);
    let mut entries = (from..to).step_by(8).map(|at| memory.load(at));
    if known.is_some_and(|known| known != format.granule)
        && entries.any(|raw| raw & descriptor::VALID != 0)
    {
        let text = "walks tables of another granule";
        report.add(Violation::in_memory(
            Rule::TablesOfTwoSizes,
            cpu,
            (from, to - 1),
            text,
        ));
    }
    memory.page_mut(number).granule = Some(format.granule);
}

/// Checks memory that is given back: no walker may reach it, through a table in it that is
/// `reachable` or through a cached pointer.
pub(crate) fn check_freed(
    trees: Trees<'_>,
    stale: &StaleTlb,
    cpus: &Cpus,
    (cpu, address, bytes): (u32, u64, u64),
    reachable: Option<TableId>,
    report: &mut Report,
) {
    let range = (address, address + (bytes - 1));
    if let Some(id) = reachable {
        let root = trees.first_path(id).map(|path| path.root);
        let walker = trees
            .root(root)
            .map_or(cpu, |root| root.holders.trailing_zeros());
        report.add(Violation::in_memory(
            Rule::FreedInUse,
            walker,
            range,
            "can walk the table: entries or a TTBR still lead to it",
        ));
    }
    if let Some(pointer) = cached_pointer(trees, stale, address, bytes) {
        let text = "may walk the table through a cached pointer to it";
        let found = Violation {
            range,
            is_virtual: false,
            ..evidence::of_stale(Rule::FreedInUse, &pointer, text)
        };
        evidence::report(trees, cpus, found, &pointer, report);
    }
}

/// Checks a valid entry that was stored in a page with an unlinked table: no walker may still reach
/// the table through a cached pointer. Returns whether one may.
pub(crate) fn check_unlinked(
    trees: Trees<'_>,
    stale: &StaleTlb,
    cpus: &Cpus,
    location: u64,
    report: &mut Report,
) -> bool {
    let Some(pointer) = cached_pointer(trees, stale, location, 8) else {
        return false;
    };
    let text = "may find the entry through a cached pointer to the unlinked table";
    let found = evidence::of_stale(Rule::UnlinkedInUse, &pointer, text).located(location);
    evidence::report(trees, cpus, found, &pointer, report);
    true
}

/// A stale pointer to a table in a range of physical addresses, if some TLB may hold one.
fn cached_pointer(
    trees: Trees<'_>,
    stale: &StaleTlb,
    address: u64,
    bytes: u64,
) -> Option<StaleRange> {
    trees.memory.visit(stale.table_buckets());
    stale.pointing_into(address, bytes, |range, index| {
        let context = trees.tables.context(range.context);
        let base = descriptor::table_address(range.entry_value(index), context.format);
        (base, 1 << context.format.granule.shift())
    })
}
