//! The core of the dead kernel as a file, by the header that it prepared: all notes of CPUs and kernel in one segment,
//! then the RAM, each segment from a multiple of [`ALIGNMENT`] on.
//!
//! The header lies in memory that a kernel which went wrong could reach, so it is not trusted: whatever it contains, the
//! reading ends with pieces of a bounded file, or with an error.

use super::{FILE_HEADER, FileHeader, LOAD, NOTE, NOTE_HEADER, NoteHeader, SEGMENT_HEADER};
use super::{SegmentHeader, put};
use granule::arch::PageSize;
use granule_kexec::PhysRange;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// The alignment of RAM in the file: the largest page, so that every reader can map it.
pub const ALIGNMENT: u64 = PageSize::MAX.bytes();

/// The most segments of a header.
pub const MOST_SEGMENTS: usize = 4096;

/// The most bits of a physical address.
const ADDRESS_BITS: u32 = 52;

/// A part of the file: bytes of the memory at a physical address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePiece {
    /// The offset in the file.
    pub at: u64,
    /// The memory.
    pub memory: PhysRange,
}

/// Why there is no core.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum CoreError {
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("it is not the ELF header of an arm64 core")]
    NotACore,
    #[error("it has {0} segments: expected 1 to {MOST_SEGMENTS}, and bytes for all of them")]
    Segments(usize),
    #[error("its segment {0} ends beyond {ADDRESS_BITS} bits of address")]
    Segment(usize),
    /// The storage is smaller than the caller was to provide.
    #[error("there is no memory for a copy of it")]
    NoRoom,
}

/// Reads bytes at a physical address; returns whether they can be read.
pub trait ReadMemory: FnMut(u64, &mut [u8]) -> bool {}

impl<R: FnMut(u64, &mut [u8]) -> bool> ReadMemory for R {}

/// The number of segments of the header in `range`. Fails if there is no such header.
pub fn segments(range: &PhysRange, mut read: impl ReadMemory) -> Result<usize, CoreError> {
    let mut bytes = [0; FILE_HEADER];
    if range.bytes < FILE_HEADER as u64 || !read(range.start, &mut bytes) {
        return Err(CoreError::Unreadable);
    }
    let header = FileHeader::read_from_bytes(&bytes).map_err(|_| CoreError::NotACore)?;
    let expected = FileHeader {
        entry: header.entry,
        sections_at: header.sections_at,
        flags: header.flags,
        section_bytes: header.section_bytes,
        sections: header.sections,
        names: header.names,
        ..FileHeader::core(header.segments)
    };
    // The OS and its version, behind the version of ELF, may be any.
    if expected.as_bytes().get(16..) != bytes.get(16..) || !bytes.starts_with(&expected.ident[..7])
    {
        return Err(CoreError::NotACore);
    }
    let count = usize::from(header.segments);
    let room = (range.bytes - FILE_HEADER as u64) / SEGMENT_HEADER as u64;
    if count == 0 || count > MOST_SEGMENTS || count as u64 > room {
        return Err(CoreError::Segments(count));
    }
    Ok(count)
}

/// The bytes of the file's own headers for a header with so many segments, at most.
#[must_use]
pub const fn header_bytes(segments: usize) -> usize {
    FILE_HEADER + (segments + 1) * SEGMENT_HEADER
}

/// A core as a file.
#[derive(Debug)]
pub struct CoreFile<H, P> {
    headers: H,
    pieces: P,
    used: usize,
    bytes: u64,
}

