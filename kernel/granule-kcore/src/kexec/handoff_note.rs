//! The handoff note: figures that a kernel leaves for the next one, in a page that both keep. This
//! file defines its bytes and is pure.
//!
//! The page begins with a stamp ([`granule_boot::stamp`], kind `gr-kexec`, units bytes, with the
//! writer's page size). The data are little-endian 64-bit words:
//!
//! | word | what |
//! | --- | --- |
//! | 0 | the counter at the request to leave |
//! | 1 | the counter's ticks per second |
//! | 2 | bytes of all segments |
//! | 3 | bytes that the relocation copies |
//! | 4 | its cache operations by line |
//! | 5 | its DSBs |
//! | 6 | its TLBIs |
//! | 7 | bit 0: the MMU is off while it copies; bit 1: the next kernel begins at EL2 by way of EL1 |
//! | 8 to 10 | the kernel: its destination, its bytes, their digest ([`granule_kexec::Digest`]) |
//! | 11 to 13 | the initramfs, all 0 if there is none |
//! | 14 to 16 | the device tree |
//!
//! Two words follow the data: the counter just before the relocation code, and its complement. They
//! are stored last of all, so the stamp does not cover them. The next kernel's device tree holds the
//! page's address in `/chosen/granule,kexec-note`, and reserves the page.

use crate::devicetree::child;
use granule::arch::PageSize;
use granule_boot::stamp::{self, Stamp, StampError, StampKind, Units};
use granule_boot::tree::Tree;

/// The stamp's kind.
const KIND: StampKind = *b"gr-kexec";

/// Words of data.
const WORDS: usize = 17;

/// Offset of the last count in the page: behind stamp and data.
pub const LEAVE: usize = stamp::BYTES + 8 * WORDS;

/// Bytes of the page that are used.
pub const BYTES: usize = LEAVE + 16;

/// The names of the segments, in their order.
pub const NAMES: [&str; 3] = ["kernel", "initrd", "tree"];

/// One segment of the next kernel's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadSegment {
    /// Its physical address in the next kernel.
    pub start: u64,
    /// Its bytes, without the padding of its last page; 0 if there is no such segment.
    pub bytes: u64,
    /// The digest of these bytes as they were loaded.
    pub digest: u64,
}

/// The data of a note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandoffNote {
    /// The counter at the request to leave.
    pub call: u64,
    /// The counter's ticks per second.
    pub hz: u64,
    /// Bytes of all segments.
    pub bytes_total: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
    /// Cache operations by line.
    pub lines_cleaned: u64,
    /// DSBs of the relocation.
    pub dsb: u64,
    /// TLBIs of the relocation.
    pub tlbi: u64,
    /// Whether the MMU was off while bytes were copied.
    pub uncached: bool,
    /// Whether the CPU returned to EL2.
    pub el2: bool,
    /// Kernel, initramfs and device tree.
    pub payload: [PayloadSegment; 3],
}

/// A note that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The writer's page size.
    pub from: PageSize,
    /// The data.
    pub note: HandoffNote,
    /// The counter just before the relocation code; `None` if the writer did not get that far.
    pub leave: Option<u64>,
}

impl HandoffNote {
    fn words(&self) -> impl Iterator<Item = u64> {
        let head = [
            self.call,
            self.hz,
            self.bytes_total,
            self.bytes_copied,
            self.lines_cleaned,
            self.dsb,
            self.tlbi,
            u64::from(self.uncached) | u64::from(self.el2) << 1,
        ];
        let payload = self.payload.map(|it| [it.start, it.bytes, it.digest]);
        head.into_iter().chain(payload.into_iter().flatten())
    }

    /// Writes the note under pages of `running`. The last count stays invalid until
    /// [`leave`](leave_words) is stored behind the data.
    pub fn write(&self, running: PageSize, page: &mut [u8; BYTES]) {
        let mut data = [0; 8 * WORDS];
        let (chunks, _) = data.as_chunks_mut::<8>();
        for (to, word) in chunks.iter_mut().zip(self.words()) {
            *to = word.to_le_bytes();
        }
        let stamp = Stamp::new(KIND, Units::Bytes, running, &data).to_bytes();
        let all = stamp.iter().chain(&data).chain(&[0; 16]);
        for (to, from) in page.iter_mut().zip(all) {
            *to = *from;
        }
    }

