//! Cache visibility: CPUs and walkers must find the last stored value, whether they read caches or
//! memory.
//!
//! [`state::caches`](crate::state::caches) holds the state of lines; nothing here stores or
//! maintains lines.

use crate::access::{Access, AccessKind, Translation};
use crate::arch::context::Space;
use crate::arch::descriptor::{self, EntryKind};
use crate::state::caches::{LineRange, Lines, addresses_of, line_mask};
use crate::state::cpu::{Cpu, Cpus};
use crate::state::ids::{PAGE_SHIFT, RootId};
use crate::state::memory::Memory;
use crate::state::relied::Relied;
use crate::state::tables::{Root, Tables};
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use std::collections::BTreeSet;

const OLD_DATA: &str = "may read an old cache line: the store went past the caches";
const OLD_CODE: &str = "fetches instructions that an instruction cache may hold as they were";

/// The state of the rule: what has to be checked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheVisibility {
    /// The cache contents that accesses see may have changed since the last check.
    changed: bool,
    /// Pages with tables whose last stores walkers may not see.
    suspect_pages: BTreeSet<u64>,
}

/// The way in which the walkers of some trees read tables: through the caches or past them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walks {
    cached: bool,
    uncached: bool,
}

impl Walks {
    pub(crate) fn of<'a>(roots: impl Iterator<Item = &'a Root>) -> Self {
        let mut walks = Self::default();
        for root in roots {
            walks.cached |= root.key.context.cached_walks;
            walks.uncached |= !root.key.context.cached_walks;
        }
        walks
    }
}

/// Lines whose old contents may still be found, as data (`old`) or as code (`code`).
struct Suspect {
    span: LineRange,
    lines: Lines,
    old: u64,
    code: u64,
}

impl CacheVisibility {
    /// Notes that the cache contents that accesses see may have changed.
    pub(crate) const fn note_change(&mut self) {
        self.changed = true;
    }

    /// Notes a store to a page, through the caches or past them, that walkers of the tables in the
    /// page may not see.
    pub(crate) fn note_store(&mut self, trees: Trees<'_>, number: u64, cached: bool) {
        let unseen = !cached || trees.tables.has_uncached_walks();
        if unseen && !trees.tables_in(number).is_empty() {
            self.suspect_pages.insert(number);
        }
    }

    /// Checks the noted pages with tables: their walkers must see the last stores.
    pub(crate) fn check_tables(&mut self, trees: Trees<'_>, cpu: u32, report: &mut Report) {
        for number in std::mem::take(&mut self.suspect_pages) {
            for &id in trees.tables_in(number) {
                let Some(table) = trees.tables.table(id) else {
                    continue;
                };
                let paths = trees.paths(id);
                let roots = paths.iter().filter_map(|path| trees.tables.root(path.root));
                let mask = line_mask(number, table.base, table.entries * 8);
                check_walked(trees.memory, cpu, (number, mask), Walks::of(roots), report);
            }
        }
    }

    /// Checks every mapping, and every CPU that runs past the caches, if cache contents may have
    /// changed since the last check.
    pub(crate) fn check_all(
        &mut self,
        memory: &mut Memory,
        tables: &Tables,
        cpus: &mut Cpus,
        report: &mut Report,
    ) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        for (cpu, state) in cpus.iter_mut() {
            if state.translates() && std::mem::take(&mut state.unknown_code) {
                report.add(Violation::at(
                    Rule::InstructionCache,
                    cpu,
                    (0, u64::MAX),
                    "fetches what its instruction cache held at reset: it was never invalidated",
                ));
            }
            if state.runs_flat() {
                check_past_caches(memory, cpu, false, report);
            }
        }
        for space in Space::all() {
            check_mapped(memory, tables, cpus, Relied::whole(space), report);
        }
    }
}

/// Walkers must find the last store to some lines of a page, in caches or memory.
pub(crate) fn check_walked(
    memory: &Memory,
    cpu: u32,
    (number, mask): (u64, u64),
    walks: Walks,
    report: &mut Report,
) {
    let Some(lines) = memory.page(number).map(|page| page.lines) else {
        return;
    };
    let stale = lines.outdated() & mask;
    if walks.cached && stale != 0 {
        let found = Violation::in_memory(
            Rule::NotInvalidated,
            cpu,
            addresses_of(number, stale),
            "may walk the table as an old cache line has it: it was stored past the caches",
        );
        report.add(found.because_of(lines.event));
    }
    let unwritten = lines.unwritten() & mask;
    if walks.uncached && unwritten != 0 {
        let found = Violation::in_memory(
            Rule::NotCleaned,
            cpu,
            addresses_of(number, unwritten),
            "may walk the table as memory has it: walks are not cached, and the stores were",
        );
        report.add(found.because_of(lines.event));
    }
}

