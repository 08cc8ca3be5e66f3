//! Reads the list again and compares its digest with the sealed one.
//!
//! The memory may hold anything by now, so the reader follows only the form that
//! [`RelocationList`](super::RelocationList) writes.

use super::digest::Digest;
use super::header::ListHeader;
use super::layout::{CLEAN, COPY, END, LINK, RECORD_BYTES, UNIT};
use super::memory::ListMemory;
use super::plan::ListRecord;
use core::fmt;
use granule::arch::PhysicalAddress;

/// Why a list is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListError {
    /// The header is missing.
    NoList {
        /// The address where it was expected.
        address: u64,
    },
    /// A link or record leads outside memory, or has a form that
    /// [`RelocationList`](super::RelocationList) never writes.
    Lost {
        /// The address in question.
        address: u64,
    },
    /// The digest does not match.
    Digest {
        /// The digest in the header.
        expected: u64,
        /// The digest of the list as read.
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

pub(super) fn load_record(memory: &impl ListMemory, at: u64) -> Result<ListRecord, ListError> {
    Ok(ListRecord {
        destination: load(memory, at, 0)?,
        source: load(memory, at, 8)?,
        bytes: load(memory, at, 16)?,
        kind: load(memory, at, 24)?,
    })
}

fn load_header(memory: &impl ListMemory, at: u64) -> Result<ListHeader, ListError> {
    let mut words = [0; ListHeader::WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        *word = load(memory, at, 8 * index as u64)?;
    }
    Ok(ListHeader::of(words))
}

/// The digest of a header and of its records; each record is passed to `each`.
pub(super) fn digest(
    memory: &impl ListMemory,
    header: &ListHeader,
    mut each: impl FnMut(&ListRecord),
) -> Result<u64, ListError> {
    let mut digest = Digest::new();
    let words = ListHeader {
        digest: 0,
        ..*header
    }
    .words();
    words.into_iter().for_each(|word| digest.word(word));
    let mut at = header.first;
    let mut left = header.records;
    // A page has room for more than one record, so `RelocationList` never writes two links in a
    // row.
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

/// Reads the whole list whose first page is at `head` and returns its header if nothing has changed
/// since it was sealed. Each record is passed to `each` before the digest is compared.
///
/// # Errors
///
/// [`ListError`]; no part of the list may be followed then.
pub fn verify(
    memory: &impl ListMemory,
    head: PhysicalAddress,
    each: impl FnMut(&ListRecord),
) -> Result<ListHeader, ListError> {
    let header = load_header(memory, head.0)?;
    if header.magic != ListHeader::MAGIC {
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