    /// Reads a note, whatever page size it was written under.
    pub fn read(page: &[u8; BYTES], running: PageSize) -> Result<Read, StampError> {
        let (stamp, data) = Stamp::open(page, KIND)?;
        stamp.check(running)?;
        let (chunks, _) = data.as_chunks::<8>();
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(chunks) {
            *to = u64::from_le_bytes(*from);
        }
        let [
            call,
            hz,
            bytes_total,
            bytes_copied,
            lines_cleaned,
            dsb,
            tlbi,
            flags,
            payload @ ..,
        ] = words;
        let (payload, _) = payload.as_chunks::<3>();
        let mut read = Self {
            call,
            hz,
            bytes_total,
            bytes_copied,
            lines_cleaned,
            dsb,
            tlbi,
            uncached: flags & 1 != 0,
            el2: flags & 2 != 0,
            payload: [PayloadSegment::default(); 3],
        };
        for (to, [start, bytes, digest]) in read.payload.iter_mut().zip(payload) {
            *to = PayloadSegment {
                start: *start,
                bytes: *bytes,
                digest: *digest,
            };
        }
        let (last, _) = page.get(LEAVE..).unwrap_or_default().as_chunks::<8>();
        let leave = match last {
            [count, complement] => Some((u64::from_le_bytes(*count), *complement)),
            _ => None,
        };
        let leave = leave.filter(|(count, other)| *count == !u64::from_le_bytes(*other));
        Ok(Read {
            from: stamp.page_size(),
            note: read,
            leave: leave.map(|(count, _)| count),
        })
    }
}

/// The words to store at [`LEAVE`] for the last count.
pub const fn leave_words(count: u64) -> [u64; 2] {
    [count, !count]
}

/// The address of the note that the tree names.
pub fn address(tree: &[u8]) -> Option<u64> {
    let chosen = child(&Tree::new(tree).ok()?, b"chosen")?;
    let value = chosen.property(PROPERTY.as_bytes())?;
    let address = u64::from_be_bytes(*value.first_chunk::<8>()?);
    let is_page = address.is_multiple_of(PageSize::MIN.bytes());
    is_page.then_some(address)
}

/// The property of `/chosen` with the note's 64-bit address.
pub const PROPERTY: &str = "granule,kexec-note";

#[cfg(test)]
mod tests {
    use super::*;
    use PageSize::{K4, K64};

    fn note() -> HandoffNote {
        let segment = |number: u64| PayloadSegment {
            start: 0x4000_0000 * number,
            bytes: 1000 + number,
            digest: 77 * number,
        };
        HandoffNote {
            call: 1,
            hz: 2,
            bytes_total: 3,
            bytes_copied: 4,
            lines_cleaned: 5,
            dsb: 6,
            tlbi: 7,
            uncached: true,
            el2: false,
            payload: [segment(1), segment(2), segment(3)],
        }
    }

    #[test]
    fn a_written_note_is_read_under_every_page_size() {
        for el2 in [false, true] {
            let note = HandoffNote { el2, ..note() };
            let mut page = [0xa5; BYTES];
            note.write(K4, &mut page);
            let read = HandoffNote::read(&page, K64).unwrap();
            assert_eq!((read.from, read.note, read.leave), (K4, note, None));
            for (to, word) in page[LEAVE..].chunks_mut(8).zip(leave_words(0x1234)) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            assert_eq!(HandoffNote::read(&page, K4).unwrap().leave, Some(0x1234));
        }
    }

    #[test]
    fn decayed_bytes_are_not_believed() {
        let mut good = [0; BYTES];
        note().write(K64, &mut good);
        let none = HandoffNote::read(&[0; BYTES], K64);
        assert_eq!(none, Err(StampError::NoStamp));
        for at in 0..LEAVE {
            let mut page = good;
            page[at] ^= 0x20;
            assert!(HandoffNote::read(&page, K64).is_err(), "{at}");
        }
    }

    #[test]
    fn the_tree_says_where_it_is() {
        use crate::made_trees::{node, tree};
        let tree_of = |chosen| tree(node("", &[], chosen), &[]);
        let tree = |value: &[u8]| tree_of(vec![node("chosen", &[(PROPERTY, value)], [])]);
        let at = |value: &[u8]| address(&tree(value));
        assert_eq!(at(&0x4100_1000_u64.to_be_bytes()), Some(0x4100_1000));
        assert_eq!(at(&0x4100_1001_u64.to_be_bytes()), None);
        assert_eq!(at(&[0, 0, 0, 1]), None);
        assert_eq!(address(&tree_of(vec![])), None);
        assert_eq!(address(b"no tree"), None);
    }
}
