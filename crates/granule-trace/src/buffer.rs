//! The head of a buffer of records: the size of the recording, and whether it is complete.
//!
//! Eight words, little endian, right before the first record:
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0, 1 | | `GRANULE-TRACE`, padded with NULs to 16 bytes |
//! | 2 | 31:0 | version, 2 |
//! | 2 | 63:32 | 1 once the kernel finished its run |
//! | 3 | 31:0 | page size in bytes |
//! | 3 | 47:32 | number of CPUs |
//! | 3 | 55:48 | BBM level that the CPUs have |
//! | 4 | | records in the buffer |
//! | 5 | | events that found no room after them |
//! | 6 | | capacity in records |
//! | 7 | | 0 |

use core::fmt;

const MAGIC: [u64; 2] = [
    u64::from_le_bytes(*b"GRANULE-"),
    u64::from_le_bytes(*b"TRACE\0\0\0"),
];
const VERSION: u32 = 2;

/// The decoded head of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferHeader {
    /// The page size in bytes.
    pub page_bytes: u32,
    /// The number of CPUs whose events are recorded.
    pub cpus: u16,
    /// The BBM level that the CPUs have.
    pub bbm_level: u8,
    /// Whether the kernel finished its run.
    pub complete: bool,
    /// The number of records in the buffer.
    pub records: u64,
    /// The number of events that found no room; 0 means that no event is missing.
    pub lost: u64,
    /// The capacity in records.
    pub room: u64,
}

/// Why words are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The magic is missing.
    Magic,
    /// The version is unknown.
    Version(u32),
    /// The number of records exceeds the capacity.
    Overfull,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("no trace was begun in the buffer"),
            Self::Version(version) => {
                write!(
                    f,
                    "the trace buffer has version {version}, expected {VERSION}"
                )
            }
            Self::Overfull => {
                f.write_str("the trace buffer's head states more records than it can hold")
            }
        }
    }
}

impl core::error::Error for HeaderError {}

impl BufferHeader {
    /// The size of the head in 64-bit words.
    pub const WORDS: usize = 8;
    /// The index of the word with the number of records.
    pub const RECORDS: usize = 4;
    /// The index of the word with the number of events that found no room.
    pub const LOST: usize = 5;
    /// The index of the word with the capacity in records.
    pub const ROOM: usize = 6;
    /// The index of the word that records whether the kernel finished its run.
    pub const STATE: usize = 2;
    /// The index of the word with the page size, the number of CPUs and their BBM level.
    pub const SHAPE: usize = 3;

    /// The number of records that fit a buffer of `bytes` bytes.
    #[must_use]
    pub const fn room_in(bytes: u64) -> u64 {
        bytes.saturating_sub(8 * Self::WORDS as u64)
            / (8 * super::encoded_event::RECORD_WORDS as u64)
    }

    /// The word at [`STATE`](Self::STATE).
    #[must_use]
    pub const fn state(complete: bool) -> u64 {
        VERSION as u64 | (complete as u64) << 32
    }

    /// Encodes the head.
    #[must_use]
    pub const fn words(&self) -> [u64; Self::WORDS] {
        let [magic0, magic1] = MAGIC;
        let shape =
            self.page_bytes as u64 | (self.cpus as u64) << 32 | (self.bbm_level as u64) << 48;
        [
            magic0,
            magic1,
            Self::state(self.complete),
            shape,
            self.records,
            self.lost,
            self.room,
            0,
        ]
    }

    /// Decodes a head.
    ///
    /// # Errors
    ///
    /// When the words are not a header.
    pub const fn new(words: [u64; Self::WORDS]) -> Result<Self, HeaderError> {
        let [magic0, magic1, state, shape, records, lost, room, _] = words;
        let [right0, right1] = MAGIC;
        if magic0 != right0 || magic1 != right1 {
            return Err(HeaderError::Magic);
        }
        if state as u32 != VERSION {
            return Err(HeaderError::Version(state as u32));
        }
        if records > room {
            return Err(HeaderError::Overfull);
        }
        Ok(Self {
            page_bytes: shape as u32,
            cpus: (shape >> 32) as u16,
            bbm_level: (shape >> 48) as u8,
            complete: state >> 32 & 1 != 0,
            records,
            lost,
            room,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: BufferHeader = BufferHeader {
        page_bytes: 65536,
        cpus: 3,
        bbm_level: 2,
        complete: true,
        records: 10,
        lost: 1,
        room: 10,
    };

    #[test]
    fn a_header_comes_back() {
        assert_eq!(BufferHeader::new(HEADER.words()), Ok(HEADER));
        let begun = BufferHeader {
            complete: false,
            lost: 0,
            ..HEADER
        };
        assert_eq!(BufferHeader::new(begun.words()), Ok(begun));
    }

    #[test]
    fn other_memory_is_refused() {
        assert_eq!(BufferHeader::new([0; 8]), Err(HeaderError::Magic));
        let mut words = HEADER.words();
        words[BufferHeader::STATE] = 1;
        assert_eq!(BufferHeader::new(words), Err(HeaderError::Version(1)));
        let mut words = HEADER.words();
        words[BufferHeader::RECORDS] = 11;
        assert_eq!(BufferHeader::new(words), Err(HeaderError::Overfull));
    }

    #[test]
    fn room_is_for_whole_records() {
        assert_eq!(BufferHeader::room_in(0), 0);
        assert_eq!(BufferHeader::room_in(64 + 31), 0);
        assert_eq!(BufferHeader::room_in(64 + 96), 3);
    }
}
