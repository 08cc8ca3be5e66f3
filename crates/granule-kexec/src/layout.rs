//! Constants shared by the relocation code, the list and the writer of the list.
//!
//! The offsets of the header's fields come from the structure in [`list`](super::list), not from
//! here.

use granule::arch::PageSize;

/// Bytes that each copying loop loads before it stores them; also the unit in which moves are
/// reported.
pub const LINE: usize = 64;

/// Bytes of the relocation code with its vectors: it must fit into the smallest page.
pub const CODE_BYTES: usize = UNIT as usize;
/// Offset of the first instruction in the relocation code: the vectors come first.
pub const START: u64 = 2048;

/// Record kind: the bytes are copied.
pub const COPY: u64 = 1 << COPY_BIT;
/// Record kind: the destination's cache lines are cleaned to the point of coherency.
pub const CLEAN: u64 = 1 << CLEAN_BIT;
/// Record kind: the next record is at the address in the destination field.
pub const LINK: u64 = 1 << LINK_BIT;
/// Record kind: the end of the list.
pub const END: u64 = 0;
pub(crate) const COPY_BIT: u32 = 0;
pub(crate) const CLEAN_BIT: u32 = 1;
pub(crate) const LINK_BIT: u32 = 2;

/// Bytes of a record: destination, source, byte count and kind, 64 bits each.
pub const RECORD_BYTES: u64 = 32;
/// Granularity of a record's addresses and byte count: the smallest page size.
pub const UNIT: u64 = PageSize::K4.bytes();

/// Header flag: the MMU goes off before the first copy.
pub const UNCACHED: u64 = 1 << UNCACHED_BIT;
/// Header flag: the next kernel starts at EL2, entered by a hypervisor call.
pub const EL2: u64 = 1 << EL2_BIT;
pub(crate) const UNCACHED_BIT: u32 = 0;
pub(crate) const EL2_BIT: u32 = 1;

/// The hypervisor call that sets the vectors of EL2 to the address in x1.
pub const SET_VECTORS: u64 = 0;

/// The longest step between cache lines, in bytes: four steps must divide a page. A longer cache
/// line is cleaned more than once.
pub const MOST_LINE: u64 = 1024;

/// TCR.EPD0 and TCR.EPD1: they disable table walks for the lower and the upper half.
pub(crate) const EPD0: u64 = granule::arch::registers::Tcr::EPD0;
pub(crate) const EPD1: u64 = granule::arch::registers::Tcr::EPD1;
