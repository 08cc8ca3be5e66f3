//! The place of an address in a descriptor.

use super::{Geometry, OutputFormat};
use crate::arch::address::PhysicalAddress;
use crate::arch::page_size::PageSize;

/// The address bits of a descriptor: those in place, and those of the highest address bits, which the
/// 52-bit formats keep further down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressBits {
    in_place: u64,
    moved: u64,
    /// The distance of `moved` from its place in the address.
    distance: u32,
    /// The bits of a page's address that are in place in every format, as far as there are such
    /// addresses.
    near: u64,
    /// The other address bits of a page.
    far: u64,
}

impl AddressBits {
    pub(super) const fn of(format: OutputFormat, size: PageSize, pa_bits: u32) -> Self {
        let (high, moved, distance) = match format {
            OutputFormat::Bits48 => (47, 0, 0),
            OutputFormat::Lpa2 => (49, mask(9, 8), 42),
            OutputFormat::Lpa => (47, mask(15, 12), 36),
        };
        let plain = if pa_bits < Geometry::MOST_PLAIN_BITS {
            pa_bits
        } else {
            Geometry::MOST_PLAIN_BITS
        };
        let near = mask(plain - 1, size.shift());
        Self {
            in_place: mask(high, 0),
            moved,
            distance,
            near,
            far: (mask(high, size.shift()) | moved) & !near,
        }
    }
}

impl Geometry {
    /// The address bits of a descriptor that holds `address` in this format.
    #[must_use]
    #[inline]
    pub const fn address_bits(&self, address: PhysicalAddress) -> u64 {
        let AddressBits {
            in_place,
            moved,
            distance,
            ..
        } = self.address;
        (address.0 & in_place) | ((address.0 >> distance) & moved)
    }

    /// The address bits of a table or a page below 2^48, and the bits of a descriptor in which those at
    /// higher addresses differ.
    #[inline(always)]
    pub(crate) const fn near_bits(&self) -> (u64, u64) {
        (self.address.near, self.address.far)
    }

    /// The address in a descriptor of this format, without the bits below `low`: the inverse of
    /// [`address_bits`](Self::address_bits).
    #[inline(always)]
    pub(crate) const fn address_in(&self, bits: u64, low: u32) -> PhysicalAddress {
        let AddressBits {
            in_place,
            moved,
            distance,
            ..
        } = self.address;
        PhysicalAddress((bits & in_place & (u64::MAX << low)) | ((bits & moved) << distance))
    }
}

/// Ones in bits `high` to `low`.
#[inline]
const fn mask(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}
