//! The points at which something is relied on: what was left undone shows there.

use crate::arch::context::{Context, Space};
use crate::arch::descriptor::{self, Kind};
use crate::event::tlbi::Regime;
use crate::model::{Found, Model};
use crate::rules::change::{Difference, LeafView};
use crate::state::cpu::regime_index;
use crate::state::memory::PAGE_SHIFT;
use crate::state::stale_range::{Run, RunKind};
use crate::state::stale_tlb::Fate;
use crate::state::tables::RootId;
use crate::state::walk::{self, TableAt};
use crate::violation::Rule;

const OLD: &str = "may still use the old translation";
const GONE: &str = "may still translate addresses for which there is no valid entry any more";
const WIDER: &str = "may still refuse what is allowed now";
const ACCESSED: &str = "may use the entry without setting the access flag again";
const UNDER_WAY: &str = "may still use the translation that was invalidated: what was under way \
                         was not discarded (no ISB after the TLBI)";
const NO_TRANSLATION: &str = "may fault: the block still has the nT bit";

/// Whether a lookup of a leaf may fault because of its nT bit.
fn refuses(entry: &walk::EntryAt, context: &Context) -> bool {
    entry.kind == Kind::Leaf && descriptor::refuses(entry.raw, entry.level, context.format)
}

impl Model {
    /// All that the tables say is relied on, by all CPUs.
    pub(crate) fn sync(&mut self, cpu: u32) {
        for by in 0..self.config.cpus {
            let (stored, location) = self.cpus[by as usize].stored;
            if stored > self.cpus[by as usize].dsb {
                let range = self.translated_by(location);
                let found = Found::at(
                    Rule::StoreNotVisible,
                    self.other_than(by),
                    range,
                    "may walk the tables as they were before the store (no DSB)",
                );
                self.report(found.because_of(stored).located(location));
                self.cpus[by as usize].stored.0 = 0;
            }
            for regime in 0..3 {
                if let Some(event) = self.cpus[by as usize].field_changed[regime].take() {
                    let found = Found::at(
                        Rule::CachedField,
                        by,
                        (0, u64::MAX),
                        "may use register fields that its TLB holds from before (no TLBI)",
                    );
                    self.report(found.because_of(event));
                }
            }
        }
        let (made, location) = self.cpus[cpu as usize].made_valid;
        if made > self.cpus[cpu as usize].synchronised[cpu as usize] {
            let range = self.translated_by(location);
            let found = Found::at(
                Rule::MissingIsb,
                cpu,
                range,
                "may fault on an entry that it made valid: what it speculated was not discarded",
            );
            self.report(found.because_of(made).located(location));
            self.cpus[cpu as usize].made_valid.0 = 0;
        }
        self.check_registers(cpu);
        self.check_suspect_groups(cpu, None);
        self.check_suspect_pages(cpu);
        self.check_other_lines();
        self.check_suspect_blocks(cpu);
        for space in Space::all() {
            self.check_stale(space, 0, u64::MAX);
            self.check_draining(cpu, space, 0, u64::MAX);
        }
    }

    /// The regime that a CPU's virtual addresses belong to where nothing says which: EL1&0 if it
    /// is on, or the one that is.
    fn regime_of_cpu(&self, cpu: u32) -> Regime {
        let registers = &self.cpus[cpu as usize].registers;
        [Regime::El10, Regime::El2, Regime::El3]
            .into_iter()
            .find(|regime| registers[regime_index(*regime)].mmu_on())
            .unwrap_or(Regime::El10)
    }

    /// A range is relied on, by all CPUs.
    pub(crate) fn relied(&mut self, cpu: u32, address: u64, bytes: u64) {
        let Some(last) = bytes
            .checked_sub(1)
            .and_then(|most| address.checked_add(most))
        else {
            return;
        };
        self.check_registers(cpu);
        let space = Space::of(self.regime_of_cpu(cpu), address);
        let mut found = Vec::new();
        for (index, state) in self.cpus.iter().enumerate() {
            let Some(root) = state.roots[space.index()].and_then(|id| self.tables.root(id)) else {
                continue;
            };
            let key = root.key;
            let mut seen = |entry: &walk::EntryAt| {
                let (event, by) = self.memory.fresh(entry.location);
                let range = (entry.va, entry.last());
                if event > self.cpus[by as usize].dsb {
                    found.push(
                        Found::at(
                            Rule::StoreNotVisible,
                            index as u32,
                            range,
                            "may walk the tables as they were before the store (no DSB)",
                        )
                        .because_of(event)
                        .located(entry.location),
                    );
                } else if index == cpu as usize && event > state.synchronised[by as usize] {
                    found.push(
                        Found::at(
                            Rule::MissingIsb,
                            cpu,
                            range,
                            "may fault on a new entry: what it speculated was not discarded",
                        )
                        .because_of(event)
                        .located(entry.location),
                    );
                }
                if refuses(entry, &key.context) {
                    let one = Found::at(Rule::NoTranslation, index as u32, range, NO_TRANSLATION);
                    found.push(one.because_of(event).located(entry.location));
                }
            };
            let top = TableAt::top(&key);
            walk::entries(&self.memory, &key.context, &top, address, last, &mut seen);
        }
        for one in found {
            self.report(one);
        }
        self.check_suspect_groups(cpu, Some((space, address, last)));
        self.check_seen_lines(space, address, last);
        self.check_stale(space, address, last);
        self.check_draining(cpu, space, address, last);
    }

