//! `granule bench permissions`: one boot for each page size, in which the kernel changes its linear
//! map and reports the cost.
//!
//! The kernel's part is its `memory/selftest/bench.rs`.

pub(crate) mod args;
pub mod report;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::args::Bench;
use super::args::RunArgs;
use super::series::{self, Benchmark};
use crate::request::{PageSize, Request};
use crate::result::Boot;

/// The kernel's names for the sizes of changes.
const SIZES: [&str; 4] = ["page", "k64", "m2", "g1"];
const KINDS: [&str; 4] = ["single", "single_merge", "random", "random_merge"];

/// A finished boot.
pub type Ran = series::Row<PageSize, ()>;
/// All finished boots.
pub type Done = series::Done<PageSize, ()>;

/// A size and kind of change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Row {
    /// Page size.
    pub page_size: u64,
    /// Bytes of each change: a page, 64 KiB, 2 MiB, 1 GiB; aligned to its size.
    pub bytes: u64,
    /// `single`: one range in the middle of a leaf becomes read-only. `random`: beginning with a merged map,
    /// `changes` ranges become read-only or writable, one after the other. `single-merge`, `random-merge`:
    /// everything becomes writable again and is merged.
    pub kind: String,
    /// Counts.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Counts of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Leaves of the merged map that are not leaves afterwards; a contiguous group is one leaf; 0 for merges.
    pub leaves_split: u64,
    /// Tables added; for merges, tables given back.
    pub tables: u64,
    /// Descriptors written, those of new tables included.
    pub stores: u64,
    /// TLBIs.
    pub tlbi: u64,
    /// DSBs.
    pub dsb: u64,
    /// ISBs.
    pub isb: u64,
    /// Instructions of the calls.
    pub instructions: u64,
    /// Acquisitions of the tables' lock.
    pub locks: u64,
}

impl Figures {
    /// The counts in the order of the table's columns.
    fn all(&self) -> [u64; 8] {
        let Self {
            leaves_split,
            tables,
            stores,
            tlbi,
            dsb,
            isb,
            instructions,
            locks,
        } = *self;
        [
            leaves_split,
            tables,
            stores,
            tlbi,
            dsb,
            isb,
            instructions,
            locks,
        ]
    }
}

fn number(boot: &Boot, path: &str) -> Option<u64> {
    let value = boot.record.get(&format!("bench.{path}"));
    value.and_then(Value::as_u64)
}

/// The figures that the kernel reported; missing ones have no row.
fn rows(page_size: PageSize, boot: &Boot) -> Vec<Row> {
    let of = |size: &&str, kind: &str| {
        let figures = boot.record.get(&format!("bench.{size}.{kind}"))?;
        Some(Row {
            page_size: page_size.bytes(),
            bytes: number(boot, &format!("{size}.bytes"))?,
            kind: kind.replace('_', "-"),
            figures: Figures::deserialize(figures).ok()?,
        })
    };
    let rows = SIZES
        .iter()
        .flat_map(|size| KINDS.iter().filter_map(move |kind| of(size, kind)));
    rows.collect()
}

impl Done {
    /// The lines of all boots.
    pub fn lines(&self) -> Vec<Row> {
        let of = |ran: &Ran| rows(ran.cell, &ran.boot);
        self.rows.iter().flat_map(of).collect()
    }
}

impl Benchmark for Bench {
    type Cell = PageSize;
    type Files = ();
    type Figures = ();

    fn run_args(&self) -> &RunArgs {
        &self.on.run
    }

    fn cells(&self) -> Vec<PageSize> {
        self.page_size.clone()
    }

    fn check(&self) -> Result<(), String> {
        if self.changes == 0 {
            return Err("--changes 0: there is nothing to measure; take at least 1".into());
        }
        for page_size in &self.page_size {
            self.request(page_size).check()?;
        }
        self.on.open().map(drop)
    }

    fn name(page_size: &PageSize) -> String {
        format!("{} pages", page_size.word())
    }

    fn weight(&self, _page_size: &PageSize) -> u64 {
        SIZES.len() as u64
    }

    fn weight_of_line(line: &str) -> u64 {
        // The last line that the kernel prints for a size.
        let is_last = line.contains(".random_merge.locks=");
        u64::from(line.starts_with("@granule bench.") && is_last)
    }

    fn request(&self, page_size: &PageSize) -> Request {
        Request {
            page_size: Some(*page_size),
            memory: self.memory,
            cpu: self.cpu.clone(),
            rodata: Some(self.rodata),
            // Merging happens only when a change requests it.
            append: Some(format!(
                "granule.merge=off granule.bench=permissions:{}",
                self.changes
            )),
            ..self.on.request()
        }
    }

    fn figures(&self, page_size: &PageSize, (): &(), boot: &Boot) -> Result<(), String> {
        let requested = page_size.bytes();
        let took = boot.record.get("page_size").and_then(Value::as_u64);
        if took != Some(requested) {
            return Err(format!(
                "page_size: {requested} was requested, the kernel took {took:?}"
            ));
        }
        let changes = number(boot, "changes");
        if changes != Some(self.changes) {
            return Err(format!(
                "{} random changes were requested, the kernel made {changes:?}",
                self.changes
            ));
        }
        let is_there = |size: &&&str| number(boot, &format!("{size}.bytes")).is_some();
        let expected = SIZES.iter().filter(is_there).count() * KINDS.len();
        match rows(*page_size, boot).len() {
            rows if rows > 0 && rows == expected => Ok(()),
            rows => Err(format!(
                "the kernel's record has {rows} rows, expected {expected}"
            )),
        }
    }

    fn tables(&self, done: &Done) -> String {
        report::table(done)
    }

    fn json(&self, done: &Done) -> Value {
        report::json(self, done)
    }
}
