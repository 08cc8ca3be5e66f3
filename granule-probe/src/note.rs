//! The note that a kernel leaves for the next one: read here from its layout as it is documented, so
//! that what writes it and what reads it are two.
//!
//! A stamp of kind `gr-kexec`, behind it 17 words of 64 bits of which the last nine are start, bytes
//! and digest of image, initramfs and tree, then the counter just before the relocation code with its
//! complement, which is not stamped.

use crate::given::Given;
use granule_boot::stamp::{self, Stamp};

const KIND: stamp::Kind = *b"gr-kexec";
/// Words that are stamped, and the first of those about what was given.
const WORDS: usize = 17;
const GIVEN: usize = 8;
/// All bytes: stamp, words, the count and its complement.
pub(crate) const BYTES: usize = stamp::BYTES + 8 * WORDS + 16;

/// What the note says, as far as a witness cares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    /// Pages of the kernel that wrote it, in bytes.
    pub(crate) from: u64,
    /// Image, initramfs and tree as they were loaded.
    pub(crate) given: [Given; 3],
    /// The counter just before the relocation code; `None` if that was not reached.
    pub(crate) leave: Option<u64>,
}

impl Note {
    /// Reads the note in a page; `None` if it is not whole.
    pub(crate) fn read(page: &[u8]) -> Option<Self> {
        let (stamp, data) = Stamp::open(page, KIND).ok()?;
        if data.len() != 8 * WORDS {
            return None;
        }
        let word = |bytes: &[u8], index: usize| -> Option<u64> {
            let (_, tail) = bytes.split_at_checked(8 * index)?;
            Some(u64::from_le_bytes(*tail.first_chunk::<8>()?))
        };
        let given = |index: usize| -> Option<Given> {
            let at = GIVEN + 3 * index;
            Some(Given {
                start: word(data, at)?,
                bytes: word(data, at + 1)?,
                digest: word(data, at + 2)?,
            })
        };
        let behind = stamp::BYTES / 8 + WORDS;
        let (count, complement) = (word(page, behind)?, word(page, behind + 1)?);
        Some(Self {
            from: stamp.page_size().bytes(),
            given: [given(0)?, given(1)?, given(2)?],
            leave: (count == !complement).then_some(count),
        })
    }
}
