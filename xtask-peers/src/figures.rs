//! Reads the benchmark program's output, makes its table, and checks it. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use granule_cli::bench::user::lines;
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
    pub(crate) pages: u64,
    /// By kind of work, in the program's order: instructions, the least of all rounds.
    pub(crate) ops: Vec<(String, u64)>,
}

/// One figure, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    op: String,
    page_size: u64,
    kernel: String,
    pages: u64,
    instructions: u64,
    instructions_per_page: f64,
}

/// The kinds of work that must take fewer instructions here than on every Linux with the same page size.
const FEWER: [&str; 5] = ["touch", "fork", "mprotect-read", "mprotect-write", "munmap"];

impl Figures {
    /// Reads the program's lines among other lines. A kernel that stopped in the middle has no figures.
    pub(crate) fn read(console: &str, kernel: &str, ours: bool) -> Result<Self> {
        let measured = lines::read(console).map_err(anyhow::Error::msg)?;
        Ok(Self {
            kernel: kernel.to_owned(),
            ours,
            page_size: measured.page,
            pages: measured.pages,
            // A nanosecond of the virtual clock is an instruction.
            ops: measured
                .ops
                .into_iter()
                .filter_map(|op| Some((op.name, op.time?.best)))
                .collect(),
        })
    }

    fn instructions(&self, op: &str) -> Option<u64> {
        self.ops.iter().find(|(name, _)| name == op).map(|op| op.1)
    }

    fn per_page(&self, op: &str) -> Option<f64> {
        Some(self.instructions(op)? as f64 / self.pages as f64)
    }
}

/// All figures, one a row.
pub(crate) fn rows(all: &[Figures]) -> Vec<Row> {
    let rows = all.iter().flat_map(|figures| {
        figures.ops.iter().map(|(op, instructions)| Row {
            op: op.clone(),
            page_size: figures.page_size,
            kernel: figures.kernel.clone(),
            pages: figures.pages,
            instructions: *instructions,
            instructions_per_page: *instructions as f64 / figures.pages as f64,
        })
    });
    rows.collect()
}

/// Instructions a page: a row for each kind of work and page size, a column for each kernel.
pub(crate) fn table(all: &[Figures]) -> Table {
    let mut kernels: Vec<&str> = Vec::new();
    let mut ops: Vec<&str> = Vec::new();
    for figures in all {
        if !kernels.contains(&figures.kernel.as_str()) {
            kernels.push(&figures.kernel);
        }
        for (op, _) in &figures.ops {
            if !ops.contains(&op.as_str()) {
                ops.push(op);
            }
        }
    }
    let mut cells: BTreeMap<(usize, u64), BTreeMap<&str, f64>> = BTreeMap::new();
    for figures in all {
        for (at, op) in ops.iter().enumerate() {
            if let Some(figure) = figures.per_page(op) {
                let row = cells.entry((at, figures.page_size)).or_default();
                row.insert(&figures.kernel, figure);
            }
        }
    }
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(
            ["work", "page size"]
                .into_iter()
                .chain(kernels.iter().copied()),
        );
    for ((at, page_size), row) in cells {
        let figures = kernels.iter().map(|kernel| match row.get(kernel) {
            Some(figure) => format!("{figure:.1}"),
            None => "–".to_owned(),
        });
        let name = ops.get(at).copied().unwrap_or_default().to_owned();
        table.add_row([name, size(page_size)].into_iter().chain(figures));
    }
    for column in 2..kernels.len() + 2 {
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
            .filter(|other| !other.ours && other.page_size == ours.page_size)
            .collect();
        // Debian has no arm64 kernel with 64K pages.
        if others.is_empty() {
            continue;
        }
        for op in FEWER {
            let name = format!("{op}, {} pages: fewer than Linux", size(ours.page_size));
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
        bench op=munmap best=20 median=20 worst=20 at=1\r\nbench end ops=2\r\nmore\r\n";

    #[test]
    fn ticks_are_instructions() {
        let figures = Figures::read(SAID, "k", true).unwrap();
        assert_eq!((figures.page_size, figures.pages), (4096, 2));
        assert_eq!(figures.ops, [("fork".into(), 160), ("munmap".into(), 320)]);
        assert_eq!(figures.per_page("fork"), Some(80.0));
        assert_eq!(rows(&[figures]).len(), 2);
    }

    #[test]
    fn an_incomplete_result_has_no_figures() {
        let error = Figures::read(&SAID.replace("bench end", ""), "k", true).unwrap_err();
        assert!(
            error.to_string().contains("without `bench end`"),
            "{error:#}"
        );
    }

    fn figures(kernel: &str, page_size: u64, each: u64) -> Figures {
        Figures {
            kernel: kernel.into(),
            ours: kernel == "granule",
            page_size,
            pages: 1,
            ops: FEWER.iter().map(|op| ((*op).to_owned(), each)).collect(),
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
        let text = table(&all).to_string();
        assert_eq!(text.lines().filter(|line| line.contains("fork")).count(), 2);
        let fork = text.lines().find(|line| line.contains("fork")).unwrap();
        assert!(fork.contains("10.0") && fork.contains("12.0"), "{fork}");
    }
}
