//! Reads the note that a kernel leaves for the next one. The layout follows the documentation and not the
//! kernel's code, so that writer and reader are independent.
//!
//! The note is a stamp of kind `gr-kexec`, followed by 17 words of 64 bits. The last nine words are start,
//! bytes and digest of image, initramfs and tree. Then comes the counter just before the relocation code with
//! its complement, which the stamp does not cover.

use crate::digest::SegmentDigest;
use granule_boot::stamp::{self, Stamp};

const KIND: stamp::StampKind = *b"gr-kexec";
/// Number of stamped words, and the index of the first word about the memory that was handed over.
const WORDS: usize = 17;
const SEGMENTS: usize = 8;
/// Size of the note: stamp, words, the counter and its complement.
pub(crate) const BYTES: usize = stamp::BYTES + 8 * WORDS + 16;

/// The parts of the note that the probe checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffNote {
    /// Page size of the kernel that wrote the note, in bytes.
    pub(crate) from: u64,
    /// Image, initramfs and tree as they were loaded.
    pub(crate) segments: [SegmentDigest; 3],
    /// The counter just before the relocation code; `None` if the kernel did not get there.
    pub(crate) leave: Option<u64>,
}

impl HandoffNote {
    /// Reads the note in a page; `None` if it is incomplete.
    pub(crate) fn read(page: &[u8]) -> Option<Self> {
        let (stamp, data) = Stamp::open(page, KIND).ok()?;
        if data.len() != 8 * WORDS {
            return None;
        }
        let word = |bytes: &[u8], index: usize| -> Option<u64> {
            let (_, tail) = bytes.split_at_checked(8 * index)?;
            Some(u64::from_le_bytes(*tail.first_chunk::<8>()?))
        };
        let segment = |index: usize| -> Option<SegmentDigest> {
            let at = SEGMENTS + 3 * index;
            Some(SegmentDigest {
                start: word(data, at)?,
                bytes: word(data, at + 1)?,
                digest: word(data, at + 2)?,
            })
        };
        let behind = stamp::BYTES / 8 + WORDS;
        let (count, complement) = (word(page, behind)?, word(page, behind + 1)?);
        Some(Self {
            from: stamp.page_size().bytes(),
            segments: [segment(0)?, segment(1)?, segment(2)?],
            leave: (count == !complement).then_some(count),
        })
    }
}
