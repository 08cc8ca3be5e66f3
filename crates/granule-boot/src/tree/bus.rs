//! Addresses and sizes: `reg`, the cells that it is made of, and the `ranges` of buses. Properties
//! of other kinds do not belong here.

use super::super::bytes::be32;
use super::node::{Cells, Node};

/// The most cells of a number. More cells than a `u64` has must begin with zeros.
const MOST_CELLS: u32 = 4;

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Range {
    /// The range of `bytes` bytes from `start` on.
    #[must_use]
    pub const fn new(start: u64, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// The address behind the range; the last address for a range that has no end.
    pub(crate) const fn end(self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// The bytes that are in both ranges.
    pub(crate) fn common(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        let bytes = self.end().min(other.end()).saturating_sub(start);
        Self { start, bytes }
    }

    /// Whether both ranges have a byte in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        // Distances instead of ends, because a range may end at the end of the address space.
        let after = self.start.wrapping_sub(other.start);
        let before = other.start.wrapping_sub(self.start);
        if self.bytes == 0 || other.bytes == 0 {
            return false;
        }
        (self.start >= other.start && after < other.bytes)
            || (other.start >= self.start && before < self.bytes)
    }

    /// The range rounded outward to multiples of `page`, a power of two.
    #[must_use]
    pub const fn outward(self, page: u64) -> Self {
        let mask = page.wrapping_sub(1);
        let start = self.start & !mask;
        let bytes = self
            .bytes
            .saturating_add(self.start & mask)
            .saturating_add(mask)
            & !mask;
        Self { start, bytes }
    }
}

/// The entries of a `reg`, or of another property of pairs of address and size.
///
/// An entry is `None` if a number does not fit 64 bits. The last one is `None` if the property does
/// not end with a whole entry, or if no property can have such cells.
#[derive(Clone, Copy, Debug)]
pub struct Reg<'a> {
    rest: &'a [u8],
    cells: Cells,
}

impl<'a> Reg<'a> {
    /// The entries of a property with this value and cells.
    #[must_use]
    pub const fn new(value: &'a [u8], cells: Cells) -> Self {
        Self { rest: value, cells }
    }

    /// The whole entries alone, if there are any, and whether part of an entry follows them.
    #[must_use]
    pub fn whole(self) -> (Self, bool) {
        let over = self.entry_bytes().and_then(|(_, bytes)| {
            let over = self.rest.len().checked_rem(bytes)?;
            self.rest
                .split_at_checked(self.rest.len().checked_sub(over)?)
        });
        match over {
            Some((rest, over)) if !rest.is_empty() => (Self { rest, ..self }, !over.is_empty()),
            _ => (self, false),
        }
    }

    /// The bytes of an address, and of an entry.
    fn entry_bytes(&self) -> Option<(usize, usize)> {
        let Cells { address, size } = self.cells;
        let size_at = bytes_of(address)?;
        let bytes = size_at.checked_add(bytes_of(size)?)?;
        (address != 0).then_some((size_at, bytes))
    }

    fn entry(&self) -> Option<(Option<Range>, &'a [u8])> {
        let Cells { address, size } = self.cells;
        let (size_at, bytes) = self.entry_bytes()?;
        let (entry, rest) = self.rest.split_at_checked(bytes)?;
        let start = number(entry, 0, address);
        let range = start.zip(number(entry, size_at, size));
        Some((range.map(|(start, bytes)| Range { start, bytes }), rest))
    }
}

impl Iterator for Reg<'_> {
    type Item = Option<Range>;

    fn next(&mut self) -> Option<Option<Range>> {
        if self.rest.is_empty() {
            return None;
        }
        let (range, rest) = self.entry().unwrap_or_default();
        self.rest = rest;
        Some(range)
    }
}

impl<'a> Node<'a> {
    /// The cells of its children (Devicetree Specification 2.3.5 has the defaults).
    #[must_use]
    pub fn child_cells(&self) -> Cells {
        self.child_cells_or(Cells {
            address: 2,
            size: 1,
        })
    }

    /// The cells of its children; `otherwise` holds what the node does not state.
    #[must_use]
    pub fn child_cells_or(&self, otherwise: Cells) -> Cells {
        let mut cells = otherwise;
        for property in self.properties() {
            let of = if property.name.is(b"#address-cells") {
                &mut cells.address
            } else if property.name.is(b"#size-cells") {
                &mut cells.size
            } else {
                continue;
            };
            // No property can have so many cells as an unreadable value gives.
            *of = be32(property.value, 0).unwrap_or(u32::MAX);
        }
        cells
    }

    /// The cells of its own `reg`, which its parent states.
    #[must_use]
    pub fn cells(&self) -> Cells {
        if let Some(cells) = self.cells {
            return cells;
        }
        match self.parent() {
            Some(parent) => parent.child_cells(),
            None => Cells {
                address: 0,
                size: 0,
            },
        }
    }

    /// The entries of `reg`, at the addresses of the bus that the node is on.
    #[must_use]
    pub fn reg(&self) -> Option<Reg<'a>> {
        let value = self.property(b"reg")?;
        Some(Reg::new(value, self.cells()))
    }

    /// Translates an address on the bus that the node is on to the CPU's address, through the
    /// `ranges` of the buses above; `None` if the CPU cannot reach it.
    #[must_use]
    pub fn to_cpu(&self, address: u64) -> Option<u64> {
        let mut address = address;
        let mut bus = self.parent()?;
        // No bus lies above the root: the addresses of its children are the CPU's.
        while let Some(parent) = bus.parent() {
            let above = parent.child_cells().address;
            address = through(&bus, above, address)?;
            bus = parent;
        }
        Some(address)
    }
}

/// Translates an address on `bus` to the bus above it, whose addresses have `parent_cells` cells.
fn through(bus: &Node<'_>, parent_cells: u32, address: u64) -> Option<u64> {
    // Without `ranges` the CPU cannot reach the bus.
    let ranges = bus.property(b"ranges")?;
    if ranges.is_empty() {
        return Some(address);
    }
    let cells = bus.child_cells();
    let parent_at = bytes_of(cells.address)?;
    let size_at = parent_at.checked_add(bytes_of(parent_cells)?)?;
    let entry = size_at.checked_add(bytes_of(cells.size)?)?;
    if entry == 0 {
        return None;
    }
    let mut rest = ranges;
    while let Some((range, further)) = rest.split_at_checked(entry) {
        rest = further;
        // An entry that cannot be read is not for this address: a PCI bus has entries of its own.
        let (Some(child), Some(parent), Some(size)) = (
            number(range, 0, cells.address),
            number(range, parent_at, parent_cells),
            number(range, size_at, cells.size),
        ) else {
            continue;
        };
        match address.checked_sub(child) {
            Some(offset) if offset < size => return parent.checked_add(offset),
            _ => {}
        }
    }
    None
}

/// A number of some cells, if it fits 64 bits.
fn number(bytes: &[u8], at: usize, cells: u32) -> Option<u64> {
    let (_, mut rest) = bytes.split_at_checked(at)?;
    let mut number = 0_u64;
    for _ in 0..cells {
        if number >> 32 != 0 {
            return None;
        }
        let (cell, further) = rest.split_at_checked(4)?;
        number = number << 32 | u64::from(be32(cell, 0)?);
        rest = further;
    }
    Some(number)
}

fn bytes_of(cells: u32) -> Option<usize> {
    if cells > MOST_CELLS {
        return None;
    }
    (cells as usize).checked_mul(4)
}
