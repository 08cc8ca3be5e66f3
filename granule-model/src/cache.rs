//! Data and instruction caches.
//!
//! A line stored through the caches may reach memory at any time or never, until it is cleaned;
//! a line stored past them may be cached as it was before, until it is invalidated. Which of the
//! two a store is depends on the CPU's SCTLR alone: the events say nothing of a mapping.

use crate::cpu::{LineWork, PendingLines};
use crate::event::{CacheOp, Purpose, Scope};
use crate::link::{Walks, lines_range};
use crate::memory::{self, Memory};
use crate::model::{Found, Model};
use crate::violation::Rule;

impl Model {
    /// `cpu` stored to some lines of a page.
    pub(crate) fn lines_stored(&mut self, cpu: u32, number: u64, mask: u64) {
        let cached = self.cpus[cpu as usize].data_cached();
        let now = self.now;
        let page = self.memory.page_mut(number);
        let lines = &mut page.lines;
        let mut behind = None;
        if cached {
            lines.dirty |= mask;
            lines.cleaning &= !mask;
        } else {
            let dirty = (lines.dirty | lines.cleaning) & mask;
            if dirty != 0 {
                behind = Some((dirty, lines.event));
            }
            lines.dirty &= !mask;
            lines.cleaning &= !mask;
            lines.newer |= mask;
            lines.invalidating &= !mask;
        }
        lines.event = now;
        if !page.tables.is_empty()
            && (!cached || self.contexts.iter().any(|context| !context.cached_walks))
        {
            self.suspect_pages.insert(number);
        }
        if let Some((dirty, event)) = behind {
            let found = Found::in_memory(
                Rule::DirtyLineBehind,
                cpu,
                lines_range(number, dirty),
                "stores past the caches to a line that a cache may write back over it",
            );
            self.report(found.because_of(event));
        }
    }

    /// A store to memory that is not a table.
    pub(crate) fn other_store(&mut self, cpu: u32, address: u64, bytes: u64, purpose: Purpose) {
        if bytes == 0 {
            return;
        }
        let all_cpus = self.all_cpus();
        let cached = self.cpus[cpu as usize].data_cached();
        for number in Memory::numbers(address, bytes) {
            let mask = memory::line_mask(number, address, bytes);
            self.lines_stored(cpu, number, mask);
            let lines = &mut self.memory.page_mut(number).lines;
            lines.other |= mask;
            if purpose == Purpose::Code {
                lines.code |= mask;
                lines.code_cpus = all_cpus;
                if cached {
                    lines.code_dirty |= mask;
                }
            }
            self.other_pages.insert(number);
        }
    }

    /// DC by address.
    pub(crate) fn cache_maintenance(&mut self, cpu: u32, op: CacheOp, address: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        for number in Memory::numbers(address, bytes) {
            let mask = memory::line_mask(number, address, bytes);
            let Some(page) = self.memory.known_mut(number) else {
                continue;
            };
            let lines = &mut page.lines;
            let mut lost = None;
            let pending = &mut self.cpus[cpu as usize].lines;
            let mut wait = |mask: u64, work| {
                if mask != 0 {
                    pending.push(PendingLines {
                        page: number,
                        mask,
                        work,
                    });
                }
            };
            if op != CacheOp::InvalidateToPoc {
                lines.code_dirty &= !mask;
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
                    lost = Some((dirty, lines.event));
                }
                lines.dirty &= !mask;
                lines.cleaning &= !mask;
            }
            if let Some((dirty, event)) = lost {
                let found = Found::in_memory(
                    Rule::StoreLost,
                    cpu,
                    lines_range(number, dirty),
                    "invalidates a line that was stored to and not cleaned: the store may be lost",
                );
                self.report(found.because_of(event));
            }
        }
    }

    /// IC IALLU or IC IALLUIS: reaches what was cleaned before.
    pub(crate) fn invalidate_instructions(&mut self, cpu: u32, scope: Scope) {
        let cpus = match scope {
            Scope::Local => 1 << cpu,
            Scope::Broadcast => self.all_cpus(),
        };
        for &number in &self.other_pages {
            if let Some(page) = self.memory.page(number)
                && page.lines.code != 0
                && page.lines.code_dirty == 0
            {
                self.cpus[cpu as usize].lines.push(PendingLines {
                    page: number,
                    mask: page.lines.code,
                    work: LineWork::Instructions(cpus),
                });
            }
        }
    }

    /// A DSB completes cache maintenance: all of it (`system`), or that of instruction caches,
    /// of other CPUs only if `shared`.
    pub(crate) fn complete_lines(&mut self, cpu: u32, shared: bool, system: bool) {
        let pending = std::mem::take(&mut self.cpus[cpu as usize].lines);
        let own = 1 << cpu;
        for work in pending {
            let Some(page) = self.memory.known_mut(work.page) else {
                continue;
            };
            let lines = &mut page.lines;
            match work.work {
                LineWork::Clean if system => lines.cleaning &= !work.mask,
                LineWork::Invalidate if system => lines.invalidating &= !work.mask,
                LineWork::Instructions(cpus) if shared || cpus == own => {
                    // Code stored since then stays as it is.
                    if lines.code == work.mask && lines.code_dirty == 0 {
                        lines.code_cpus &= !cpus;
                        if lines.code_cpus == 0 {
                            lines.code = 0;
                        }
                    }
                }
                _ => self.cpus[cpu as usize].lines.push(work),
            }
        }
    }

    /// A CPU turns its MMU off: what was stored for it to read must be in memory.
    pub(crate) fn check_past_caches(&mut self, cpu: u32) {
        let mut found = Vec::new();
        for &number in &self.other_pages {
            let Some(lines) = self.memory.page(number).map(|page| page.lines) else {
                continue;
            };
            let unwritten = (lines.dirty | lines.cleaning) & lines.other;
            if unwritten != 0 {
                found.push(
                    Found::in_memory(
                        Rule::NotCleaned,
                        cpu,
                        lines_range(number, unwritten),
                        "reads memory with the MMU off, and the store may be in a cache only",
                    )
                    .because_of(lines.event),
                );
            } else if lines.code_cpus & (1 << cpu) != 0 && lines.code != 0 {
                found.push(
                    Found::in_memory(
                        Rule::InstructionCache,
                        cpu,
                        lines_range(number, lines.code),
                        "fetches instructions that an instruction cache may hold as they were",
                    )
                    .because_of(lines.event),
                );
            }
        }
        for one in found {
            self.report(one);
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
