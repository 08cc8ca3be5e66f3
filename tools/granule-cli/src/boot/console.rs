//! Splits the guest's console into the text for people and the `@granule` lines for programs.
//! `console_record` parses those lines.

use crate::result::console_record::{self, LONGEST_LINE};

const PREFIX: &[u8] = console_record::PREFIX.as_bytes();
/// The bytes of the console's end that are kept.
const KEPT: usize = 4 << 20;

enum LinePlace {
    /// At the start of a line that may still turn out to be a record line.
    Start(Vec<u8>),
    /// In a line of text.
    Text,
    /// Behind the prefix of a record line.
    Record(Vec<u8>),
}

/// Splits a console that arrives in pieces of any size.
pub(crate) struct Splitter {
    place: LinePlace,
}

impl Splitter {
    pub(crate) fn new() -> Self {
        Self {
            place: LinePlace::Start(Vec::new()),
        }
    }

    /// Takes the next bytes. Returns the text for people without delay, even in the middle of a
    /// line; `record` receives each whole record line, without the prefix and the line's end.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut record: impl FnMut(&str)) -> Vec<u8> {
        let mut visible = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match &mut self.place {
                LinePlace::Start(held) => {
                    held.push(byte);
                    if held == PREFIX {
                        self.place = LinePlace::Record(Vec::new());
                    } else if !PREFIX.starts_with(held) {
                        visible.append(held);
                        if byte != b'\n' {
                            self.place = LinePlace::Text;
                        }
                    }
                }
                LinePlace::Text => {
                    visible.push(byte);
                    if byte == b'\n' {
                        self.place = LinePlace::Start(Vec::new());
                    }
                }
                LinePlace::Record(line) if byte == b'\n' => {
                    let line = line.strip_suffix(b"\r").unwrap_or(line);
                    record(&String::from_utf8_lossy(line));
                    self.place = LinePlace::Start(Vec::new());
                }
                // A broken guest may never end a line. A line that was cut at the limit still has
                // the limit's length, so the record refuses it.
                LinePlace::Record(line) => {
                    if line.len() < LONGEST_LINE {
                        line.push(byte);
                    }
                }
            }
        }
        visible
    }

    /// The console has ended. An unfinished record line is shown as text instead, since its number
    /// may be cut short.
    pub(crate) fn finish(self) -> Vec<u8> {
        match self.place {
            LinePlace::Start(held) => held,
            LinePlace::Text => Vec::new(),
            LinePlace::Record(line) => [PREFIX, &line].concat(),
        }
    }
}

/// The end of the output, bounded because a guest may print for hours.
#[derive(Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Cut only at twice the bound, so that each byte moves at most once on average.
        if self.bytes.len() > 2 * KEPT {
            self.bytes.drain(..self.bytes.len() - KEPT);
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> (String, Vec<String>) {
        let (mut seen, mut lines) = (Vec::new(), Vec::new());
        let mut splitter = Splitter::new();
        for piece in pieces {
            seen.extend(splitter.feed(piece, |line| lines.push(line.to_owned())));
        }
        seen.extend(splitter.finish());
        (String::from_utf8(seen).unwrap(), lines)
    }

    const TEXT: &[u8] =
        b"boot\n@granule page_size=4096\r\n@gran\n x @granule y\n\n@granule end\r\nbye";

    #[test]
    fn record_lines_are_taken_out_and_all_else_is_seen() {
        let (seen, lines) = split(&[TEXT]);
        assert_eq!(seen, "boot\n@gran\n x @granule y\n\nbye");
        assert_eq!(lines, ["page_size=4096", "end"]);
    }

    #[test]
    fn wherever_the_pieces_are_cut_the_result_is_the_same() {
        let whole = split(&[TEXT]);
        for cut in 0..=TEXT.len() {
            assert_eq!(split(&[&TEXT[..cut], &TEXT[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(split(&TEXT.chunks(1).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn a_prompt_without_a_line_end_is_seen_at_once() {
        let mut splitter = Splitter::new();
        assert_eq!(splitter.feed(b"> ", |_| panic!("no record line")), b"> ");
        assert_eq!(splitter.feed(b"@", |_| panic!("no record line")), b"@");
    }

    #[test]
    fn a_record_line_cut_short_is_shown_and_not_believed() {
        let (seen, lines) = split(&[b"@granule linear_map.tables=12"]);
        assert_eq!(seen, "@granule linear_map.tables=12");
        assert!(lines.is_empty());
        assert_eq!(split(&[b"@granul"]).0, "@granul");
    }

    #[test]
    fn an_endless_line_stays_bounded() {
        let mut splitter = Splitter::new();
        splitter.feed(b"@granule ", |_| ());
        splitter.feed(&vec![b'x'; 1 << 20], |_| ());
        let mut length = 0;
        splitter.feed(b"\n", |line| length = line.len());
        assert_eq!(length, LONGEST_LINE);
        let mut tail = Tail::default();
        for _ in 0..20 {
            tail.push(&vec![0; 1 << 20]);
        }
        assert!(tail.into_bytes().len() <= 2 * KEPT);
    }
}
