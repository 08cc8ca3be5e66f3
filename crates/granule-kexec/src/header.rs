//! The header of the list, as the relocation code reads it. The records behind the header belong to
//! [`list`](super::list).

use super::layout::RECORD_BYTES;
use core::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The parameters of the relocation code, at the start of the list's first page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct ListHeader {
    /// [`ListHeader::MAGIC`].
    pub magic: u64,
    /// The [`Digest`](super::Digest) of all other words of the header and of all records.
    pub digest: u64,
    /// [`UNCACHED`](super::UNCACHED), [`EL2`](super::EL2).
    pub flags: u64,
    /// The physical address of the first record.
    pub first: u64,
    /// Added, wrapping, to a physical address for its address in the linear map.
    pub distance: u64,
    /// SCTLR with the MMU off.
    pub sctlr: u64,
    /// TTBR1 for the transitional tables.
    pub ttbr1: u64,
    /// TCR for the transitional tables.
    pub tcr: u64,
    /// Physical address of the next kernel's first instruction.
    pub entry: u64,
    /// Physical address of its device tree.
    pub tree: u64,
    /// Physical address of the relocation code's first instruction: [`START`](super::START) bytes
    /// into the page that holds the copy.
    pub code: u64,
    /// TTBR0 for the identity map of that page.
    pub ttbr0: u64,
    /// SCTLR_EL2 with the MMU off, without E2H.
    pub sctlr_el2: u64,
    /// Number of records, without links and the end.
    pub records: u64,
    /// Number of bytes to copy.
    pub bytes_copied: u64,
    /// Number of bytes whose cache lines are cleaned.
    pub bytes_cleaned: u64,
}

impl ListHeader {
    /// "granKEXC".
    pub const MAGIC: u64 = u64::from_le_bytes(*b"granKEXC");

    pub(super) const WORDS: usize = size_of::<Self>() / 8;

    pub(super) const fn words(self) -> [u64; Self::WORDS] {
        zerocopy::transmute!(self)
    }
}

// The relocation code loads these in pairs.
const _: () = {
    assert!(offset_of!(ListHeader, first) == offset_of!(ListHeader, flags) + 8);
    assert!(offset_of!(ListHeader, sctlr) == offset_of!(ListHeader, distance) + 8);
    assert!(offset_of!(ListHeader, tcr) == offset_of!(ListHeader, ttbr1) + 8);
    assert!(offset_of!(ListHeader, tree) == offset_of!(ListHeader, entry) + 8);
    assert!(offset_of!(ListHeader, ttbr0) == offset_of!(ListHeader, code) + 8);
    assert!((size_of::<ListHeader>() as u64).is_multiple_of(RECORD_BYTES));
};
