//! The stream from the plugin to `granule watch`: events as records of a fixed size.
//!
//! A record is five words: an event as `granule-trace` encodes it, or one of the kinds below, which
//! are only counted, and the address of the instruction that it comes from. The first record is the
//! head. The last one is the end, so that a truncated stream is recognised.

use granule_trace::{EncodedEvent, Event, RecordError};
use std::io::{self, Read};

/// The words of a record.
pub const WORDS: usize = 5;
/// The bytes of a record.
pub const BYTES: usize = WORDS * 8;

/// The words of the head.
const MAGIC: u64 = u64::from_le_bytes(*b"GRNLWTCH");
const VERSION: u64 = 1;

/// The kinds of records that are not events of a trace.
const EXCEPTION: u8 = 0x80;
const END: u8 = 0xff;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// An event of a trace.
    Event(Event),
    /// The CPU took an exception or returned from one, which synchronises its context.
    Exception,
    /// The machine ended.
    End(Totals),
}

/// Totals that the plugin counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Stores of privileged code.
    pub stores: u64,
    /// DSBs, DMBs and ISBs.
    pub barriers: u64,
    /// The largest size of the plugin's copy of the tables, in bytes.
    pub table_bytes: u64,
}

/// The head of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The version of QEMU's plugin interface.
    pub api: u32,
    /// The number of CPUs.
    pub cpus: u16,
}

impl Head {
    /// Encodes the head as a record.
    #[must_use]
    pub fn words(&self) -> [u64; WORDS] {
        [MAGIC, VERSION, self.api.into(), self.cpus.into(), 0]
    }
}

/// Encodes one record: the CPU, the address of the instruction, and the content.
#[must_use]
pub fn encode(cpu: u16, pc: u64, seen: &Seen) -> [u64; WORDS] {
    let (kind, [a, b, c]) = match seen {
        Seen::Event(event) => {
            let [first, a, b, c] = EncodedEvent::new(cpu, *event).0;
            return [first, a, b, c, pc];
        }
        Seen::Exception => (EXCEPTION, [0; 3]),
        Seen::End(Totals {
            stores,
            barriers,
            table_bytes,
        }) => (END, [*stores, *barriers, *table_bytes]),
    };
    [u64::from(kind) | u64::from(cpu) << 16, a, b, c, pc]
}

/// Decodes one record: the CPU, the address of the instruction, and the content.
///
/// # Errors
///
/// If the words are not a record.
pub fn decode(words: [u64; WORDS]) -> Result<(u16, u64, Seen), RecordError> {
    let [first, a, b, c, pc] = words;
    let seen = match first as u8 {
        EXCEPTION => Seen::Exception,
        END => Seen::End(Totals {
            stores: a,
            barriers: b,
            table_bytes: c,
        }),
        _ => {
            let (cpu, event) = EncodedEvent([first, a, b, c]).event()?;
            return Ok((cpu, pc, Seen::Event(event)));
        }
    };
    Ok(((first >> 16) as u16, pc, seen))
}

/// The reason why a stream cannot be read.
#[derive(Debug)]
pub enum StreamError {
    /// The bytes could not be read.
    Read(io::Error),
    /// The first record is not a head, or is of another version.
    Head,
    /// A record is malformed.
    Record(RecordError),
}

impl std::fmt::Display for StreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(error) => write!(f, "the plugin's stream: {error}"),
            Self::Head => write!(
                f,
                "the plugin's stream is of another version; build granule and granule-plugin \
                 together"
            ),
            Self::Record(error) => write!(f, "the plugin's stream: {error}"),
        }
    }
}

impl std::error::Error for StreamError {}

/// Reads a stream.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
}

impl<R: Read> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn new(from: R) -> Result<(Self, Head), StreamError> {
        let mut reader = Self { from };
        match reader.words()? {
            Some([MAGIC, VERSION, api, cpus, _]) => {
                let api = api as u32;
                let cpus = cpus as u16;
                Ok((reader, Head { api, cpus }))
            }
            _ => Err(StreamError::Head),
        }
    }

    /// Reads the next record, or returns `None` at the end of the stream, with or without a
    /// [`Seen::End`].
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is malformed.
    pub fn next_seen(&mut self) -> Result<Option<(u16, u64, Seen)>, StreamError> {
        let Some(words) = self.words()? else {
            return Ok(None);
        };
        decode(words).map(Some).map_err(StreamError::Record)
    }

    fn words(&mut self) -> Result<Option<[u64; WORDS]>, StreamError> {
        let mut bytes = [0; BYTES];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => (),
            // A QEMU that was killed may leave half a record.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(StreamError::Read(error)),
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Some(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_trace::{Barrier, System};

    #[test]
    fn an_encoded_record_decodes_to_itself() {
        let all = [
            Seen::Event(Event::Barrier(Barrier::DSB_ISH)),
            Seen::Event(Event::System(System::TTBR0_EL1, u64::MAX)),
            Seen::Exception,
            Seen::End(Totals {
                stores: 1,
                barriers: 2,
                table_bytes: 3,
            }),
        ];
        let head = Head { api: 7, cpus: 4 };
        let mut bytes: Vec<u8> = Vec::new();
        let records = all.iter().map(|seen| encode(3, u64::MAX - 3, seen));
        for words in std::iter::once(head.words()).chain(records) {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let whole = bytes.len();
        // Half a record at the end is ignored.
        bytes.push(1);
        let (mut reader, read) = Reader::new(&bytes[..]).unwrap();
        assert_eq!(read, head);
        for seen in all {
            let expected = Some((3, u64::MAX - 3, seen));
            assert_eq!(reader.next_seen().unwrap(), expected);
        }
        assert_eq!(reader.next_seen().unwrap(), None);
        assert!(Reader::new(&bytes[1..]).is_err());
        assert!(Reader::new(&bytes[..39]).is_err());
        let (mut reader, _) = Reader::new(&bytes[..whole]).unwrap();
        while reader.next_seen().unwrap().is_some() {}
    }

    #[test]
    fn bytes_that_are_not_a_record_are_refused() {
        assert!(decode([0x7f, 0, 0, 0, 0]).is_err());
    }
}
