//! Makes a table of the benchmark program's output, and checks it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use granule_cli::bench::user::lines::{self, Measured};
use granule_cli::sizes::show_size as size;
use serde::Serialize;
use xtask::drawn;

use crate::machine::Kernel;

/// One figure: the cost of a kind of work on one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    op: String,
    page_size: u64,
    /// Whether it may use larger pages.
    large: bool,
    kernel: String,
    pages: u64,
    /// The minimum of all rounds.
    instructions: u64,
    pub(crate) instructions_per_page: f64,
    /// The number in that round.
    pub(crate) tlbi: Option<u64>,
    dsb: Option<u64>,
    /// Whether the kernel is ours.
    #[serde(skip)]
    ours: bool,
}

/// The kinds of work that must take fewer instructions here than on every Linux with the same page
/// size, with pages of that size only.
const FEWER: [&str; 5] = ["touch", "fork", "mprotect-read", "mprotect-write", "munmap"];

/// The same where both may use larger pages. It excludes `fork`: with 16K pages Linux has one entry
/// for 32 MiB.
const FEWER_LARGE: [&str; 4] = ["touch", "mprotect-read", "mprotect-write", "munmap"];

/// Makes a row for each kind of work that the program measured, in its order.
pub(crate) fn rows(measured: Measured, kernel: &Kernel, large: bool) -> Vec<Row> {
    let row = |op: lines::Op| {
        // A nanosecond of the virtual clock is an instruction.
        let instructions = op.time?.best;
        let pages = op.times.unwrap_or(measured.pages);
        Some(Row {
            op: op.name,
            page_size: measured.page,
            large,
            kernel: kernel.name.clone(),
            pages,
            instructions,
            instructions_per_page: instructions as f64 / pages as f64,
            tlbi: op.counts.map(|counts| counts.tlbi),
            dsb: op.counts.map(|counts| counts.dsb),
            ours: kernel.is_ours,
        })
    };
    measured.ops.into_iter().filter_map(row).collect()
}

fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// Makes a table with a row for each kind of work, page size and use of larger pages, and a column
/// for each kernel.
pub(crate) fn table(all: &[Row], show: &dyn Fn(&Row) -> Option<String>) -> String {
    let kernels = distinct(all.iter().map(|row| row.kernel.as_str()));
    let ops = distinct(all.iter().map(|row| row.op.as_str()));
    let mut cells: BTreeMap<_, BTreeMap<&str, String>> = BTreeMap::new();
    for row in all {
        let at = ops.iter().position(|name| *name == row.op);
        if let Some(figure) = show(row) {
            let cells = cells.entry((at, row.page_size, row.large)).or_default();
            cells.insert(&row.kernel, figure);
        }
    }
    let head = ["work", "page size", "large pages"];
    let mut table = drawn::table(head.len(), &[&head[..], &kernels].concat());
    for ((at, page_size, large), row) in cells {
        let figure = |kernel: &&str| row.get(kernel).map_or("–".to_owned(), String::clone);
        let name = at.and_then(|at| ops.get(at)).copied().unwrap_or_default();
        let large = if large { "on" } else { "off" };
        let words = [name.to_owned(), size(page_size), large.to_owned()];
        table.add_row(words.into_iter().chain(kernels.iter().map(figure)));
    }
    table.to_string()
}

/// Checks that our kernel takes fewer instructions than every Linux with the same page size. A
/// missing kind of work or a missing Linux is a failure.
pub(crate) fn checks(all: &[Row]) -> Vec<(String, Result<String>)> {
    let machine = |row: &Row| (row.page_size, row.large);
    let machines = |ours: bool| -> BTreeSet<_> {
        let rows = all.iter().filter(|row| row.ours == ours);
        rows.map(machine).collect()
    };
    let mut checks = Vec::new();
    // Debian has no arm64 kernel with 64K pages.
    for &(page_size, is_large) in machines(true).intersection(&machines(false)) {
        let rows = || {
            all.iter()
                .filter(|row| machine(row) == (page_size, is_large))
        };
        let large = if is_large { ", large ones too" } else { "" };
        for op in if is_large { &FEWER_LARGE[..] } else { &FEWER } {
            let name = format!("{op}, {} pages{large}: fewer than Linux", size(page_size));
            checks.push((name, fewer(op, &rows().collect::<Vec<_>>())));
        }
    }
    if checks.is_empty() {
        let nothing = anyhow::anyhow!("there is no Linux with the page size of one of our kernels");
        checks.push(("fewer than Linux".to_owned(), Err(nothing)));
    }
    checks
}

