//! A bar on the terminal with the time left, for whoever waits.

use std::fmt::Display;
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

/// A progress bar on standard error for cells that are measured one after the other; nothing where that is
/// no terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    count: usize,
    begun: usize,
}

impl Bar {
    /// For all of `bench`.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        Self::of(bench.cells().iter().map(Cell::weight))
    }

    /// For as many as there are weights.
    pub(super) fn of(weights: impl ExactSizeIterator<Item = u64>) -> Self {
        let count = weights.len();
        Self {
            bar: bar(weights.sum()),
            count,
            begun: 0,
        }
    }

    /// The next one begins.
    pub(super) fn next(&mut self, what: impl Display) {
        self.begun += 1;
        let (begun, count) = (self.begun, self.count);
        self.bar.set_message(format!("{begun} of {count}: {what}"));
    }

    /// One of such a weight is done.
    pub(super) fn done(&self, weight: u64) {
        self.bar.inc(weight);
    }
}

impl Observer for Bar {
    fn begin(&mut self, cell: &Cell) {
        self.next(format_args!(
            "{} pages, {}, {}",
            cell.page_size.word(),
            show_size(cell.memory),
            cell.form.strategy.word()
        ));
    }

    fn end(&mut self, row: &Row) {
        self.done(row.cell.weight());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // The table that follows needs the line.
        self.bar.finish_and_clear();
    }
}
