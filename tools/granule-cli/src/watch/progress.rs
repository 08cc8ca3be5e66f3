//! The progress of a run for a person at a terminal: the time, the events, the findings so far.
//!
//! A bar on standard error; but lines, ever rarer, if the guest prints to the same terminal, where a bar would erase
//! what it prints.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// From here on a guest that has no MMU on is worth a word, and a run a line.
const LONG: Duration = Duration::from_secs(10);
/// The time between two looks of the bar.
const STEP: Duration = Duration::from_millis(500);

/// The progress of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
    events: Cell<u64>,
    found: Cell<u64>,
    is_mmu_on: Cell<bool>,
    next: Cell<Duration>,
    bar: RefCell<Option<ProgressBar>>,
}

impl Progress {
    /// Returns `None` if standard error is not a terminal.
    pub(super) fn new() -> Option<Self> {
        if !io::stderr().is_terminal() {
            return None;
        }
        let bar = (!io::stdout().is_terminal()).then(|| {
            let bar = ProgressBar::no_length();
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Some(Self {
            begun: Instant::now(),
            events: Cell::new(0),
            found: Cell::new(0),
            is_mmu_on: Cell::new(false),
            next: Cell::new(if bar.is_some() { STEP } else { LONG }),
            bar: RefCell::new(bar),
        })
    }

    /// An event was seen, and something new was found by it.
    pub(super) fn seen(&self, is_finding: bool, is_mmu_on: bool) {
        self.events.set(self.events.get() + 1);
        self.found.set(self.found.get() + u64::from(is_finding));
        self.is_mmu_on.set(is_mmu_on);
    }

    /// Some time has passed; `left` is what is left until the time limit.
    pub(super) fn tick(&self, left: Option<Duration>) {
        let gone = self.begun.elapsed();
        if gone < self.next.get() {
            return;
        }
        let line = self.line(gone, left);
        match &*self.bar.borrow() {
            Some(bar) => {
                self.next.set(gone + STEP);
                bar.set_message(line);
                bar.tick();
            }
            None => {
                self.next.set(gone * 2);
                // If standard error is closed, no message can be printed.
                let _ = writeln!(io::stderr(), "granule: {line}");
            }
        }
    }

    fn line(&self, gone: Duration, left: Option<Duration>) -> String {
        let mut line = format!("{} s gone", gone.as_secs());
        if let Some(left) = left {
            line += &format!(", at most {} s left", left.as_secs());
        }
        line += &format!(", {} events", self.events.get());
        if !self.is_mmu_on.get() && gone >= LONG {
            return line + ": no MMU is on yet; does the guest start at all?";
        }
        match self.found.get() {
            0 => line + ", nothing found",
            1 => line + ", something found in one place",
            n => format!("{line}, something found in {n} places"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The report needs the line.
        if let Some(bar) = self.bar.get_mut() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::assert_starts_with;

    #[test]
    fn a_line_has_the_progress_of_the_run_and_what_is_odd() {
        let progress = Progress {
            begun: Instant::now(),
            events: Cell::new(12),
            found: Cell::new(0),
            is_mmu_on: Cell::new(false),
            next: Cell::new(LONG),
            bar: RefCell::new(None),
        };
        let line = |seconds, left| {
            let left: Option<u64> = left;
            progress.line(Duration::from_secs(seconds), left.map(Duration::from_secs))
        };
        assert_eq!(line(9, None), "9 s gone, 12 events, nothing found");
        let odd = line(10, Some(50));
        assert_starts_with(
            &odd,
            "10 s gone, at most 50 s left, 12 events: no MMU is on yet",
        );
        progress.is_mmu_on.set(true);
        progress.found.set(2);
        assert_eq!(
            line(10, None),
            "10 s gone, 12 events, something found in 2 places"
        );
    }
}
