//! Reads the list again and compares its digest with the sealed one.
//!
//! The memory may hold anything by now, so the reader follows only the form that
//! [`RelocationList`](super::RelocationList) writes.

use super::digest::Digest;
use super::header::ListHeader;
use super::layout::{CLEAN, COPY, END, LINK, RECORD_BYTES, UNIT};
use super::memory::ListMemory;
use super::plan::ListRecord;
use granule::arch::PhysicalAddress;
use thiserror::Error;

/// Why a list is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ListError {
    /// The header is missing.
    #[error(
        "the list of what is to be relocated is not at {address:#x}: load the next kernel again"
    )]
    NoList { address: u64 },
    /// A link or record leads outside memory, or has a form that
    /// [`RelocationList`](super::RelocationList) never writes.
    #[error(
        "the list of what is to be relocated was written over, and leads to {address:#x}: load \
         the next kernel again"
    )]
    Lost { address: u64 },
    /// The digest does not match.
    #[error(
        "the list of what is to be relocated was written over, its digest is {found:#018x}, \
         expected {expected:#018x}: load the next kernel again"
    )]
    Digest { expected: u64, found: u64 },
}

fn load(memory: &impl ListMemory, base: u64, offset: u64) -> Result<u64, ListError> {
    let lost = ListError::Lost { address: base };
    let address = base.checked_add(offset).filter(|it| it % 8 == 0);
    memory.load(address.ok_or(lost)?).ok_or(lost)
}

/// Loads the words of a structure at an address.
fn load_words<const COUNT: usize>(
    memory: &impl ListMemory,
    at: u64,
) -> Result<[u64; COUNT], ListError> {
    let mut words = [0; COUNT];
    for (index, word) in words.iter_mut().enumerate() {
        *word = load(memory, at, 8 * index as u64)?;
    }
    Ok(words)
}

pub(super) fn load_record(memory: &impl ListMemory, at: u64) -> Result<ListRecord, ListError> {
    load_words::<4>(memory, at).map(|words| zerocopy::transmute!(words))
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
        record
            .words()
            .into_iter()
            .for_each(|word| digest.word(word));
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
/// Fails with [`ListError`]; no part of the list may be followed then.
pub fn verify(
    memory: &impl ListMemory,
    head: PhysicalAddress,
    each: impl FnMut(&ListRecord),
) -> Result<ListHeader, ListError> {
    let words = load_words::<{ ListHeader::WORDS }>(memory, head.0)?;
    let header: ListHeader = zerocopy::transmute!(words);
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