fn fewer(op: &str, rows: &[&Row]) -> Result<String> {
    let figure = |kernel: &str| {
        let row = rows.iter().find(|row| row.kernel == kernel && row.op == op);
        let row = row.with_context(|| format!("{kernel} has no figure for {op}"))?;
        anyhow::Ok(row.instructions_per_page)
    };
    let of = |ours: bool| rows.iter().filter(move |row| row.ours == ours);
    let kernel = of(true).next().context("ours has no figures")?;
    let here = figure(&kernel.kernel)?;
    let mut words = Vec::new();
    for other in distinct(of(false).map(|row| row.kernel.as_str())) {
        let there = figure(other)?;
        ensure!(
            here < there,
            "{here:.1} instructions a page here, {there:.1} on {other}"
        );
        words.push(format!("{there:.1}"));
    }
    Ok(format!("{here:.1} here, {} there", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_cli::PageSize;
    use granule_cli::bench::user::counts::Counts;

    const OUTPUT: &str = "noise\r\nbench begin page=4096 bytes=8192 pages=2 rounds=3 \
        frequency=62500000\r\nbench op=fork best=10 median=11 worst=12 at=0\r\n\
        bench op=munmap best=20 median=20 worst=20 at=1\r\nbench end ops=2 timed=2\r\nmore\r\n";

    fn kernel(name: &str) -> Kernel {
        Kernel {
            image: "x".into(),
            name: name.into(),
            page_size: PageSize::K4,
            is_ours: name == "granule",
        }
    }

    #[test]
    fn ticks_are_instructions() {
        let mut measured = lines::read(OUTPUT).unwrap();
        measured.ops[1].counts = Some(Counts { tlbi: 3, dsb: 4 });
        let rows = rows(measured, &kernel("k"), true);
        assert_eq!((rows[0].page_size, rows[0].pages), (4096, 2));
        let found = rows.iter().map(|row| (row.op.as_str(), row.instructions));
        assert_eq!(found.collect::<Vec<_>>(), [("fork", 160), ("munmap", 320)]);
        assert_eq!((rows[0].instructions_per_page, rows[0].tlbi), (80.0, None));
        assert_eq!((rows[1].tlbi, rows[1].dsb), (Some(3), Some(4)));
    }

    fn figures(name: &str, page_size: u64, each: u64) -> Vec<Row> {
        let mut measured = lines::read(OUTPUT).unwrap();
        (measured.page, measured.pages) = (page_size, 1);
        let mut rows = rows(measured, &kernel(name), false);
        rows.truncate(1);
        let row = |op: &&str| Row {
            op: (*op).to_owned(),
            instructions_per_page: each as f64,
            ..rows[0].clone()
        };
        FEWER.iter().map(row).collect()
    }

    fn failed(all: &[Row]) -> usize {
        checks(all).iter().filter(|check| check.1.is_err()).count()
    }

    #[test]
    fn each_linux_of_the_page_size_counts() {
        let ours = [
            figures("granule", 4096, 10),
            figures("granule", 65536, 1000),
        ]
        .concat();
        let one = figures("one", 4096, 11);
        let with = |two: &[Row]| [&ours[..], &one, two].concat();
        let all = with(&figures("two", 4096, 12));
        assert_eq!((checks(&all).len(), failed(&all)), (FEWER.len(), 0));
        let mut equal = figures("two", 4096, 10);
        assert_eq!(failed(&with(&equal)), FEWER.len());
        equal.remove(0);
        assert_eq!(failed(&with(&equal)), FEWER.len());
        // Rows with larger pages are compared with each other only.
        let mut large = figures("two", 4096, 1);
        large.iter_mut().for_each(|row| row.large = true);
        assert_eq!(failed(&with(&large)), 0);
        // The absence of every Linux must not count as better than all.
        assert_eq!(failed(&ours), 1);
        assert_eq!(failed(&[]), 1);
    }

    #[test]
    fn the_table_has_a_row_for_each_work_and_size_and_a_column_for_each_kernel() {
        let all = [
            figures("granule", 4096, 10),
            figures("granule", 16384, 11),
            figures("one", 4096, 12),
        ];
        let show = |row: &Row| Some(format!("{:.1}", row.instructions_per_page));
        let text = table(&all.concat(), &show);
        assert_eq!(text.lines().filter(|line| line.contains("fork")).count(), 2);
        let fork = text.lines().find(|line| line.contains("fork")).unwrap();
        assert!(fork.contains("10.0") && fork.contains("12.0"), "{fork}");
    }
}
