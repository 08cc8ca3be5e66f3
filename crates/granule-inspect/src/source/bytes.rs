//! Bytes at offsets of a file, and a map from addresses to offsets. No file format is read here.
//!
//! A file is read where it is needed and never as a whole, so its size does not matter. It may be
//! cut off, or shrink while it is read: that is an error like any other.

use super::memory::{Memory, ReadError};
use granule::arch::PhysicalAddress;
use rangemap::RangeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

pub trait ReadAt {
    fn bytes(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset` on.
    /// Fails if there are fewer bytes, or the file cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The first offset from `offset` on that may hold anything but zeros: a file of holes is not read through.
    fn data_from(&self, offset: u64) -> u64 {
        offset
    }

    /// The `bytes` bytes from `offset` on.
    /// Fails if there are fewer bytes, or more than `most` are requested, or the file cannot be read.
    fn take(&self, offset: u64, bytes: u64, most: u64) -> io::Result<Vec<u8>> {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes());
        if !fits {
            return Err(cut_off());
        }
        if bytes > most {
            // A limit of ours is not a fault of the file.
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it has {bytes} bytes, and at most {most} are read"),
            ));
        }
        let mut buffer = vec![0; usize::try_from(bytes).map_err(|_| cut_off())?];
        self.read_at(offset, &mut buffer)?;
        Ok(buffer)
    }
}

/// The error of bytes that are not there.
pub(super) fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before that")
}

/// A file with the size that it had when it was opened.
#[derive(Debug)]
pub struct DumpFile {
    file: File,
    bytes: u64,
}

impl DumpFile {
    /// The bytes of `file`.
    /// Fails if its size cannot be had.
    pub fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes })
    }
}

impl ReadAt for DumpFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => cut_off(),
            _ => error,
        })
    }

    fn data_from(&self, offset: u64) -> u64 {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data.max(offset),
            Err(rustix::io::Errno::NXIO) => self.bytes.max(offset),
            // A file system that does not record holes.
            Err(_) => offset,
        }
    }
}

impl ReadAt for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| cut_off())?;
        let bytes = start
            .checked_add(buffer.len())
            .and_then(|end| self.get(start..end))
            .ok_or_else(cut_off)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// The offsets of addresses: of each range its first offset less its first address, wrapping. A later range
/// replaces what it covers.
#[derive(Debug, Default)]
pub(super) struct Extents(RangeMap<u64, u64>);

impl Extents {
    /// Adds `bytes` bytes from `start` on, whose first is at `offset`; what lies beyond the last
    /// address or offset is left out.
    pub(super) fn insert(&mut self, start: u64, bytes: u64, offset: u64) {
        let bytes = bytes.min(u64::MAX - start).min(u64::MAX - offset);
        if bytes != 0 {
            let distance = offset.wrapping_sub(start);
            self.0.insert(start..start + bytes, distance);
        }
    }

    /// The offset of `address`, and how many bytes follow it there.
    pub(super) fn find(&self, address: u64) -> Option<(u64, u64)> {
        let (range, distance) = self.0.get_key_value(&address)?;
        Some((address.wrapping_add(*distance), range.end - address))
    }

    /// The addresses whose offsets are below `bytes`, with adjacent ranges as one.
    pub(super) fn ranges(&self, bytes: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (&Range { start, end }, distance) in self.0.iter() {
            let there = bytes.saturating_sub(start.wrapping_add(*distance));
            let end = end.min(start.saturating_add(there));
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if start < end => ranges.push(start..end),
                _ => {}
            }
        }
        ranges
    }
}

/// Physical memory that lies in a file as it is.
#[derive(Debug)]
pub(super) struct Plain<R> {
    pub(super) bytes: R,
    pub(super) extents: Extents,
    /// The memory that the machine has and the file does not; the offsets mean nothing.
    pub(super) left_out: Extents,
}

impl<R> Plain<R> {
    /// Why nothing is found at `address`.
    fn missing(&self, address: u64) -> ReadError {
        match self.left_out.find(address) {
            Some(_) => ReadError::LeftOut(PhysicalAddress(address)),
            None => ReadError::Absent(PhysicalAddress(address)),
        }
    }
}

impl<R: ReadAt> Memory for Plain<R> {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        let (mut at, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let (offset, there) = self.extents.find(at).ok_or_else(|| self.missing(at))?;
            let now = rest.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            let (part, others) = rest.split_at_mut(now);
            self.bytes
                .read_at(offset, part)
                .map_err(|error| ReadError::Damaged {
                    address: PhysicalAddress(at),
                    why: error.to_string(),
                })?;
            at += now as u64;
            rest = others;
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.extents.ranges(self.bytes.bytes())
    }
}

/// The little-endian words of a dump's structures.
pub(super) trait Words {
    fn u32_at(&self, offset: usize) -> u32;
    fn u64_at(&self, offset: usize) -> u64;
}

/// Bytes beyond the end are zero.
impl Words for [u8] {
    fn u32_at(&self, offset: usize) -> u32 {
        self.get(offset..)
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn u64_at(&self, offset: usize) -> u64 {
        self.get(offset..)
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_address_space_do_not_overflow() {
        let mut extents = Extents::default();
        extents.insert(u64::MAX - 10, u64::MAX, 5);
        extents.insert(0, u64::MAX, u64::MAX - 3);
        assert_eq!(extents.find(2), Some((u64::MAX - 1, 1)));
        assert_eq!(extents.find(3), None);
        assert_eq!(extents.find(u64::MAX), None);
    }

    #[test]
    fn a_read_may_cross_ranges_but_no_hole() {
        let mut extents = Extents::default();
        extents.insert(0xfff, 9, 0);
        // Later ranges replace what they cover.
        extents.insert(0x1000, 4, 4);
        extents.insert(0x1004, 4, 0);
        let memory = Plain {
            bytes: b"efghabcd".to_vec(),
            extents,
            left_out: Extents::default(),
        };
        let mut buffer = [0; 8];
        memory.read(PhysicalAddress(0x1000), &mut buffer).unwrap();
        assert_eq!(&buffer, b"abcdefgh");
        let error = memory
            .read(PhysicalAddress(0x1001), &mut buffer)
            .unwrap_err();
        assert_eq!(error.to_string(), "no memory at 0x1008");
    }
}
