//! Numbers that the relocation code, the list and who writes it share.
//!
//! Plain constants. Those of the header's fields are offsets of the structure in
//! [`list`](super::list).

use granule::arch::PageSize;

/// Bytes that are moved and told of at a time: what the copying loops load before they store.
pub const LINE: usize = 64;

/// Bytes of the relocation code with its vectors: it must fit into the smallest page.
pub const CODE_BYTES: usize = UNIT as usize;
/// Where in it execution begins: behind vectors.
pub const START: u64 = 2048;

/// A record's kind: bytes are copied.
pub const COPY: u64 = 1 << COPY_BIT;
/// A record's kind: the destination's lines are cleaned to the point of coherency.
pub const CLEAN: u64 = 1 << CLEAN_BIT;
/// A record's kind: the next record is at the destination.
pub const LINK: u64 = 1 << LINK_BIT;
/// A record's kind: there are no more.
pub const END: u64 = 0;
pub(crate) const COPY_BIT: u32 = 0;
pub(crate) const CLEAN_BIT: u32 = 1;
pub(crate) const LINK_BIT: u32 = 2;

/// Bytes of a record: destination, source, bytes and kind, 64 bits each.
pub const RECORD_BYTES: u64 = 32;
/// What a record's bytes are a multiple of, and its addresses: the smallest page.
pub const UNIT: u64 = PageSize::K4.bytes();

/// A header's flag: the MMU goes off before anything is copied.
pub const UNCACHED: u64 = 1 << UNCACHED_BIT;
/// A header's flag: the next kernel begins at EL2, which a hypervisor call leads to.
pub const EL2: u64 = 1 << EL2_BIT;
pub(crate) const UNCACHED_BIT: u32 = 0;
pub(crate) const EL2_BIT: u32 = 1;

/// The hypervisor call that sets the vectors of EL2 to the address in x1.
pub const SET_VECTORS: u64 = 0;

/// The longest step from cache line to cache line, in bytes: four of them must divide a page. A
/// longer line is cleaned more than once.
pub const MOST_LINE: u64 = 1024;

/// TCR.EPD0 and TCR.EPD1: no walks of a half.
pub(crate) const EPD0: u64 = granule::arch::registers::Tcr::EPD0;
pub(crate) const EPD1: u64 = granule::arch::registers::Tcr::EPD1;
