//! Data and instruction caches.
//!
//! A line stored through the caches may reach memory at any time or never, until it is cleaned;
//! a line stored past them may be cached as it was before, until it is invalidated. Which of the
//! two a store is depends on the CPU's SCTLR alone: the events say nothing of a mapping. What
//! CPUs find there when they run is [`seen`](crate::rules::cache_visibility)'s.

use crate::event::{CacheOp, Purpose, Scope};
use crate::model::{Found, Model};
use crate::rules::reachable::{Walks, lines_range};
use crate::state::cpu::LineWork;
use crate::state::memory::{self, Lines};
use crate::violation::Rule;

/// Notes a store to some lines. Those that a cache may write back over it, if it went past them.
const fn note_store(lines: &mut Lines, mask: u64, cached: bool, now: u64) -> u64 {
    let mut behind = 0;
    if cached {
        lines.dirty |= mask;
        lines.cleaning &= !mask;
    } else {
        behind = (lines.dirty | lines.cleaning) & mask;
        lines.dirty &= !mask;
        lines.cleaning &= !mask;
        lines.newer |= mask;
        lines.invalidating &= !mask;
    }
    lines.code_cleaning &= !mask;
    lines.code_invalidating &= !mask;
    lines.event = now;
    behind
}

/// The lines that a store goes to past the caches although they were never maintained, and that
/// count as maintained from now on.
const fn note_unsettled(lines: &mut Lines, mask: u64, cached: bool) -> u64 {
    let unsettled = if cached { 0 } else { mask & !lines.settled };
    lines.settled |= mask;
    unsettled
}

const BEHIND: &str = "stores past the caches to a line that a cache may write back over it";
const LEFT: &str = "stores past the caches to a line that was never cleaned or invalidated: what \
                    ran before may have left it dirty";

impl Model {
    /// `cpu` stored to some lines of a page.
    pub(crate) fn lines_stored(&mut self, cpu: u32, number: u64, mask: u64) {
        let cached = self.cpus[cpu as usize].data_cached();
        self.lines_stored_as(cpu, number, mask, cached);
    }

    /// `cpu` stored to some lines of a page, through the caches or past them.
    pub(crate) fn lines_stored_as(&mut self, cpu: u32, number: u64, mask: u64, cached: bool) {
        let now = self.now;
        let page = self.memory.page_mut(number);
        let event = page.lines.event;
        let behind = note_store(&mut page.lines, mask, cached, now);
        let left = note_unsettled(&mut page.lines, mask, cached);
        self.lines_changed |= page.lines.other & mask != 0;
        if !page.tables.is_empty() && (!cached || self.uncached_walks) {
            self.suspect_pages.insert(number);
        }
        if behind != 0 {
            self.report_behind(cpu, lines_range(number, behind), event, BEHIND);
        }
        if left != 0 && self.config.caches_unknown_at_reset {
            self.report_behind(cpu, lines_range(number, left), 0, LEFT);
        }
    }

    fn report_behind(&mut self, cpu: u32, range: (u64, u64), event: u64, text: &str) {
        let found = Found::in_memory(Rule::DirtyLineBehind, cpu, range, text);
        self.report(found.because_of(event));
    }

    /// A store to memory that is not a table.
    pub(crate) fn other_store(&mut self, cpu: u32, address: u64, bytes: u64, purpose: Purpose) {
        if bytes == 0 {
            return;
        }
        let all_cpus = self.all_cpus();
        let cached = self.cpus[cpu as usize].data_cached();
        let now = self.now;
        let unknown = self.config.caches_unknown_at_reset;
        let mut behind = Vec::new();
        let mut stored = Vec::new();
        self.memory
            .change_lines(address, bytes, true, |span, lines| {
                let event = lines.event;
                let lost = note_store(lines, span.mask, cached, now);
                if lost != 0 {
                    behind.push((span.range(lost), event, BEHIND));
                }
                let left = note_unsettled(lines, span.mask, cached);
                if left != 0 && unknown {
                    behind.push((span.range(left), 0, LEFT));
                }
                if span.first == span.last {
                    stored.push(span.first);
                }
                lines.other |= span.mask;
                if purpose == Purpose::Code {
                    lines.code |= span.mask;
                    lines.code_cpus = all_cpus;
                    if cached {
                        lines.code_dirty |= span.mask;
                    }
                }
            });
        self.lines_changed = true;
        for number in stored {
            let tables = self
                .memory
                .page(number)
                .is_some_and(|page| !page.tables.is_empty());
            if tables && (!cached || self.uncached_walks) {
                self.suspect_pages.insert(number);
            }
        }
        for (range, event, text) in behind {
            self.report_behind(cpu, range, event, text);
        }
    }