/// A CPU starts, or goes on, with its MMU off: memory must hold what was stored for the CPU to
/// read, and with `code` its instruction caches must not hold older code.
pub(crate) fn check_past_caches(memory: &Memory, cpu: u32, code: bool, report: &mut Report) {
    for (span, lines) in memory.lines_for_others() {
        let unwritten = lines.unwritten() & lines.other;
        let found = if unwritten != 0 {
            Violation::in_memory(
                Rule::NotCleaned,
                cpu,
                span.addresses(unwritten),
                "reads memory with the MMU off, and the store may be in a cache only",
            )
        } else if code && lines.code_cpus & (1 << cpu) != 0 && lines.code != 0 {
            let range = span.addresses(lines.code);
            Violation::in_memory(Rule::InstructionCache, cpu, range, OLD_CODE)
        } else {
            continue;
        };
        report.add(found.because_of(lines.event));
    }
}

/// A CPU that relies on code in a range of pages, which it could fetch from since an event, must have executed an ISB
/// since the instruction caches were invalidated. Each piece of code is reported once.
pub(crate) fn check_fetched(
    (cpu, state): (u32, &mut Cpu),
    (first, last): (u64, u64),
    since: u64,
    report: &mut Report,
) {
    let met = |(event, from, to): &(u64, u64, u64)| *from <= last && *to >= first && *event > since;
    for (event, from, to) in state.fetched_before.extract_if(.., |one| met(one)) {
        let range = (
            from << PAGE_SHIFT,
            (to << PAGE_SHIFT) + ((1 << PAGE_SHIFT) - 1),
        );
        let text = "may execute instructions that it fetched before the code changed";
        let found = Violation::in_memory(Rule::MissingIsb, cpu, range, text);
        report.add(found.because_of(event));
    }
}

/// As [`check_fetched`], for the code that a range of addresses maps as executable.
pub(crate) fn check_fetched_in(
    trees: Trees<'_>,
    (cpu, state): (u32, &mut Cpu),
    Relied {
        space, first, last, ..
    }: Relied,
    report: &mut Report,
) {
    if state.fetched_before.is_empty() {
        return;
    }
    let Some(key) = trees.root(state.roots[space.index()]).map(|root| root.key) else {
        return;
    };
    trees.entries(&key, (first, last), |entry| {
        if entry.kind != EntryKind::Leaf {
            return;
        }
        let leaf = descriptor::attributes(entry.raw, entry.level, entry.hierarchy, &key.context);
        if leaf.privileged.execute || leaf.user.execute {
            let output = descriptor::leaf_address(entry.raw, entry.level, key.context.format);
            let from = output + (first.max(entry.va) - entry.va);
            let to = output + (last.min(entry.last()) - entry.va);
            let (mapped, _) = trees.memory.fresh(entry.location);
            let pages = (from >> PAGE_SHIFT, to >> PAGE_SHIFT);
            check_fetched((cpu, state), pages, mapped, report);
        }
    });
}

