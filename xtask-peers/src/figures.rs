//! Reads the benchmark program's output, makes its table, and checks it. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use granule_cli::bench::user::counts::Counts;
use granule_cli::bench::user::lines::{self, Measured};
use granule_cli::sizes::show_size as size;
use serde::Serialize;

use crate::check::Check;

/// The costs of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) kernel: String,
    /// Whether it is ours.
    pub(crate) ours: bool,
    pub(crate) page_size: u64,
    /// Whether it may use larger pages.
    pub(crate) large: bool,
    pub(crate) pages: u64,
    /// In the program's order.
    pub(crate) ops: Vec<Op>,
}

/// The cost of a kind of work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Op {
    name: String,
    /// The least of all rounds.
    pub(crate) instructions: u64,
    /// Of that round.
    pub(crate) counts: Option<Counts>,
}

/// One figure, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    op: String,
    page_size: u64,
    large: bool,
    kernel: String,
    pages: u64,
    instructions: u64,
    instructions_per_page: f64,
    tlbi: Option<u64>,
    dsb: Option<u64>,
}

/// The kinds of work that must take fewer instructions here than on every Linux with the same page size, with
/// pages of that size alone.
const FEWER: [&str; 5] = ["touch", "fork", "mprotect-read", "mprotect-write", "munmap"];

/// The same where both may use larger pages. A fork is not among them: with 16K pages Linux has one entry for 32 MiB.
const FEWER_LARGE: [&str; 4] = ["touch", "mprotect-read", "mprotect-write", "munmap"];

impl Figures {
    /// Of what the program measured.
    pub(crate) fn new(measured: Measured, kernel: &str, ours: bool, large: bool) -> Self {
        let op = |op: lines::Op| {
            Some(Op {
                // A nanosecond of the virtual clock is an instruction.
                instructions: op.time?.best,
                name: op.name,
                counts: op.counts,
            })
        };
        Self {
            kernel: kernel.to_owned(),
            ours,
            page_size: measured.page,
            large,
            pages: measured.pages,
            ops: measured.ops.into_iter().filter_map(op).collect(),
        }
    }

    fn per_page(&self, op: &str) -> Option<f64> {
        let op = self.ops.iter().find(|found| found.name == op)?;
        Some(op.instructions as f64 / self.pages as f64)
    }
}

/// All figures, one a row.
pub(crate) fn rows(all: &[Figures]) -> Vec<Row> {
    let rows = all.iter().flat_map(|figures| {
        figures.ops.iter().map(|op| Row {
            op: op.name.clone(),
            page_size: figures.page_size,
            large: figures.large,
            kernel: figures.kernel.clone(),
            pages: figures.pages,
            instructions: op.instructions,
            instructions_per_page: op.instructions as f64 / figures.pages as f64,
            tlbi: op.counts.map(|counts| counts.tlbi),
            dsb: op.counts.map(|counts| counts.dsb),
        })
    });
    rows.collect()
}