    /// DC by address.
    pub(crate) fn cache_maintenance(&mut self, cpu: u32, op: CacheOp, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let pending = &mut self.cpus[cpu as usize].lines;
        // Of lines of which nothing is known there is something to know then.
        let all = self.config.caches_unknown_at_reset && op != CacheOp::CleanToPou;
        let mut lost = Vec::new();
        self.memory
            .change_lines(address, bytes, all, |span, lines| {
                let mask = span.mask;
                if all {
                    lines.settled |= mask;
                }
                let mut wait = |mask: u64, work| {
                    if mask != 0 {
                        *pending.entry((span.first, span.last, work)).or_default() |= mask;
                    }
                };
                if op != CacheOp::InvalidateToPoc {
                    let work = (lines.code_dirty | lines.code_cleaning) & mask;
                    lines.code_dirty &= !mask;
                    lines.code_cleaning |= work;
                    wait(work, LineWork::CleanCode);
                }
                if matches!(op, CacheOp::CleanToPoc | CacheOp::CleanInvalidateToPoc) {
                    // What is being cleaned already counts as cleaned by this one too.
                    let work = (lines.dirty | lines.cleaning) & mask;
                    lines.dirty &= !mask;
                    lines.cleaning |= work;
                    wait(work, LineWork::Clean);
                }
                if matches!(op, CacheOp::InvalidateToPoc | CacheOp::CleanInvalidateToPoc) {
                    let work = (lines.newer | lines.invalidating) & mask;
                    lines.newer &= !mask;
                    lines.invalidating |= work;
                    wait(work, LineWork::Invalidate);
                }
                if op == CacheOp::InvalidateToPoc {
                    let dirty = (lines.dirty | lines.cleaning) & mask;
                    if dirty != 0 {
                        lost.push((span.range(dirty), lines.event));
                    }
                    lines.dirty &= !mask;
                    lines.cleaning &= !mask;
                }
            });
        self.lines_changed = true;
        for (range, event) in lost {
            let found = Found::in_memory(
                Rule::StoreLost,
                cpu,
                range,
                "invalidates a line that was stored to and not cleaned: the store may be lost",
            );
            self.report(found.because_of(event));
        }
    }

    /// IC IALLU or IC IALLUIS: reaches what was cleaned before, and whose clean is complete. What
    /// is not may be fetched again as it was.
    pub(crate) fn invalidate_instructions(&mut self, cpu: u32, scope: Scope) {
        let cpus = match scope {
            Scope::Local => 1 << cpu,
            Scope::Broadcast => self.all_cpus(),
        };
        for (index, state) in self.cpus.iter_mut().enumerate() {
            if cpus & (1 << index) != 0 && state.started {
                state.unknown_code = false;
            }
        }
        for (span, lines) in self.memory.other_lines() {
            let reached = lines.code & !(lines.code_dirty | lines.code_cleaning);
            if reached != 0 {
                self.memory
                    .change_known_lines(span.first, span.last, |lines| {
                        lines.code_invalidating |= reached;
                    });
                let work = LineWork::Instructions(cpus);
                *self.cpus[cpu as usize]
                    .lines
                    .entry((span.first, span.last, work))
                    .or_default() |= reached;
            }
        }
    }

    /// A DSB completes cache maintenance: all of it (`system`), or that to the point of
    /// unification, of other CPUs' instruction caches only if `shared`.
    pub(crate) fn complete_lines(&mut self, cpu: u32, shared: bool, system: bool) {
        let pending = std::mem::take(&mut self.cpus[cpu as usize].lines);
        self.lines_changed |= !pending.is_empty();
        let own = 1 << cpu;
        for ((first, last, work), mask) in pending {
            let done = match work {
                LineWork::CleanCode => true,
                LineWork::Clean | LineWork::Invalidate => system,
                LineWork::Instructions(cpus) => shared || cpus == own,
            };
            if !done {
                let pending = &mut self.cpus[cpu as usize].lines;
                pending.insert((first, last, work), mask);
                continue;
            }
            let complete = |lines: &mut Lines| match work {
                LineWork::CleanCode => lines.code_cleaning &= !mask,
                LineWork::Clean => lines.cleaning &= !mask,
                LineWork::Invalidate => lines.invalidating &= !mask,
                LineWork::Instructions(cpus) => {
                    // Code stored since then stays as it is.
                    let done = mask & lines.code_invalidating;
                    if lines.code_cpus & !cpus == 0 {
                        lines.code &= !done;
                    } else if lines.code & !done == 0 {
                        lines.code_cpus &= !cpus;
                    }
                }
            };
            self.memory.change_known_lines(first, last, complete);
        }
    }

    /// Tables stored to in a way that their walkers may not see.
    pub(crate) fn check_suspect_pages(&mut self, cpu: u32) {
        for number in std::mem::take(&mut self.suspect_pages) {
            let tables = self
                .memory
                .page(number)
                .map_or(Vec::new(), |page| page.tables.clone());
            for id in tables {
                let Some((base, bytes)) = self
                    .tables
                    .table(id)
                    .map(|table| (table.base, table.entries * 8))
                else {
                    continue;
                };
                let paths = self.tables.paths(&self.memory, id, &self.contexts);
                let walks = Walks::of(paths.iter().filter_map(|path| self.tables.root(path.root)));
                let mask = memory::line_mask(number, base, bytes);
                self.check_walked_lines(cpu, number, mask, walks);
            }
        }
    }

    /// A bit for each CPU.
    pub(crate) const fn all_cpus(&self) -> u64 {
        u64::MAX >> (64 - self.config.cpus)
    }
}
