//! Finds what is wrong or wasteful in trees. Each rule, or a few that look at the same thing, has a
//! module of its own; this one walks and calls them.
//!
//! Rules about single tables see whole tables; rules about what is mapped see ranges, after the walk.

mod accepted;
mod aliases;
mod entries;
mod finding;
mod group;
mod larger;
mod memory;
mod rule;

pub use accepted::{Accepted, BadLine, Unused};
pub use finding::{Finding, Findings};
pub use rule::{Rule, Severity};

use crate::attributes::Decoded;
use crate::memory_map::MemoryMap;
use crate::ranges::{Merger, Range};
use crate::source::Memory;
use crate::totals::Totals;
use crate::tree::{Owner, Tree};
use crate::walk::{EVERYTHING, Event, LeftOut, MOST_TABLES, Table, Tables, Why, walk};
use granule::arch::{Level, PhysicalAddress};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The findings of all trees, and their totals.
#[derive(Debug)]
pub struct Linted {
    /// The findings, the worst first.
    pub findings: Findings,
    /// Whether a root table cannot be read, so that nothing is known of a tree.
    pub no_root: bool,
    /// The number of tables that were not looked at: beyond the most of a tree, or met again too often.
    pub beyond_limit: u64,
    /// The totals, tree by tree. Trees that are the same as an earlier one have none.
    pub totals: Vec<(Owner, Totals)>,
}

/// One table of a tree: what rules about single tables see.
#[derive(Clone, Copy, Debug)]
struct Whole<'t> {
    tree: &'t Tree,
    table: PhysicalAddress,
    level: Level,
    start: u64,
    words: &'t [u64],
}

impl Whole<'_> {
    /// The first address of an entry.
    const fn address(&self, index: usize) -> u64 {
        let bytes = self.tree.geometry().page_size().entry_bytes(self.level);
        self.start.wrapping_add(index as u64 * bytes)
    }

    /// The bytes of some entries.
    const fn bytes(&self, count: usize) -> u64 {
        count as u64 * self.tree.geometry().page_size().entry_bytes(self.level)
    }
}

#[derive(Clone, Debug)]
pub struct LintOptions {
    /// The rules; all of them, if none is named.
    pub rules: Vec<Rule>,
    pub accepted: Accepted,
    /// The most findings of each rule and severity that are kept; more are counted.
    pub most: usize,
    /// The most tables of a tree that are looked at.
    pub most_tables: u64,
    /// The memory that must not be mapped, if that is known.
    pub memory_map: Option<MemoryMap>,
}

impl Default for LintOptions {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            accepted: Accepted::default(),
            most: 100,
            most_tables: MOST_TABLES,
            memory_map: None,
        }
    }
}

/// Looks at all trees. `progress` is called with the number of tables that were looked at.
pub fn lint(
    memory: &dyn Memory,
    trees: &[Tree],
    options: &LintOptions,
    progress: &mut dyn FnMut(u64),
) -> Linted {
    let mut lint = Lint {
        findings: Findings::new(options),
        most_tables: options.most_tables,
        met: HashMap::new(),
        tables: 0,
        no_root: false,
        beyond_limit: 0,
        progress,
    };
    let mut totals = Vec::new();
    let mut mapped: Vec<(&Tree, Vec<Range>)> = Vec::new();
    let mut tables: Vec<(&Tree, Vec<u64>)> = Vec::new();
    let mut roots: HashMap<u64, Vec<&Tree>> = HashMap::new();
    let there = memory.ranges();
    for tree in trees {
        // CPUs that run the same program have the same root.
        let others = roots.entry(tree.root.0).or_default();
        if others
            .iter()
            .any(|other| other.geometry() == tree.geometry() && other.through == tree.through)
        {
            continue;
        }
        others.push(tree);
        let mut tables_of_tree = Vec::new();
        let (ranges, of_tree) = lint.tree(memory, tree, &mut tables_of_tree);
        lint.writable_executable(tree, &ranges);
        larger::check(tree, &ranges, &mut lint.findings);
        memory::kept_shareability(tree, &ranges, &there, &mut lint.findings);
        if let Some(map) = &options.memory_map {
            memory::no_map(tree, &ranges, map, &mut lint.findings);
        }
        totals.push((tree.owner.clone(), of_tree));
        mapped.push((tree, ranges));
        tables.push((tree, tables_of_tree));
    }
    aliases::check(&mapped, &mut lint.findings);
    memory::hypervisor(&mapped, &tables, &mut lint.findings);
    lint.findings.sort();
    Linted {
        findings: lint.findings,
        no_root: lint.no_root,
        beyond_limit: lint.beyond_limit,
        totals,
    }
}

