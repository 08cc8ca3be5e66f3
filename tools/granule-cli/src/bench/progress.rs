//! A progress bar on the terminal with the time left.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::series::Benchmark;

/// A bar of `steps` steps; hidden if standard error is not a terminal.
pub(crate) fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = "{bar:24} {percent:>3} %  {elapsed} gone, {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// A progress bar on standard error for boots that are made one after the other, which follows their
/// consoles; hidden if standard error is not a terminal.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    count: usize,
    begun: usize,
    /// The weight of finished boots.
    done: u64,
    /// The line that the console is at, as far as it matters.
    line: Vec<u8>,
    weight_of_line: fn(&str) -> u64,
}

impl Bar {
    /// A bar for all of `bench`.
    pub fn of<B: Benchmark>(bench: &B) -> Self {
        let cells = bench.cells();
        Self {
            bar: bar(cells.iter().map(|cell| bench.weight(cell)).sum()),
            count: cells.len(),
            begun: 0,
            done: 0,
            line: Vec::new(),
            weight_of_line: B::weight_of_line,
        }
    }

    /// Starts the next boot.
    pub(super) fn next(&mut self, what: impl Display) {
        self.begun += 1;
        let (begun, count) = (self.begun, self.count);
        self.bar.set_message(format!("{begun} of {count}: {what}"));
    }

    /// Finishes a boot of that weight.
    pub(super) fn done(&mut self, weight: u64) {
        self.done += weight;
        self.bar.set_position(self.done);
    }
}

impl Write for Bar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                let weight = (self.weight_of_line)(&String::from_utf8_lossy(&line));
                self.bar.inc(weight);
            } else if self.line.len() < 256 {
                self.line.push(byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // The following table needs the line.
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_moves_when_a_line_is_whole() {
        let mut bar = Bar {
            bar: bar(4),
            count: 1,
            begun: 0,
            done: 0,
            line: Vec::new(),
            weight_of_line: crate::bench::permissions::Bench::weight_of_line,
        };
        let printed = "x\n@granule bench.page.random.locks=1\n@granule bench.page.random_merge.lo";
        bar.write_all(printed.as_bytes()).unwrap();
        assert_eq!(bar.bar.position(), 0);
        bar.write_all(b"cks=1\r\n").unwrap();
        assert_eq!(bar.bar.position(), 1);
    }
}