impl<H: AsRef<[u8]> + AsMut<[u8]>, P: AsRef<[FilePiece]> + AsMut<[FilePiece]>> CoreFile<H, P> {
    /// Reads the header in `range`. `headers` has room for [`header_bytes`], `pieces` for as many as the header has
    /// [`segments`]. Fails if there is no such header, or it is damaged.
    pub fn new(
        range: &PhysRange,
        mut headers: H,
        mut pieces: P,
        mut read: impl ReadMemory,
    ) -> Result<Self, CoreError> {
        let count = segments(range, &mut read)?;
        let mut segment = |number: usize| {
            let mut bytes = [0; SEGMENT_HEADER];
            let at = range.start + (FILE_HEADER + number * SEGMENT_HEADER) as u64;
            if !read(at, &mut bytes) {
                return Err(CoreError::Unreadable);
            }
            let header = SegmentHeader::read_from_bytes(&bytes).map_err(|_| CoreError::NotACore)?;
            let memory = PhysRange::new(header.offset, header.memory_bytes);
            let end = memory.end().filter(|end| end >> ADDRESS_BITS == 0);
            end.ok_or(CoreError::Segment(number))?;
            let bytes = match header.kind {
                NOTE => notes(&memory, &mut read),
                LOAD => memory.bytes,
                _ => 0,
            };
            Ok((header, PhysRange::new(memory.start, bytes)))
        };
        let mut used = 0;
        let mut push = |at: u64, memory: PhysRange| {
            let slot = pieces.as_mut().get_mut(used).ok_or(CoreError::NoRoom)?;
            *slot = FilePiece { at, memory };
            used += 1;
            at.checked_add(memory.bytes).ok_or(CoreError::NoRoom)
        };
        let (mut loads, mut first) = (0, 0);
        for number in 0..count {
            loads += usize::from(segment(number)?.0.kind == LOAD);
        }
        let start = header_bytes(loads) as u64;
        let mut at = start;
        for number in 0..count {
            let (header, memory) = segment(number)?;
            if header.kind == NOTE && memory.bytes > 0 {
                at = push(at, memory)?;
            }
            first = at;
        }
        let note = SegmentHeader {
            kind: NOTE,
            align: 4,
            offset: start,
            file_bytes: first - start,
            memory_bytes: first - start,
            ..SegmentHeader::default()
        };
        let file = FileHeader::core(loads as u16 + 1);
        let mut write =
            |header: &[u8], to| put(headers.as_mut(), to, header).ok_or(CoreError::NoRoom);
        let mut to = write(file.as_bytes(), 0)?;
        to = write(note.as_bytes(), to)?;
        for number in 0..count {
            let (header, memory) = segment(number)?;
            if header.kind != LOAD {
                continue;
            }
            let offset = at
                .checked_next_multiple_of(ALIGNMENT)
                .ok_or(CoreError::Segment(number))?;
            at = push(offset, memory).map_err(|_| CoreError::Segment(number))?;
            let load = SegmentHeader {
                offset,
                file_bytes: memory.bytes,
                ..header
            };
            to = write(load.as_bytes(), to)?;
        }
        Ok(Self {
            headers,
            pieces,
            used,
            bytes: at,
        })
    }

    /// Bytes of the file.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a part of the file that begins at `at`. Returns whether all of its memory could be read; what could not
    /// is zero, as is what lies between the pieces.
    pub fn read(&self, at: u64, into: &mut [u8], mut read: impl ReadMemory) -> bool {
        into.fill(0);
        let pieces = self.pieces.as_ref().get(..self.used).unwrap_or_default();
        let headers = self.headers.as_ref();
        let mut is_whole = true;
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(part) = headers.get(from..) {
            let bytes = part.len().min(into.len());
            put(into, 0, part.get(..bytes).unwrap_or_default());
        }
        // Ascending, so those before the first that matters need not be looked at.
        let first = pieces.partition_point(|piece| piece.at + piece.memory.bytes <= at);
        for piece in pieces.get(first..).unwrap_or_default() {
            let start = piece.at.max(at);
            let end = (piece.at + piece.memory.bytes).min(at.saturating_add(into.len() as u64));
            if start >= end {
                break;
            }
            let part = (start - at) as usize..(end - at) as usize;
            let part = into.get_mut(part).unwrap_or_default();
            is_whole &= read(piece.memory.start + (start - piece.at), part);
        }
        is_whole
    }
}

/// Bytes of the notes in a segment, before the one without a name that ends them.
fn notes(memory: &PhysRange, mut read: impl ReadMemory) -> u64 {
    let mut at = 0;
    let mut bytes = [0; NOTE_HEADER];
    while memory.bytes - at >= NOTE_HEADER as u64 && read(memory.start + at, &mut bytes) {
        let Ok(note) = NoteHeader::read_from_bytes(&bytes) else {
            break;
        };
        let aligned = |bytes: u32| u64::from(bytes).next_multiple_of(4);
        let whole = NOTE_HEADER as u64 + aligned(note.name_bytes) + aligned(note.bytes);
        if note.name_bytes == 0 || whole > memory.bytes - at {
            break;
        }
        at += whole;
    }
    at
}
