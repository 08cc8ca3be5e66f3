//! The flattened form of a kdump file, for a stream that cannot go back: pieces with the offsets
//! that they have in the real file. QEMU writes this form by default.

use super::damaged;
use crate::source::bytes::{Extents, ReadAt, cut_off};
use crate::source::memory::OpenError;
use std::io;

/// The beginning of the file, which has a header of 4096 bytes.
pub(super) const SIGNATURE: &[u8] = b"makedumpfile";
const HEADER: u64 = 4096;
/// The most pieces: each needs a place in memory. 16 TiB have fewer.
const MOST_PIECES: u32 = 1 << 24;

/// The real file.
#[derive(Debug)]
pub(super) struct Flattened<R> {
    stream: R,
    pieces: Extents,
}

impl<R: ReadAt> Flattened<R> {
    /// Finds all pieces. A stream that ends early is what was written of it.
    pub(super) fn new(stream: R) -> Result<Self, OpenError> {
        let mut pieces = Extents::default();
        let mut at = HEADER;
        for _ in 0..MOST_PIECES {
            // Big-endian, whatever the machine: an offset and a number of bytes; both -1 at the end.
            let Ok(head) = stream.take(at, 16, 16) else {
                break;
            };
            let number = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |it| u64::from_be_bytes(*it));
            let offset = number(head.first_chunk());
            let bytes = number(head.last_chunk());
            if offset == u64::MAX {
                break;
            }
            at += 16;
            let there = stream.bytes().saturating_sub(at);
            pieces.insert(offset, bytes.min(there), at);
            match at.checked_add(bytes) {
                Some(next) if bytes <= there => at = next,
                _ => break,
            }
        }
        if pieces.end() == 0 {
            return Err(damaged("it is flattened and has no piece"));
        }
        Ok(Self { stream, pieces })
    }
}

impl<R: ReadAt> ReadAt for Flattened<R> {
    fn bytes(&self) -> u64 {
        self.pieces.end()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (place, there) = self.pieces.find(at).ok_or_else(cut_off)?;
            let now = rest.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            let (part, others) = rest.split_at_mut(now);
            self.stream.read_at(place, part)?;
            at += now as u64;
            rest = others;
        }
        Ok(())
    }
}
