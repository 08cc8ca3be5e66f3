//! A progress bar on the terminal with the time left.

use std::fmt::Display;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `steps` steps; hidden if standard error is no terminal.
pub(crate) fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = "{bar:24} {percent:>3} %  {elapsed} gone, {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// A progress bar on standard error for cells that are measured one after the other; hidden if
/// standard error is no terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    count: usize,
    begun: usize,
}

impl Bar {
    /// A bar for cells with these weights.
    #[must_use]
    pub fn of(weights: impl ExactSizeIterator<Item = u64>) -> Self {
        let count = weights.len();
        Self {
            bar: bar(weights.sum()),
            count,
            begun: 0,
        }
    }

    /// Starts the next cell.
    pub(super) fn next(&mut self, what: impl Display) {
        self.begun += 1;
        let (begun, count) = (self.begun, self.count);
        self.bar.set_message(format!("{begun} of {count}: {what}"));
    }

    /// Finishes a cell of that weight.
    pub(super) fn done(&self, weight: u64) {
        self.bar.inc(weight);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // The following table needs the line.
        self.bar.finish_and_clear();
    }
}
