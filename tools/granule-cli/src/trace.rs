//! The trace of a boot: turns the records that the kernel left in memory into the file that
//! `granule check` reads.
//!
//! `qmp` reads the records from the guest; the model defines the events.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use granule_model::trace::{self, write_event};
use granule_model::{Lacks, Policies};
use granule_trace::{BufferHeader, EncodedEvent, Event, RECORD_WORDS};
use tempfile::NamedTempFile;

/// A trace that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceFile {
    /// The file.
    pub path: PathBuf,
    pub events: u64,
    /// Whether it has every event up to the kernel's end.
    pub complete: bool,
}

/// A file that gets its name only when it is complete. A pipe or terminal of that name is written
/// directly.
pub(crate) struct Destination {
    path: PathBuf,
    to: Target,
}

enum Target {
    New(NamedTempFile),
    Special(File),
}

impl Destination {
    /// Checks that the file can be written.
    pub(crate) fn new(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("--trace {}: {error}", path.display());
        let to = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(format!("--trace {}: is a directory", path.display()));
            }
            Ok(metadata) if !metadata.is_file() => {
                Target::Special(File::options().write(true).open(path).map_err(failed)?)
            }
            _ => {
                let dir = match path.parent() {
                    Some(dir) if !dir.as_os_str().is_empty() => dir,
                    _ => Path::new("."),
                };
                let prefix = ".granule-trace-";
                let file = tempfile::Builder::new().prefix(prefix).tempfile_in(dir);
                Target::New(file.map_err(failed)?)
            }
        };
        let path = path.to_path_buf();
        Ok(Self { path, to })
    }

    /// Writes the trace. `head` is the trace's head; the file `raw` holds the head and the records.
    pub(crate) fn write(self, head: &BufferHeader, raw: &Path) -> Result<TraceFile, String> {
        let path = self.path;
        let failed = |error: io::Error| format!("--trace {}: {error}", path.display());
        if head.lost > 0 {
            return Err(format!(
                "the trace has holes: after {} events its buffer was full and {} more found no room; \
                 give it more with --trace-buffer, or the machine less RAM with --memory",
                head.records, head.lost
            ));
        }
        let from = File::open(raw).map_err(|error| format!("the saved trace: {error}"))?;
        let from = BufReader::with_capacity(1 << 20, from);
        match self.to {
            Target::Special(file) => write_to(head, from, file, failed)?,
            Target::New(file) => {
                write_to(head, from, file.as_file(), failed)?;
                file.persist(&path).map_err(|error| failed(error.error))?;
            }
        }
        Ok(TraceFile {
            events: head.records,
            complete: head.complete,
            path,
        })
    }
}

/// Writes the trace whose head and records `from` has. `failed` makes a line of an error in writing.
fn write_to(
    head: &BufferHeader,
    mut from: impl Read,
    to: impl Write,
    failed: impl Fn(io::Error) -> String,
) -> Result<(), String> {
    let unread = |error: io::Error| format!("the saved trace: {error}");
    let mut to = BufWriter::with_capacity(1 << 20, to);
    let mut skipped = [0; 8 * BufferHeader::WORDS];
    from.read_exact(&mut skipped).map_err(unread)?;
    let first = trace::TraceHeader {
        policies: Policies::NONE,
        lazy: None,
        lacks: Lacks::NONE,
        page_bytes: head.page_bytes.into(),
        cpus: head.cpus.into(),
        bbm_level: head.bbm_level,
        complete: head.complete,
        events: head.records,
    };
    writeln!(to, "{first}").map_err(&failed)?;
    let mut line = String::new();
    for number in 0..head.records {
        let mut bytes = [0; 8 * RECORD_WORDS];
        from.read_exact(&mut bytes).map_err(unread)?;
        let wrong = |what| format!("record {number} of the saved trace: {what}");
        let (cpu, event) = decode(&bytes).map_err(wrong)?;
        line.clear();
        // Writing into a String cannot fail, but a kernel newer than this program may record an
        // event that the trace format has no line for.
        write_event(cpu, &event, &mut line)
            .map_err(|_| wrong(format!("{event:x?} has no line in a trace")))?;
        line.push('\n');
        to.write_all(line.as_bytes()).map_err(&failed)?;
    }
    to.flush().map_err(failed)
}

