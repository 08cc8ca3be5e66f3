//! A bar on the terminal with the time left, for whoever waits.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Bench, Cell, Observer, Row};
use crate::sizes::show_size;

/// A bar of so many steps; hidden where standard error is no terminal.
pub(super) fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = "{bar:24} {percent:>3} %  {elapsed} gone, {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// A progress bar on standard error; nothing where that is no terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    cells: usize,
    begun: usize,
}

impl Bar {
    /// For all of `bench`.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        let cells = bench.cells();
        Self {
            bar: bar(cells.iter().map(Cell::weight).sum()),
            cells: cells.len(),
            begun: 0,
        }
    }
}

impl Observer for Bar {
    fn begin(&mut self, cell: &Cell) {
        self.begun += 1;
        self.bar.set_message(format!(
            "{} of {}: {} pages, {}, {}",
            self.begun,
            self.cells,
            cell.page_size.word(),
            show_size(cell.memory),
            cell.form.strategy.word()
        ));
    }

    fn end(&mut self, row: &Row) {
        self.bar.inc(row.cell.weight());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // The table that follows needs the line.
        self.bar.finish_and_clear();
    }
}
