//! The recording of a watched run: a trace, compressed, for `granule check`.
//!
//! The file is a row of gzip members. Each holds whole lines and is written whole, so that the file
//! can be read up to the last one after a full disk or a crash. The first holds the first line alone,
//! which has the same length whatever its values: it is written anew after each member. If the program dies
//! between the two, the first line has fewer events than the file, which an incomplete trace may.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use granule_model::trace::{Function, TraceHeader, write_event};
use granule_trace::Event;

/// The text of a member.
const MEMBER: usize = 1 << 20;
/// The length of the first line, with its line feed: more than any has.
const FIRST_LINE: usize = 192;

/// A trace that is being written.
#[derive(Debug)]
pub(crate) struct Recording {
    path: PathBuf,
    file: File,
    header: TraceHeader,
    /// Lines that are not written yet, and the events in them.
    text: String,
    pending: u64,
    /// The instructions that events came from.
    places: BTreeSet<u64>,
    /// The end of what is written whole.
    written: u64,
    failed: Option<String>,
}

impl Recording {
    /// Creates the file. The page size, and the addresses of lazy unmapping, may be wrong in the first line until then.
    pub(crate) fn new(path: &Path, header: TraceHeader) -> Result<Self, String> {
        let failed = |error: io::Error| format!("--record {}: {error}", path.display());
        let mut recording = Self {
            path: path.to_path_buf(),
            file: File::create(path).map_err(failed)?,
            header,
            text: String::new(),
            pending: 0,
            places: BTreeSet::new(),
            written: 0,
            failed: None,
        };
        recording.written = recording.write_head().map_err(failed)?;
        Ok(recording)
    }

    pub(crate) fn add(&mut self, cpu: u32, event: &Event) {
        if self.failed.is_some() {
            return;
        }
        let length = self.text.len();
        if write_event(cpu, event, &mut self.text).is_err() {
            // The model has no rule for it either.
            self.text.truncate(length);
            return;
        }
        if let Event::At(place) = event {
            self.places.insert(*place);
        }
        self.text.push('\n');
        self.pending += 1;
        if self.text.len() >= MEMBER {
            self.write_member();
        }
    }

    fn write_member(&mut self) {
        let done = compressed(self.text.as_bytes(), Compression::fast()).and_then(|bytes| {
            self.file.seek(SeekFrom::Start(self.written))?;
            self.file.write_all(&bytes)?;
            Ok(bytes.len())
        });
        match done {
            Ok(bytes) => {
                self.written += bytes as u64;
                self.header.events += self.pending;
                self.write_count();
            }
            Err(error) => {
                // What was written whole stays.
                let _ = self.file.set_len(self.written);
                self.failed = Some(format!("--record {}: {error}", self.path.display()));
            }
        }
        self.text.clear();
        self.pending = 0;
    }

    /// Writes the number of events into the first line.
    fn write_count(&mut self) {
        if let Err(error) = self.write_head() {
            let line = format!("--record {}: {error}", self.path.display());
            self.failed.get_or_insert(line);
        }
    }

    fn write_head(&mut self) -> io::Result<u64> {
        let mut line = self.header.to_string();
        // The number of events is the last word, and may begin with zeros.
        if let Some(at) = line.rfind('=') {
            let zeros = FIRST_LINE.saturating_sub(line.len() + 1);
            line.insert_str(at + 1, &"0".repeat(zeros));
        }
        line.push('\n');
        // Without compression each line of this length takes as many bytes.
        let bytes = compressed(line.as_bytes(), Compression::none())?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&bytes)?;
        Ok(bytes.len() as u64)
    }

    /// The instructions that the events so far came from.
    pub(crate) fn places(&self) -> Vec<u64> {
        self.places.iter().copied().collect()
    }

    /// Ends the trace with the names of functions. Returns the events in the file, and an error line if some are not in it.
    pub(crate) fn finish(
        mut self,
        (page_bytes, lazy): (Option<u64>, Option<(u64, u64)>),
        complete: bool,
        functions: &[Function],
    ) -> (u64, Option<String>) {
        for function in functions {
            self.text += &format!("{function}\n");
        }
        if !self.text.is_empty() && self.failed.is_none() {
            self.write_member();
        }
        self.header.page_bytes = page_bytes.unwrap_or(4096);
        self.header.lazy = lazy;
        self.header.complete = complete && self.failed.is_none();
        self.write_count();
        (self.header.events, self.failed)
    }
}