/// Accesses by cacheable or executable mappings of a range must find what was stored.
pub(crate) fn check_mapped(
    memory: &mut Memory,
    tables: &Tables,
    cpus: &Cpus,
    Relied {
        space, first, last, ..
    }: Relied,
    report: &mut Report,
) {
    let mut suspects: Vec<Suspect> = Vec::new();
    for (span, lines) in memory.lines_for_others() {
        let old = lines.outdated() & lines.other;
        let code = if lines.code_cpus == 0 { 0 } else { lines.code };
        if old | code != 0 {
            suspects.push(Suspect {
                span,
                lines,
                old,
                code,
            });
        }
    }
    if suspects.is_empty() {
        return;
    }
    let trees = Trees::new(memory, tables);
    let mut found = Vec::new();
    for (id, users, cached) in trees_in_use(cpus, space) {
        let Some(key) = tables.root(id).map(|root| root.key) else {
            continue;
        };
        trees.entries(&key, (first, last), |entry| {
            if entry.kind != EntryKind::Leaf {
                return;
            }
            let leaf =
                descriptor::attributes(entry.raw, entry.level, entry.hierarchy, &key.context);
            let cacheable = descriptor::is_cacheable_type(leaf.memory);
            let executable = leaf.privileged.execute || leaf.user.execute;
            let output = descriptor::leaf_address(entry.raw, entry.level, key.context.format);
            // Only the part in the range of a leaf that reaches beyond it.
            let from = output + (first.max(entry.va) - entry.va);
            let to = output + (last.min(entry.last()) - entry.va);
            let (from, to) = (from >> PAGE_SHIFT, to >> PAGE_SHIFT);
            let start = suspects.partition_point(|one| one.span.last < from);
            for one in &mut suspects[start..] {
                if one.span.first > to {
                    break;
                }
                let (span, event) = (one.span, one.lines.event);
                let mut add = |rule, cpu, mask, text| {
                    let new = Violation::in_memory(rule, cpu, span.addresses(mask), text);
                    found.push((new.because_of(event), span));
                };
                if cacheable && cached != 0 && one.old != 0 {
                    let cpu = cached.trailing_zeros();
                    add(Rule::NotInvalidated, cpu, one.old, OLD_DATA);
                    one.old = 0;
                }
                let fetching = one.lines.code_cpus & users;
                if executable && fetching != 0 && one.code != 0 {
                    let cpu = fetching.trailing_zeros();
                    add(Rule::InstructionCache, cpu, one.code, OLD_CODE);
                    one.code = 0;
                }
            }
        });
    }
    for (one, span) in found {
        // A reported violation counts as repaired.
        let rule = one.rule;
        memory.change_known_lines(span.first, span.last, |lines| {
            if rule == Rule::NotInvalidated {
                lines.newer &= !lines.other;
                lines.invalidating &= !lines.other;
            } else {
                lines.code = 0;
                lines.code_dirty = 0;
            }
        });
        report.add(one);
    }
}

/// The trees of a half that CPUs translate by, each with those CPUs and the subset whose accesses
/// are cached.
fn trees_in_use(cpus: &Cpus, space: Space) -> Vec<(RootId, u64, u64)> {
    let mut roots: Vec<(RootId, u64, u64)> = Vec::new();
    for (cpu, state) in cpus.iter() {
        let Some(id) = state.roots[space.index()] else {
            continue;
        };
        let bit = 1u64 << cpu;
        let cached = if state.data_cached() { bit } else { 0 };
        match roots.iter_mut().find(|(other, _, _)| *other == id) {
            Some(root) => *root = (id, root.1 | bit, root.2 | cached),
            None => roots.push((id, bit, cached)),
        }
    }
    roots
}

/// A load or fetch must find the last store, in caches or memory.
pub(crate) fn check_access(
    memory: &Memory,
    (cpu, state): (u32, &Cpu),
    translation: Translation,
    access: Access,
    report: &mut Report,
) {
    let number = translation.address >> PAGE_SHIFT;
    let mask = line_mask(number, translation.address, 1);
    let registers = state.registers_of(access.regime);
    let cacheable = descriptor::is_cacheable_type(translation.memory);
    let fetch_cached = registers.mmu_on() && cacheable;
    let cached = registers.data_cached() && cacheable;
    let Some(lines) = memory.page(number).map(|page| page.lines) else {
        return;
    };
    let unwritten = lines.unwritten() & mask;
    let old = lines.outdated() & mask;
    let (rule, text) = match access.kind {
        AccessKind::Read if !cached && unwritten != 0 => (
            Rule::NotCleaned,
            "reads past the caches, and the store may be in a cache only",
        ),
        AccessKind::Read if cached && old != 0 => (Rule::NotInvalidated, OLD_DATA),
        AccessKind::Fetch if lines.code & mask != 0 && lines.code_cpus & (1 << cpu) != 0 => {
            (Rule::InstructionCache, OLD_CODE)
        }
        AccessKind::Fetch if fetch_cached && old != 0 => (
            Rule::NotInvalidated,
            "may fetch instructions from an old cache line: the store went past the caches",
        ),
        AccessKind::Fetch if !registers.mmu_on() && unwritten != 0 => (
            Rule::NotCleaned,
            "fetches past the data caches, and the store may be in one only",
        ),
        _ => return,
    };
    let found = Violation::in_memory(rule, cpu, addresses_of(number, mask), text);
    report.add(found.because_of(lines.event));
}
