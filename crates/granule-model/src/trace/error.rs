//! Errors of reading a trace: the line, the column, the text found there and the text expected.

use std::fmt;
use std::io;

/// The most characters of a wrong word that an error shows.
const LONGEST_SHOWN: usize = 40;

/// The error of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The text found; empty at the end of the line.
    pub found: String,
    /// The text expected.
    pub expected: &'static str,
}

impl LineError {
    /// An error at the word that begins at byte `at` of `line`, or at the end of the line.
    pub(crate) fn new(line: &str, at: usize, expected: &'static str) -> Self {
        let before = line.get(..at).unwrap_or(line);
        let rest = line.get(at..).unwrap_or_default();
        let word = rest.split(' ').next().unwrap_or_default();
        // A space in place of a word is shown with the text after it.
        let word = if word.is_empty() { rest } else { word };
        let mut found: String = word.chars().take(LONGEST_SHOWN).collect();
        if found.len() < word.len() {
            found.push_str("...");
        }
        Self {
            column: before.chars().count() + 1,
            found,
            expected,
        }
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            found, expected, ..
        } = self;
        if found.is_empty() {
            write!(f, "expected {expected}, but the line ends")
        } else {
            write!(f, "expected {expected}, found {found:?}")
        }
    }
}

impl std::error::Error for LineError {}

/// The reasons why a file is not a trace.
#[derive(Debug)]
pub enum ReadError {
    /// A line is wrong.
    Line {
        /// The line, counted from 1.
        line: u64,
        /// The error in it.
        error: LineError,
    },
    /// A line is not UTF-8.
    NotText {
        /// The line, counted from 1.
        line: u64,
        /// The first byte that is wrong, counted from 1.
        column: usize,
    },
    /// A line is longer than any event.
    LongLine {
        /// The line, counted from 1.
        line: u64,
        /// The column where reading stopped.
        column: usize,
    },
    /// The file ends before the events that its first line promises.
    CutShort {
        /// The line that is missing, counted from 1.
        line: u64,
        /// The column of the file's end in that line.
        column: usize,
        /// The number of events found.
        found: u64,
        /// The number of events that the first line gives.
        expected: u64,
    },
    /// The trace has more events than the first line of a complete trace states.
    TooLong {
        /// The first line too many, counted from 1.
        line: u64,
        /// The number of events that the first line gives.
        expected: u64,
    },
    /// An event names a CPU outside of the number that the first line gives.
    UnknownCpu {
        /// The line, counted from 1.
        line: u64,
        /// The column of the CPU's number.
        column: usize,
        /// The CPU's number.
        cpu: u32,
        /// The number of CPUs.
        cpus: u32,
    },
    /// The file cannot be read.
    Io {
        /// The line that was being read, counted from 1.
        line: u64,
        /// The cause.
        error: io::Error,
    },
}

impl ReadError {
    /// The line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> u64 {
        match self {
            Self::Line { line, .. }
            | Self::NotText { line, .. }
            | Self::LongLine { line, .. }
            | Self::CutShort { line, .. }
            | Self::TooLong { line, .. }
            | Self::UnknownCpu { line, .. }
            | Self::Io { line, .. } => *line,
        }
    }

    /// The column, counted from 1.
    #[must_use]
    pub const fn column(&self) -> usize {
        match self {
            Self::Line { error, .. } => error.column,
            Self::NotText { column, .. }
            | Self::LongLine { column, .. }
            | Self::CutShort { column, .. }
            | Self::UnknownCpu { column, .. } => *column,
            Self::TooLong { .. } | Self::Io { .. } => 1,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.line(), self.column())?;
        match self {
            Self::Line { error, .. } => write!(f, "{error}"),
            Self::NotText { .. } => f.write_str("not UTF-8; expected a trace, which is text"),
            Self::LongLine { .. } => {
                f.write_str("the line is longer than any event; expected at most 4096 bytes")
            }
            Self::CutShort {
                found, expected, ..
            } => write!(
                f,
                "the file ends after {found} of {expected} events: it was cut short; record it again"
            ),
            Self::TooLong { expected, .. } => {
                write!(f, "more than the {expected} events that line 1 states")
            }
            Self::UnknownCpu { cpu, cpus, .. } => {
                write!(
                    f,
                    "CPU {cpu} of {cpus}, counted from 0; line 1 has cpus={cpus}"
                )
            }
            Self::Io { error, .. } => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ReadError {}
