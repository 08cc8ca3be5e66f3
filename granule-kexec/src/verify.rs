//! The list read again: its words, its digest, and whether it is as it was sealed.
//!
//! Whatever is in memory by then may be read here: nothing is followed that is not the form that
//! [`List`](super::List) writes.

use super::digest::Digest;
use super::header::{Header, ListMemory};
use super::layout::{CLEAN, COPY, END, LINK, RECORD_BYTES, UNIT};
use super::plan::Record;
use core::fmt;
use granule::arch::PhysicalAddress;

/// Why a list is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListError {
    /// There is no header.
    NoList {
        /// Where one was expected.
        address: u64,
    },
    /// It leads to where there is no memory, or nowhere.
    Lost {
        /// Where to.
        address: u64,
    },
    /// Its digest is another one.
    Digest {
        /// What its header says.
        expected: u64,
        /// What it has.
        found: u64,
    },
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoList { address } => write!(
                f,
                "the list of what is to be relocated is not at {address:#x}: load the next kernel again"
            ),
            Self::Lost { address } => write!(
                f,
                "the list of what is to be relocated was written over, and leads to {address:#x}: load \
                 the next kernel again"
            ),
            Self::Digest { expected, found } => write!(
                f,
                "the list of what is to be relocated was written over, its digest is {found:#018x}, \
                 expected {expected:#018x}: load the next kernel again"
            ),
        }
    }
}

impl core::error::Error for ListError {}

fn load(memory: &impl ListMemory, base: u64, offset: u64) -> Result<u64, ListError> {
    let lost = ListError::Lost { address: base };
    let address = base.checked_add(offset).filter(|it| it % 8 == 0);
    memory.load(address.ok_or(lost)?).ok_or(lost)
}

pub(super) fn load_record(memory: &impl ListMemory, at: u64) -> Result<Record, ListError> {
    Ok(Record {
        destination: load(memory, at, 0)?,
        source: load(memory, at, 8)?,
        bytes: load(memory, at, 16)?,
        kind: load(memory, at, 24)?,
    })
}

fn load_header(memory: &impl ListMemory, at: u64) -> Result<Header, ListError> {
    let mut words = [0; Header::WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        *word = load(memory, at, 8 * index as u64)?;
    }
    Ok(Header::of(words))
}

/// The digest of a header and what it leads to, whose records go to `each`.
pub(super) fn digest(
    memory: &impl ListMemory,
    header: &Header,
    mut each: impl FnMut(&Record),
) -> Result<u64, ListError> {
    let mut digest = Digest::new();
    let words = Header {
        digest: 0,
        ..*header
    }
    .words();
    words.into_iter().for_each(|word| digest.word(word));
    let mut at = header.first;
    let mut left = header.records;
    // A page has room for more than one record: two links in a row are none of ours.
    let mut linked = false;
    loop {
        let record = load_record(memory, at)?;
        for word in [record.destination, record.source, record.bytes, record.kind] {
            digest.word(word);
        }
        match record.kind {
            END if left == 0 => return Ok(digest.value()),
            LINK if !linked => {
                linked = true;
                at = record.destination;
            }
            kind if left > 0 && kind & (COPY | CLEAN) != 0 && kind & !(COPY | CLEAN) == 0 => {
                let ends =
                    [record.destination, record.source].map(|it| it.checked_add(record.bytes));
                let whole = record.bytes != 0 && record.bytes.is_multiple_of(UNIT);
                if !whole || ends.contains(&None) {
                    return Err(ListError::Lost { address: at });
                }
                linked = false;
                left -= 1;
                at = at.saturating_add(RECORD_BYTES);
                each(&record);
            }
            _ => return Err(ListError::Lost { address: at }),
        }
    }
}

/// Looks at the list whose first page is at `head`, all of it, and gives its header if it is as it
/// was sealed. Its records go to `each`, before it is known whether they are right.
///
/// # Errors
///
/// [`ListError`]: nothing of it may be followed then.
pub fn verify(
    memory: &impl ListMemory,
    head: PhysicalAddress,
    each: impl FnMut(&Record),
) -> Result<Header, ListError> {
    let header = load_header(memory, head.0)?;
    if header.magic != Header::MAGIC {
        return Err(ListError::NoList { address: head.0 });
    }
    let found = digest(memory, &header, each)?;
    if found != header.digest {
        return Err(ListError::Digest {
            expected: header.digest,
            found,
        });
    }
    Ok(header)
}