struct Lint<'p> {
    findings: Findings,
    most_tables: u64,
    /// The use of each table, by its address and the stage 2 that translates that, which was met last: whose it is,
    /// and the first address there.
    met: HashMap<(u64, Option<u64>), (Owner, u64)>,
    tables: u64,
    no_root: bool,
    beyond_limit: u64,
    progress: &'p mut dyn FnMut(u64),
}

impl Lint<'_> {
    fn tree(
        &mut self,
        memory: &dyn Memory,
        tree: &Tree,
        met: &mut Vec<u64>,
    ) -> (Vec<Range>, Totals) {
        let (mut ranges, mut totals) = (Vec::new(), Totals::default());
        let mut merger = Merger::default();
        let tables = Tables::new(memory, tree).limit(self.most_tables);
        // Rules see tables through a cache of their own: the walk is using the other one.
        let whole = Tables::new(memory, tree);
        let _: ControlFlow<()> = walk(&tables, tree, EVERYTHING, |event| {
            match event {
                Event::Table(table) => {
                    if table.before.is_none() {
                        totals.add_table(tree);
                        self.table(&whole, tree, table);
                        met.push(table.table.0);
                    }
                    self.uses(tree, table);
                }
                Event::Leaves(leaves) => {
                    let range = Range::of(tree, leaves);
                    totals.add_range(tree, &range);
                    ranges.extend(merger.push(range));
                }
                Event::LeftOut(table) => self.left_out(tree, table),
            }
            ControlFlow::Continue(())
        });
        ranges.extend(merger.end());
        (ranges, totals)
    }

    /// A table that is met for the first time in its tree.
    fn table(&mut self, tables: &Tables<'_>, tree: &Tree, table: &Table) {
        self.tables += 1;
        (self.progress)(self.tables);
        let findings = &mut self.findings;
        // The walk reports tables that cannot be read.
        let _ = tables.words(table.table, |words| {
            let whole = Whole {
                tree,
                table: table.table,
                level: table.level,
                start: table.start,
                words,
            };
            group::check(&whole, findings);
            entries::check(&whole, findings);
        });
    }

    /// A table that is met again, here or in another tree.
    fn uses(&mut self, tree: &Tree, table: &Table) {
        let span = span(tree, table.level);
        let first = match table.before {
            Some((_, start)) => Some((tree.owner.clone(), start)),
            None => {
                let space = tree.through.map(|through| through.root.0);
                self.met
                    .insert((table.table.0, space), (tree.owner.clone(), table.start))
            }
        };
        if let Some((owner, start)) = first {
            let (at, level) = (table.table, table.level);
            self.findings.add(
                (Rule::SharedTable, Severity::Warning),
                &tree.owner,
                (table.start, span),
                || {
                    format!(
                        "the table of level {level} at {at} is that of {start:#x} of {owner} too"
                    )
                },
            );
        }
    }

    fn left_out(&mut self, tree: &Tree, left_out: &LeftOut) {
        let LeftOut {
            table,
            level,
            start,
            bytes,
            why,
        } = left_out;
        match why {
            Why::Loop => self.findings.add(
                (Rule::Loop, Severity::Warning),
                &tree.owner,
                (*start, *bytes),
                || format!("the table at {table} leads to itself as a table of level {level}"),
            ),
            Why::Unreadable(why) => {
                self.no_root |= *level == tree.geometry().start_level();
                self.findings.add(
                    (Rule::UnreadableTable, Severity::Error),
                    &tree.owner,
                    (*start, *bytes),
                    || format!("the table of level {level} at {table} cannot be read, {why}"),
                );
            }
            // Too many tables are not a fault of the tables.
            Why::Limit => self.beyond_limit += 1,
        }
    }

    fn writable_executable(&mut self, tree: &Tree, ranges: &[Range]) {
        // Ranges with the same attributes are one after the other, mostly.
        for alike in ranges.chunk_by(|one, other| one.attributes == other.attributes) {
            let Some(first) = alike.first() else { continue };
            let decoded = Decoded::new(tree, first.attributes);
            // The permissions of a guest's memory are those of its own tables.
            let (severity, who) = match &decoded {
                _ if decoded.stage2 => continue,
                _ if decoded.privileged_writes_and_executes() => {
                    (Severity::Error, "the privileged level")
                }
                _ if decoded.user_writes_and_executes() => (Severity::Warning, "EL0"),
                _ => continue,
            };
            for range in alike {
                self.findings.add(
                    (Rule::WritableExecutable, severity),
                    &tree.owner,
                    (range.start, range.bytes),
                    || format!("{who} may store and execute ({decoded})"),
                );
            }
        }
    }
}

/// The bytes that a table of `level` translates.
fn span(tree: &Tree, level: Level) -> u64 {
    let size = tree.geometry().page_size();
    (size.entry_bytes(level) << size.entries().ilog2()).min(tree.geometry().span())
}