fn compressed(bytes: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::MultiGzDecoder;
    use granule_model::trace::Reader;
    use granule_model::{Lacks, Policies};
    use granule_testing::text::{assert_contains, assert_ends_with};
    use granule_trace::{Barrier, Text};
    use std::io::{BufReader, Read};

    fn text(path: &Path) -> String {
        let mut text = String::new();
        let file = File::open(path).unwrap();
        MultiGzDecoder::new(file).read_to_string(&mut text).unwrap();
        text
    }

    fn head(cpus: u32, bbm_level: u8) -> TraceHeader {
        TraceHeader {
            page_bytes: 4096,
            cpus,
            bbm_level,
            policies: Policies::NONE,
            lazy: None,
            lacks: Lacks::NONE,
            complete: false,
            events: 0,
        }
    }

    #[test]
    fn a_recording_is_a_trace_at_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.gz");
        let mut recording = Recording::new(&path, head(2, 2)).unwrap();
        let begun = text(&path);
        assert_eq!(begun.len(), FIRST_LINE);
        assert_contains(&begun, "cpus=2 bbm=2 complete=no events=0");
        let isb = Event::Barrier(Barrier::ISB);
        let missing = Event::Missing(Text::new(b"some tlbi"));
        for (cpu, event) in [(1, Event::At(0x40)), (1, isb), (0, missing)] {
            recording.add(cpu, &event);
        }
        assert_eq!(recording.places(), [0x40]);
        let functions = [Function {
            start: 0x40,
            bytes: 4,
            name: "start".into(),
            module: None,
        }];
        let (events, failed) =
            recording.finish((Some(65536), Some((0x10, 0x1f))), true, &functions);
        assert_eq!((events, failed), (3, None));
        let written = text(&path);
        let (first, rest) = written.split_at(FIRST_LINE);
        assert!(first.starts_with(
            "granule-trace 2 page=64k cpus=2 bbm=2 lazy=0x10-0x1f complete=yes events=00"
        ));
        assert_eq!(
            rest,
            "at cpu1 0x40\nisb cpu1\nmissing cpu0 some TLBI\nfunction 0x40 0x4 start\n"
        );
        let mut reader = Reader::new(BufReader::new(written.as_bytes())).unwrap();
        let mut read = 0;
        while reader.next_event().unwrap().is_some() {
            read += 1;
        }
        assert_eq!(read, 3);
        assert_eq!(reader.functions(), functions);
    }

    #[test]
    fn a_recorder_may_die_between_a_member_and_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.gz");
        let mut recording = Recording::new(&path, head(1, 0)).unwrap();
        let head = std::fs::read(&path).unwrap();
        recording.add(0, &Event::Barrier(Barrier::ISB));
        recording.write_member();
        recording.file.seek(SeekFrom::Start(0)).unwrap();
        recording.file.write_all(&head).unwrap();
        let written = text(&path);
        let mut reader = Reader::new(BufReader::new(written.as_bytes())).unwrap();
        assert_eq!(reader.header().events, 0);
        assert!(reader.next_event().unwrap().is_some());
        assert!(reader.next_event().unwrap().is_none());
    }

    #[test]
    fn a_full_disk_is_one_line_and_keeps_what_was_written() {
        let error = Recording::new(Path::new("/dev/full"), head(1, 0)).unwrap_err();
        assert!(error.starts_with("--record /dev/full: "), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.gz");
        let mut recording = Recording::new(&path, head(1, 0)).unwrap();
        recording.add(0, &Event::Barrier(Barrier::ISB));
        recording.write_member();
        // From here on the disk is full.
        let kept = std::mem::replace(&mut recording.file, File::create("/dev/full").unwrap());
        recording.add(0, &Event::Barrier(Barrier::ISB));
        recording.write_member();
        recording.file = kept;
        recording.add(0, &Event::Barrier(Barrier::ISB));
        let (events, failed) = recording.finish((None, Some((1 << 63, u64::MAX))), true, &[]);
        assert_eq!(events, 1);
        assert!(failed.unwrap().contains("trace.gz: "));
        let written = text(&path);
        assert_contains(&written, "complete=no");
        assert_ends_with(&written, "\nisb cpu0\n");
    }
}