/// A row for each kind of work, page size and whether larger pages may be used; a column for each kernel.
pub(crate) fn table(all: &[Figures], show: &dyn Fn(&Op, u64) -> Option<String>) -> Table {
    let mut kernels: Vec<&str> = Vec::new();
    let mut ops: Vec<&str> = Vec::new();
    for figures in all {
        if !kernels.contains(&figures.kernel.as_str()) {
            kernels.push(&figures.kernel);
        }
        for op in &figures.ops {
            if !ops.contains(&op.name.as_str()) {
                ops.push(&op.name);
            }
        }
    }
    let mut cells: BTreeMap<(usize, u64, bool), BTreeMap<&str, String>> = BTreeMap::new();
    for figures in all {
        for op in &figures.ops {
            let at = ops.iter().position(|name| *name == op.name);
            if let (Some(at), Some(figure)) = (at, show(op, figures.pages)) {
                let row = cells
                    .entry((at, figures.page_size, figures.large))
                    .or_default();
                row.insert(&figures.kernel, figure);
            }
        }
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(
            ["work", "page size", "large pages"]
                .into_iter()
                .chain(kernels.iter().copied()),
        );
    for ((at, page_size, large), row) in cells {
        let figures = kernels.iter().map(|kernel| match row.get(kernel) {
            Some(figure) => figure.clone(),
            None => "–".to_owned(),
        });
        let name = ops.get(at).copied().unwrap_or_default().to_owned();
        let large = if large { "on" } else { "off" };
        let words = [name, size(page_size), large.to_owned()];
        table.add_row(words.into_iter().chain(figures));
    }
    for column in 3..kernels.len() + 3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Our kernel takes fewer instructions than every Linux with the same page size. A missing kind of work or
/// a missing Linux is a failure.
pub(crate) fn checks(all: &[Figures]) -> Vec<Check> {
    let mut checks = Vec::new();
    for ours in all.iter().filter(|figures| figures.ours) {
        let others: Vec<_> = all
            .iter()
            .filter(|other| {
                !other.ours && (other.page_size, other.large) == (ours.page_size, ours.large)
            })
            .collect();
        // Debian has no arm64 kernel with 64K pages.
        if others.is_empty() {
            continue;
        }
        for op in if ours.large { &FEWER_LARGE[..] } else { &FEWER } {
            let large = if ours.large { ", large ones too" } else { "" };
            let page_size = size(ours.page_size);
            let name = format!("{op}, {page_size} pages{large}: fewer than Linux");
            checks.push(Check::new(name, fewer(op, ours, &others)));
        }
    }
    if checks.is_empty() {
        let nothing = anyhow::anyhow!("no kernel of ours stands beside a Linux with its page size");
        checks.push(Check::new("fewer than Linux".to_owned(), Err(nothing)));
    }
    checks
}

fn fewer(op: &str, ours: &Figures, others: &[&Figures]) -> Result<String> {
    let figure = |figures: &Figures| {
        let figure = figures.per_page(op);
        figure.with_context(|| format!("{} has no figure for {op}", figures.kernel))
    };
    let here = figure(ours)?;
    let mut words = Vec::new();
    for other in others {
        let there = figure(other)?;
        ensure!(
            here < there,
            "{here:.1} instructions a page here, {there:.1} on {}",
            other.kernel
        );
        words.push(format!("{there:.1}"));
    }
    Ok(format!("{here:.1} here, {} there", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "noise\r\nbench begin page=4096 bytes=8192 pages=2 rounds=3 \
        frequency=62500000\r\nbench op=fork best=10 median=11 worst=12 at=0\r\n\
        bench op=munmap best=20 median=20 worst=20 at=1\r\nbench end ops=2 timed=2\r\nmore\r\n";

    #[test]
    fn ticks_are_instructions() {
        let mut measured = lines::read(SAID).unwrap();
        measured.ops[1].counts = Some(Counts { tlbi: 3, dsb: 4 });
        let figures = Figures::new(measured, "k", true, true);
        assert_eq!((figures.page_size, figures.pages), (4096, 2));
        let told = |op: &Op| (op.name.clone(), op.instructions);
        let told: Vec<_> = figures.ops.iter().map(told).collect();
        assert_eq!(told, [("fork".into(), 160), ("munmap".into(), 320)]);
        assert_eq!(figures.per_page("fork"), Some(80.0));
        let rows = rows(&[figures]);
        assert_eq!((rows.len(), rows[0].tlbi), (2, None));
        assert_eq!((rows[1].tlbi, rows[1].dsb), (Some(3), Some(4)));
    }

    fn figures(kernel: &str, page_size: u64, each: u64) -> Figures {
        Figures {
            kernel: kernel.into(),
            ours: kernel == "granule",
            page_size,
            large: false,
            pages: 1,
            ops: FEWER
                .iter()
                .map(|op| Op {
                    name: (*op).to_owned(),
                    instructions: each,
                    counts: None,
                })
                .collect(),
        }
    }

    fn failed(all: &[Figures]) -> usize {
        checks(all).iter().filter(|check| !check.passed()).count()
    }

    #[test]
    fn each_linux_of_the_page_size_counts() {
        let mut all = vec![
            figures("granule", 4096, 10),
            figures("granule", 65536, 1000),
            figures("one", 4096, 11),
            figures("two", 4096, 12),
        ];
        assert_eq!((checks(&all).len(), failed(&all)), (FEWER.len(), 0));
        all[3] = figures("two", 4096, 10);
        assert_eq!(failed(&all), FEWER.len());
        all[3].ops.remove(0);
        assert_eq!(failed(&all), FEWER.len());
        // What may use larger pages is compared with what may.
        all[1] = figures("two", 4096, 1);
        all[1].large = true;
        assert_eq!(failed(&all), FEWER.len());
        // The absence of every Linux must not count as better than all.
        assert_eq!(failed(&all[..1]), 1);
        assert_eq!(failed(&[]), 1);
    }

    #[test]
    fn the_table_has_a_row_for_each_work_and_size_and_a_column_for_each_kernel() {
        let all = [
            figures("granule", 4096, 10),
            figures("granule", 16384, 11),
            figures("one", 4096, 12),
        ];
        let show =
            |op: &Op, pages: u64| Some(format!("{:.1}", op.instructions as f64 / pages as f64));
        let text = table(&all, &show).to_string();
        assert_eq!(text.lines().filter(|line| line.contains("fork")).count(), 2);
        let fork = text.lines().find(|line| line.contains("fork")).unwrap();
        assert!(fork.contains("10.0") && fork.contains("12.0"), "{fork}");
    }
}