    /// Blocks that were left with the nT bit, which no lookup need translate (RMRRPW).
    fn check_suspect_blocks(&mut self, cpu: u32) {
        for (location, event) in std::mem::take(&mut self.suspect_blocks) {
            let tables = self
                .memory
                .page(location >> PAGE_SHIFT)
                .map_or(Vec::new(), |page| page.tables.clone());
            let raw = self.memory.load(location);
            let left = tables.iter().filter_map(|id| self.tables.table(*id));
            let left = left
                .filter(|table| location.wrapping_sub(table.base) / 8 < table.entries)
                .any(|table| {
                    descriptor::kind(raw, table.level, table.format) == Kind::Leaf
                        && descriptor::refuses(raw, table.level, table.format)
                });
            if left {
                let range = self.translated_by(location);
                let found = Found::at(Rule::NoTranslation, cpu, range, NO_TRANSLATION);
                self.report(found.because_of(event).located(location));
            }
        }
    }

    /// Reports what the CPU removed from its TLB, but what instructions under way may still use.
    fn check_draining(&mut self, cpu: u32, space: Space, first: u64, last: u64) {
        let Some(root) = self.cpus[cpu as usize].roots[space.index()] else {
            return;
        };
        let asid = self.tables.root(root).and_then(|root| root.key.asid);
        let mut found = Vec::new();
        let mut draining = std::mem::take(&mut self.cpus[cpu as usize].draining);
        self.memory.visit(draining.len() as u64);
        draining.retain(|(of, run)| {
            if *of != space || !run.matches(asid) || run.reported {
                return true;
            }
            let Some((from, count)) = run.touched(first, last) else {
                return true;
            };
            let before = found.len();
            for index in from..from + count {
                if self.matters(run, index, root).is_some() {
                    let mut part = run.part(index, 1);
                    part.missed = None;
                    found.push(Found {
                        cpu,
                        ..Found::of_run(Rule::MissingIsb, &part, UNDER_WAY)
                    });
                }
            }
            found.len() == before
        });
        self.cpus[cpu as usize].draining = draining;
        for one in found {
            self.report(one);
        }
    }

    fn check_registers(&mut self, cpu: u32) {
        if let Some(event) = self.cpus[cpu as usize].unsynchronised {
            let found = Found::at(
                Rule::MissingIsb,
                cpu,
                (0, u64::MAX),
                "may translate with register values from before (no ISB)",
            );
            self.report(found.because_of(event));
        }
    }

    /// The addresses that the descriptor at a physical address translates, in the first tree
    /// that it is part of.
    fn translated_by(&self, location: u64) -> (u64, u64) {
        let tables = self
            .memory
            .page(location >> PAGE_SHIFT)
            .map_or(&[][..], |page| &page.tables);
        for &id in tables {
            let Some(path) = self
                .tables
                .paths(&self.memory, id, &self.contexts)
                .into_iter()
                .next()
            else {
                continue;
            };
            let Some(root) = self.tables.root(path.root) else {
                continue;
            };
            let shift = root.key.context.format.granule.level_shift(path.at.level);
            let index = location.wrapping_sub(path.at.base) / 8;
            if index < path.at.entries {
                let va = path.at.va + (index << shift);
                return (va, va + ((1 << shift) - 1));
            }
        }
        (0, u64::MAX)
    }

    /// Reports the stale entries of a range that would make a difference.
    fn check_stale(&mut self, space: Space, first: u64, last: u64) {
        if self.stale.is_empty() {
            return;
        }
        let mut found: Vec<(Run, u32, &str)> = Vec::new();
        let mut stale = std::mem::take(&mut self.stale);
        stale.rewrite(space, first, last, |run| {
            if run.reported || run.harmless {
                return Fate::Keep;
            }
            let mut checked = run.clone();
            checked.harmless = true;
            for (root, cpus) in self.walked_by(run, space) {
                for index in 0..run.count {
                    if let Some(text) = self.matters(run, index, root) {
                        let mut part = run.part(index, 1);
                        part.cpus = cpus;
                        found.push((part, cpus.trailing_zeros(), text));
                        checked.harmless = false;
                        checked.reported = true;
                    }
                }
            }
            Fate::Replace(vec![checked])
        });
        self.stale = stale;
        for (run, cpu, text) in found {
            let mut one = Found::of_run(Rule::StaleTranslation, &run, text);
            one.cpu = cpu;
            self.report_of_run(one, &run);
        }
    }

