//! What CPUs find in caches and memory when they run: the checks of data and code that was stored
//! for someone past the caches.
//!
//! Nothing is stored or maintained here, see [`cache`](crate::model::cache).

use crate::arch::context::{Registers, Space};
use crate::arch::descriptor::{self, Kind};
use crate::model::{Found, Model};
use crate::state::memory::{Lines, PAGE_SHIFT, Span};
use crate::state::tables::RootId;
use crate::state::walk::{self, TableAt};
use crate::violation::Rule;

/// Lines that may be found as they were, in order, and what was said of them.
struct Suspect {
    span: Span,
    lines: Lines,
    old: u64,
    code: u64,
}

impl Model {
    /// A CPU starts, or goes on, with its MMU off: what was stored for it to read must be in
    /// memory, and with `code` its instruction caches must not hold what was there before.
    pub(crate) fn check_past_caches(&mut self, cpu: u32, code: bool) {
        for (span, lines) in self.memory.other_lines() {
            let unwritten = (lines.dirty | lines.cleaning) & lines.other;
            let found = if unwritten != 0 {
                Found::in_memory(
                    Rule::NotCleaned,
                    cpu,
                    span.range(unwritten),
                    "reads memory with the MMU off, and the store may be in a cache only",
                )
            } else if code && lines.code_cpus & (1 << cpu) != 0 && lines.code != 0 {
                Found::in_memory(
                    Rule::InstructionCache,
                    cpu,
                    span.range(lines.code),
                    "fetches instructions that an instruction cache may hold as they were",
                )
            } else {
                continue;
            };
            self.report(found.because_of(lines.event));
        }
    }

    /// All that was stored past the caches, or for those who look past them, is relied on.
    pub(crate) fn check_other_lines(&mut self) {
        if !std::mem::take(&mut self.lines_changed) {
            return;
        }
        for cpu in 0..self.config.cpus {
            let state = &mut self.cpus[cpu as usize];
            let translates = state.registers.iter().any(Registers::mmu_on);
            if translates && std::mem::take(&mut state.unknown_code) {
                self.report(Found::at(
                    Rule::InstructionCache,
                    cpu,
                    (0, u64::MAX),
                    "fetches what its instruction cache held at reset: it was never invalidated",
                ));
            }
            if self.cpus[cpu as usize].runs_flat() {
                self.check_past_caches(cpu, false);
            }
        }
        for space in Space::all() {
            self.check_seen_lines(space, 0, u64::MAX);
        }
    }

    /// What cacheable or executable mappings in a range lead to must be found as it was stored.
    pub(crate) fn check_seen_lines(&mut self, space: Space, first: u64, last: u64) {
        let mut suspects: Vec<Suspect> = Vec::new();
        for (span, lines) in self.memory.other_lines() {
            let old = (lines.newer | lines.invalidating) & lines.other;
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
        let mut roots: Vec<(RootId, u64, u64)> = Vec::new();
        for (cpu, state) in self.cpus.iter().enumerate() {
            let Some(id) = state.roots[space.index()] else {
                continue;
            };
            let bit = 1u64 << cpu;
            let cached = if state.registers.iter().any(Registers::data_cached) {
                bit
            } else {
                0
            };
            match roots.iter_mut().find(|(other, _, _)| *other == id) {
                Some(root) => *root = (id, root.1 | bit, root.2 | cached),
                None => roots.push((id, bit, cached)),
            }
        }
        let mut found = Vec::new();
        for (id, cpus, cached) in roots {
            let Some(key) = self.tables.root(id).map(|root| root.key) else {
                continue;
            };
            let top = TableAt::top(&key);
            walk::entries(
                &self.memory,
                &key.context,
                &top,
                first,
                last,
                &mut |entry| {
                    if entry.kind != Kind::Leaf {
                        return;
                    }
                    let leaf = descriptor::attributes(
                        entry.raw,
                        entry.level,
                        entry.hierarchy,
                        &key.context,
                    );
                    let cacheable = descriptor::is_cacheable_type(leaf.memory);
                    let executable = leaf.privileged.execute || leaf.user.execute;
                    let output =
                        descriptor::leaf_address(entry.raw, entry.level, key.context.format);
                    // Only what is asked for of a leaf that reaches beyond it.
                    let from = output + (first.max(entry.va) - entry.va);
                    let to = output + (last.min(entry.last()) - entry.va);
                    let (from, to) = (from >> PAGE_SHIFT, to >> PAGE_SHIFT);
                    let start = suspects.partition_point(|one| one.span.last < from);
                    for one in &mut suspects[start..] {
                        if one.span.first > to {
                            break;
                        }
                        if cacheable && cached != 0 && one.old != 0 {
                            found.push((
                                Found::in_memory(
                                    Rule::NotInvalidated,
                                    cached.trailing_zeros(),
                                    one.span.range(one.old),
                                    "may read an old cache line: the store went past the caches",
                                )
                                .because_of(one.lines.event),
                                one.span,
                            ));
                            one.old = 0;
                        }
                        let fetching = one.lines.code_cpus & cpus;
                        if executable && fetching != 0 && one.code != 0 {
                            found.push((
                            Found::in_memory(
                                Rule::InstructionCache,
                                fetching.trailing_zeros(),
                                one.span.range(one.code),
                                "fetches instructions that an instruction cache may hold as they were",
                            )
                            .because_of(one.lines.event),
                            one.span,
                        ));
                            one.code = 0;
                        }
                    }
                },
            );
        }
        for (one, span) in found {
            // Once reported, it is as if it had been done.
            let rule = one.rule;
            self.memory
                .change_known_lines(span.first, span.last, |lines| {
                    if rule == Rule::NotInvalidated {
                        lines.newer &= !lines.other;
                        lines.invalidating &= !lines.other;
                    } else {
                        lines.code = 0;
                        lines.code_dirty = 0;
                    }
                });
            self.report(one);
        }
    }
}