/// The CPU and the event of a record, as stored in the guest's memory.
/// Fails with a description of the field that is not a part of an event.
pub fn decode(bytes: &[u8; 8 * RECORD_WORDS]) -> Result<(u32, Event), String> {
    let mut words = [0; RECORD_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let (cpu, event) = EncodedEvent(words)
        .event()
        .map_err(|error| error.to_string())?;
    Ok((cpu.into(), event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_trace::{Barrier, BarrierKind, BitChange, System, Visibility};

    fn bytes(record: EncodedEvent) -> [u8; 8 * RECORD_WORDS] {
        let mut bytes = [0; 8 * RECORD_WORDS];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(record.0) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn line_of(event: Event) -> Option<String> {
        let mut line = String::new();
        let (cpu, event) = decode(&bytes(EncodedEvent::new(2, event))).unwrap();
        write_event(cpu, &event, &mut line).is_ok().then_some(line)
    }

    fn line(event: Event) -> String {
        line_of(event).unwrap()
    }

    #[test]
    fn every_kind_of_record_has_its_line() {
        let address = 0x4000_1008;
        let store = |count, visibility| {
            line(Event::Store {
                address,
                count,
                descriptor: 0x703,
                step: 4096,
                visibility,
            })
        };
        assert_eq!(store(1, Visibility::Live), "store cpu2 0x40001008 0x703");
        assert_eq!(
            store(3, Visibility::Publish),
            "fill cpu2 0x40001008 3 0x703 0x1000 release"
        );
        let update = Event::Update {
            address,
            count: 2,
            change: BitChange {
                of: BitChange::LEAVES,
                clear: 1,
                set: 2,
            },
            visibility: Visibility::Live,
        };
        assert_eq!(
            line(update),
            "update cpu2 0x40001008 2 0x8000000000000001 0x1 0x2"
        );
        let (start, bytes) = (address, 4096);
        assert_eq!(
            line(Event::Obtained { start, bytes }),
            "obtain cpu2 0x40001008 0x1000"
        );
        assert_eq!(
            line(Event::Freed { start, bytes }),
            "free cpu2 0x40001008 0x1000"
        );
        assert_eq!(
            line(Event::Data { start, bytes }),
            "data cpu2 0x40001008 0x1000"
        );
        let used = Event::AssumeVisible {
            start: !0xfff,
            bytes,
            asid: None,
        };
        assert_eq!(line(used), "assume-visible cpu2 0xfffffffffffff000 0x1000");
        assert_eq!(line(Event::Settled), "sync cpu2");
        let lines = Event::Lines {
            instruction: System::DC_IVAC,
            start,
            bytes,
        };
        assert_eq!(line(lines), "dc cpu2 ivac 0x40001008 0x1000");
        assert_eq!(line(Event::Barrier(Barrier::DSB_NSH)), "dsb cpu2 nsh");
        assert_eq!(line(Event::Barrier(Barrier::DMB_SY)), "dmb cpu2 sy");
        assert_eq!(line(Event::Barrier(Barrier::ISB)), "isb cpu2");
    }

    #[test]
    fn every_named_register_and_instruction_has_its_line() {
        for &(system, name) in System::NAMED {
            let (start, bytes) = (0, 64);
            let line = line(if system.is_data_cache() {
                Event::Lines {
                    instruction: system,
                    start,
                    bytes,
                }
            } else {
                Event::System(system, 0x12)
            });
            assert!(line.contains(name), "{name}: {line}");
            assert_eq!(line.starts_with("tlbi "), system.is_tlbi(), "{line}");
        }
        assert_eq!(
            line(Event::System(System::RVAALE1IS, 7)),
            "tlbi cpu2 rvaale1is 0x7"
        );
    }

    #[test]
    fn records_without_a_line_are_refused() {
        assert_eq!(line_of(Event::System(System(0xffff), 0)), None);
        assert_eq!(line_of(Event::System(System::DC_CVAC, 0)), None);
        for (kind, option) in [(BarrierKind::Dsb, 0), (BarrierKind::Dmb, 0b0111)] {
            assert_eq!(line_of(Event::Barrier(Barrier { kind, option })), None);
        }
        assert!(decode(&[0xff; 32]).unwrap_err().contains("255"));
    }

    #[test]
    fn a_file_is_there_when_it_is_whole_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let (path, saved) = (dir.path().join("t"), dir.path().join("raw"));
        let head = BufferHeader {
            page_bytes: 16384,
            cpus: 3,
            bbm_level: 1,
            complete: true,
            records: 2,
            lost: 0,
            room: 2,
        };
        let mut memory = vec![0; 64];
        memory.extend(bytes(EncodedEvent::new(0, Event::Barrier(Barrier::ISB))));
        fs::write(&saved, &memory).unwrap();
        let cut = Destination::new(&path).unwrap().write(&head, &saved);
        assert!(cut.is_err() && !path.exists());
        memory.extend(bytes(EncodedEvent::new(
            2,
            Event::System(System::VMALLE1, 0),
        )));
        fs::write(&saved, &memory).unwrap();
        let full = BufferHeader { lost: 9, ..head };
        let error = Destination::new(&path).unwrap().write(&full, &saved);
        assert!(error.unwrap_err().contains("9 more found no room") && !path.exists());
        let done = Destination::new(&path).unwrap().write(&head, &saved);
        assert_eq!(done.unwrap().events, 2);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "granule-trace 2 page=16k cpus=3 bbm=1 complete=yes events=2\n\
             isb cpu0\ntlbi cpu2 vmalle1\n"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(Destination::new(dir.path()).is_err());
        assert!(Destination::new(&dir.path().join("no/where")).is_err());
    }
}