    /// The trees, with the CPUs that walk them, in which a lookup may find a stale run.
    fn walked_by(&self, run: &Run, space: Space) -> Vec<(RootId, u64)> {
        let mut trees: Vec<(RootId, u64)> = Vec::new();
        let mut walking = false;
        let mut cpus = run.cpus;
        while cpus != 0 {
            let cpu = cpus.trailing_zeros();
            cpus &= cpus - 1;
            let Some(id) = self.cpus[cpu as usize].roots[space.index()] else {
                continue;
            };
            if !self
                .tables
                .root(id)
                .is_some_and(|root| run.matches(root.key.asid))
            {
                continue;
            }
            walking = true;
            match trees.iter_mut().find(|(other, _)| *other == id) {
                Some((_, cpus)) => *cpus |= 1 << cpu,
                None => trees.push((id, 1 << cpu)),
            }
        }
        if let (false, Some(asid)) = (walking, run.asid) {
            // Nobody is in the address space, but who comes back to it will find the run. Not who
            // comes back to an empty tree: kernels switch by way of one that has any ASID, and
            // what is found there is checked when a CPU walks it.
            let ids = self.tables.roots_of(space, Some(asid));
            self.memory.visit(ids.len() as u64);
            trees.extend(
                ids.into_iter()
                    .filter_map(|id| Some((id, self.tables.root(id)?)))
                    .filter(|(id, root)| {
                        root.key.asid == run.asid
                            && root.holders & run.cpus != 0
                            && !self.is_empty(*id)
                    })
                    .map(|(id, root)| (id, root.holders & run.cpus)),
            );
        }
        trees
    }

    /// Whether the top table of a root has no valid entry.
    pub(crate) fn is_empty(&self, id: RootId) -> bool {
        let Some(key) = self.tables.root(id).map(|root| root.key) else {
            return true;
        };
        let entries = key.context.top_entries();
        self.memory.visit(entries);
        (0..entries).all(|index| self.memory.load(key.base + index * 8) & descriptor::VALID == 0)
    }

    /// What difference a stale entry makes against the tables of a root, if it does.
    pub(crate) fn matters(&self, run: &Run, index: u64, root: RootId) -> Option<&'static str> {
        let root = self.tables.root(root)?;
        let run_context = &self.contexts[run.context as usize];
        let va = run.entry_va(index);
        match run.kind {
            RunKind::Leaf => {
                let old = LeafView::of_run(run, index, run_context);
                self.leaf_matters(&old, va, va + (run.entry_bytes() - 1), root.key)
            }
            RunKind::Table => {
                let below = self.table_of(run, index, run_context);
                let mut text = None;
                let last = va + (run.entry_bytes() - 1);
                walk::entries(&self.memory, run_context, &below, va, last, &mut |entry| {
                    if text.is_none()
                        && entry.kind == Kind::Leaf
                        && descriptor::cacheable(entry.raw, run_context)
                    {
                        let old = LeafView::of_entry(entry, run_context);
                        text = self.leaf_matters(&old, entry.va, entry.last(), root.key);
                    }
                });
                text
            }
        }
    }

    /// The table that a stale pointer leads to.
    pub(crate) fn table_of(&self, run: &Run, index: u64, context: &Context) -> TableAt {
        let raw = run.entry_value(index);
        TableAt {
            base: descriptor::table_address(raw, context.format),
            level: run.level + 1,
            entries: 1 << context.format.granule.table_bits(),
            va: run.entry_va(index),
            hierarchy: run.hierarchy.below(raw, context),
        }
    }

    fn leaf_matters(
        &self,
        old: &LeafView,
        first: u64,
        last: u64,
        key: crate::arch::context::RootKey,
    ) -> Option<&'static str> {
        let mut covered: u64 = 0;
        let mut text = None;
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
                covered += entry.last().min(last) - entry.va.max(first) + 1;
                let new = LeafView::of_entry(entry, &key.context);
                let difference = Difference::between(old, &new);
                if difference.matters() {
                    text = Some(OLD);
                } else if difference.widened {
                    text.get_or_insert(WIDER);
                } else if self.config.strict && difference.access_cleared {
                    text.get_or_insert(ACCESSED);
                }
            },
        );
        if covered != last - first + 1 {
            return Some(GONE);
        }
        text
    }
}
