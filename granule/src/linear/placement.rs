//! The place of the linear map: the distance from physical to virtual addresses.
//!
//! Pure code. A leaf needs virtual and physical addresses that agree in the bits below its size, so
//! the distance decides which leaf sizes are possible.

use crate::arch::{Geometry, PhysicalAddress, VirtualAddress};

/// The place of a linear map: physical address `origin` is mapped at virtual address `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    base: VirtualAddress,
    origin: PhysicalAddress,
    span: u64,
}

impl Placement {
    /// Chooses the origin for RAM from `ram_start` to `ram_end` in a window of `span` bytes at
    /// `base`. The origin is the start of RAM rounded down to the largest leaf size with which all
    /// of RAM still fits. If RAM fits with no block size, the origin is rounded to the smallest
    /// block, and RAM beyond the window stays unmapped ([`reaches`](Self::reaches) tells).
    ///
    /// `base` must be aligned to the largest leaf of `geometry`. The base of a half is, unless the
    /// half is smaller than that leaf.
    #[must_use]
    pub fn choose(
        geometry: &Geometry,
        base: VirtualAddress,
        span: u64,
        ram_start: PhysicalAddress,
        ram_end: PhysicalAddress,
    ) -> Self {
        let mut origin = ram_start.0 & !(geometry.page_size().bytes() - 1);
        for leaf in geometry.leaf_sizes() {
            if leaf.level.is_last() {
                break;
            }
            // A window smaller than the leaf cannot hold one.
            if leaf.bytes > span || base.0 & (leaf.bytes - 1) != 0 {
                continue;
            }
            origin = ram_start.0 & !(leaf.bytes - 1);
            if ram_end.0.saturating_sub(origin) <= span {
                break;
            }
        }
        Self {
            base,
            origin: PhysicalAddress(origin),
            span,
        }
    }

    /// The virtual address of physical `address`, if it lies in the window.
    #[must_use]
    pub const fn virtual_address(&self, address: PhysicalAddress) -> Option<VirtualAddress> {
        let offset = address.0.wrapping_sub(self.origin.0);
        if offset < self.span {
            Some(VirtualAddress(self.base.0.wrapping_add(offset)))
        } else {
            None
        }
    }

    /// The physical address behind virtual `address`, if it lies in the window.
    #[must_use]
    pub const fn physical_address(&self, address: VirtualAddress) -> Option<PhysicalAddress> {
        let offset = address.0.wrapping_sub(self.base.0);
        if offset < self.span {
            Some(PhysicalAddress(self.origin.0 + offset))
        } else {
            None
        }
    }

    /// The first virtual address of the window.
    #[must_use]
    pub const fn base(&self) -> VirtualAddress {
        self.base
    }

    /// The number to add to a physical address, with wrapping, to get its virtual address.
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.base.0.wrapping_sub(self.origin.0)
    }

    /// The physical addresses that the window covers: the first, and the first beyond.
    #[must_use]
    pub const fn reaches(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            self.origin,
            PhysicalAddress(self.origin.0.saturating_add(self.span)),
        )
    }
}
