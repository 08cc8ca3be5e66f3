//! The flattened form of a kdump file, for a stream that cannot go back: pieces with the offsets
//! that they have in the real file. QEMU writes this form by default.
//!
//! A stream has a piece for a few pages. So what is kept is where groups of pieces are, and the pieces of a group
//! are found again when they are needed.

use super::damaged;
use crate::source::bytes::{Extents, ReadAt, cut_off};
use crate::source::cache::Cache;
use crate::source::memory::OpenError;
use rangemap::RangeMap;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// The beginning of the file, which has a header of 4096 bytes.
pub(super) const SIGNATURE: &[u8] = b"makedumpfile";
const HEADER: u64 = 4096;
/// The pieces that are found together.
const GROUP: u32 = 1024;
/// About the bytes that a group takes while it is kept.
const GROUP_BYTES: usize = 64 * GROUP as usize;
/// The most ranges of the real file whose pieces are in different groups. A group of what QEMU writes has two or
/// three, and 16 MiB of memory.
const MOST_RANGES: usize = 1 << 21;

/// The real file.
#[derive(Debug)]
pub(super) struct Flattened<R> {
    stream: R,
    /// Of each offset the place in the stream of the group whose piece has it.
    groups: RangeMap<u64, u64>,
    kept: RefCell<Cache<Extents>>,
    cut_off: Option<String>,
}

/// The end of a group.
enum Next {
    Group(u64),
    End,
    /// The stream ends before the mark of its end, this many bytes of a piece missing.
    CutOff(u64),
}

/// The pieces of the group at `at`. A later piece replaces what it covers.
fn group(stream: &impl ReadAt, mut at: u64) -> (Extents, Next) {
    let mut pieces = Extents::default();
    for _ in 0..GROUP {
        // Big-endian, whatever the machine: an offset and a number of bytes; both -1 at the end.
        let Ok(head) = stream.take(at, 16, 16) else {
            return (pieces, Next::CutOff(0));
        };
        let number = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |it| u64::from_be_bytes(*it));
        let offset = number(head.first_chunk());
        let bytes = number(head.last_chunk());
        if offset == u64::MAX {
            return (pieces, Next::End);
        }
        at += 16;
        let there = stream.bytes().saturating_sub(at);
        pieces.insert(offset, bytes.min(there), at);
        match at.checked_add(bytes) {
            Some(next) if bytes <= there => at = next,
            _ => return (pieces, Next::CutOff(bytes - there)),
        }
    }
    (pieces, Next::Group(at))
}

impl<R: ReadAt> Flattened<R> {
    /// Finds all pieces. A stream that ends early is what was written of it.
    pub(super) fn new(stream: R) -> Result<Self, OpenError> {
        let (mut groups, mut kept) = (RangeMap::new(), Cache::default());
        let mut at = HEADER;
        let missing = loop {
            let (pieces, next) = group(&stream, at);
            for range in pieces.ranges(u64::MAX) {
                groups.insert(range, at);
            }
            if groups.len() > MOST_RANGES {
                return Err(OpenError(format!(
                    "this flattened dump is in more than {MOST_RANGES} ranges, which are the most that are kept: \
                     join it with makedumpfile -R"
                )));
            }
            kept.put_sized(at, &Rc::new(pieces), GROUP_BYTES);
            match next {
                Next::Group(next) => at = next,
                Next::End => break None,
                Next::CutOff(bytes) => break Some(bytes),
            }
        };
        let cut_off = missing.map(|missing| match missing {
            0 => "the flattened dump is cut off: it has no mark of its end".to_owned(),
            missing => {
                format!("the flattened dump is cut off: {missing} bytes of its last piece are missing, or more")
            }
        });
        if groups.is_empty() {
            return Err(cut_off.map_or_else(
                || damaged("it is flattened and has no piece"),
                |cut_off| OpenError(format!("{cut_off}, and no piece")),
            ));
        }
        Ok(Self {
            stream,
            groups,
            kept: RefCell::new(kept),
            cut_off,
        })
    }

    /// A line about what the stream lacks, if it ends early.
    pub(super) fn cut_off(&self) -> Option<String> {
        self.cut_off.clone()
    }

    fn group(&self, at: u64) -> Rc<Extents> {
        if let Some(pieces) = self.kept.borrow().get(at) {
            return pieces;
        }
        let pieces = Rc::new(group(&self.stream, at).0);
        self.kept.borrow_mut().put_sized(at, &pieces, GROUP_BYTES);
        pieces
    }
}

impl<R: ReadAt> ReadAt for Flattened<R> {
    fn bytes(&self) -> u64 {
        self.groups
            .last_range_value()
            .map_or(0, |(last, _)| last.end)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (range, group) = self.groups.get_key_value(&at).ok_or_else(cut_off)?;
            let (place, there) = self.group(*group).find(at).ok_or_else(cut_off)?;
            // A later group may have replaced the end of the piece.
            let there = there.min(range.end - at);
            let now = rest.len().min(usize::try_from(there).unwrap_or(usize::MAX));
            let (part, others) = rest.split_at_mut(now);
            self.stream.read_at(place, part)?;
            at += now as u64;
            rest = others;
        }
        Ok(())
    }
}
