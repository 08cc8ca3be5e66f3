//! Reads a whole trace line by line: memory does not grow with the file.

use std::io::{self, BufRead};

use super::error::{LineError, ReadError};
use super::function::Function;
use super::header::TraceHeader;
use super::parse::parse_line;
use crate::config::{Lacks, Policies};
use granule_trace::Event;

/// The longest line in bytes; events take less than a hundred, comments may take more.
const LONGEST_LINE: usize = 4096;
/// The most functions: several times those of a large kernel with its modules.
const MOST_FUNCTIONS: usize = 1 << 20;

/// Reads a trace.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    header: TraceHeader,
    functions: Vec<Function>,
    /// The line being read, and the number of lines before it.
    buffer: Vec<u8>,
    lines: u64,
    events: u64,
    bytes: u64,
    over: bool,
}

/// The part of a line that was read.
enum Line {
    /// The whole line, without its line feed.
    Whole,
    /// The beginning of a line in which the file ends.
    Cut,
    /// Nothing: the file ends where a line would begin.
    End,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    ///
    /// A `ReadError` if the line cannot be read or is not the first line of a trace.
    pub fn new(from: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            from,
            header: TraceHeader {
                page_bytes: 0,
                cpus: 0,
                bbm_level: 0,
                policies: Policies::NONE,
                lazy: None,
                lacks: Lacks::NONE,
                complete: false,
                events: 0,
            },
            functions: Vec::new(),
            buffer: Vec::new(),
            lines: 0,
            events: 0,
            bytes: 0,
            over: false,
        };
        let kind = reader.line()?;
        let text = reader.text()?;
        let wrong = |error| ReadError::Line { line: 1, error };
        reader.header = TraceHeader::parse(text).map_err(wrong)?;
        // Without a line feed the last number may be cut short.
        if !matches!(kind, Line::Whole) {
            return Err(reader.cut_short());
        }
        Ok(reader)
    }

    /// The fields of the first line.
    #[must_use]
    pub const fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The functions that the lines so far have named.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The number of bytes read, for progress.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of lines read.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// Fills the buffer with the next line.
    fn line(&mut self) -> Result<Line, ReadError> {
        self.buffer.clear();
        self.lines += 1;
        let line = self.lines;
        loop {
            let chunk = match self.from.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ReadError::Io { line, error }),
            };
            if chunk.is_empty() {
                let nothing = self.buffer.is_empty();
                return Ok(if nothing { Line::End } else { Line::Cut });
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if self.buffer.len() + part.len() > LONGEST_LINE {
                let column = LONGEST_LINE + 1;
                return Err(ReadError::LongLine { line, column });
            }
            self.buffer.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.bytes += used as u64;
            self.from.consume(used);
            if end.is_some() {
                return Ok(Line::Whole);
            }
        }
    }

    fn text(&self) -> Result<&str, ReadError> {
        std::str::from_utf8(&self.buffer).map_err(|error| ReadError::NotText {
            line: self.lines,
            column: error.valid_up_to() + 1,
        })
    }

    /// The next event: its line, counted from 1, its CPU and the event; `None` at the end of a
    /// trace that has as many events as its first line states. An incomplete trace may have more.
    ///
    /// # Errors
    ///
    /// A `ReadError` if a line is wrong or the file is cut short; do not read on afterwards.
    pub fn next_event(&mut self) -> Result<Option<(u64, u32, Event)>, ReadError> {
        while !self.over {
            let kind = self.line()?;
            let line = self.lines;
            let expected = self.header.events;
            // A last line without a line feed may be cut short, although it parses.
            if !matches!(kind, Line::Whole) {
                let missing = self.events < expected;
                if missing || matches!(kind, Line::Cut) {
                    return Err(self.cut_short());
                }
                self.over = true;
                break;
            }
            let wrong = |error| ReadError::Line { line, error };
            let text = self.text()?;
            if let Some(function) = Function::parse(text).map_err(wrong)? {
                if self.functions.len() >= MOST_FUNCTIONS {
                    let expected = "at most 1048576 lines of functions";
                    return Err(wrong(LineError::new(text, 0, expected)));
                }
                self.functions.push(function);
                continue;
            }
            let Some((cpu, event)) = parse_line(text).map_err(wrong)? else {
                continue;
            };
            // A recorder that died may have written events that it had not counted yet.
            if self.header.complete && self.events == expected {
                return Err(ReadError::TooLong { line, expected });
            }
            if cpu >= self.header.cpus {
                return Err(self.unknown_cpu(cpu));
            }
            self.events += 1;
            return Ok(Some((line, cpu, event)));
        }
        Ok(None)
    }

    const fn cut_short(&self) -> ReadError {
        ReadError::CutShort {
            line: self.lines,
            column: self.buffer.len() + 1,
            found: self.events,
            expected: self.header.events,
        }
    }

    /// The column of a word of the line that was last read: words are counted from 0, columns from
    /// 1. If the line has fewer words, the column after the last word.
    #[must_use]
    pub fn column_of_word(&self, word: usize) -> usize {
        let text = self.text().unwrap_or_default();
        let at = match word.checked_sub(1) {
            None => 0,
            Some(spaces) => text
                .match_indices(' ')
                .nth(spaces)
                .map_or(text.len(), |(space, _)| space + 1),
        };
        LineError::new(text, at, "").column
    }

    fn unknown_cpu(&self, cpu: u32) -> ReadError {
        ReadError::UnknownCpu {
            line: self.lines,
            column: self.column_of_word(1),
            cpu,
            cpus: self.header.cpus,
        }
    }
}
