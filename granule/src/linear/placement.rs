//! Where in the address space the linear map lies: the distance from physical to virtual.
//!
//! Pure. The distance decides which leaves are possible at all, because a leaf needs virtual and
//! physical address to agree in the bits below its size.

use crate::arch::{Geometry, PhysicalAddress, VirtualAddress};

/// A linear map's place: physical address `origin` is seen at virtual address `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    base: VirtualAddress,
    origin: PhysicalAddress,
    span: u64,
}

impl Placement {
    /// Chooses the origin for RAM from `ram_start` to `ram_end` in a window of `span` bytes at
    /// `base`: the start of RAM rounded down to the largest leaf size with which all of RAM still
    /// fits. When it fits with none of them, the one of the smallest block, and what lies beyond
    /// the window stays unmapped ([`reaches`](Self::reaches) tells).
    ///
    /// `base` must be aligned to the largest leaf of `geometry`, as the base of a half is unless
    /// the half is smaller than that leaf.
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

    /// The virtual address at which `address` is seen, if it lies in the window.
    #[must_use]
    pub const fn virtual_address(&self, address: PhysicalAddress) -> Option<VirtualAddress> {
        let offset = address.0.wrapping_sub(self.origin.0);
        if offset < self.span {
            Some(VirtualAddress(self.base.0.wrapping_add(offset)))
        } else {
            None
        }
    }

    /// The physical address seen at `address`, if it lies in the window.
    #[must_use]
    pub const fn physical_address(&self, address: VirtualAddress) -> Option<PhysicalAddress> {
        let offset = address.0.wrapping_sub(self.base.0);
        if offset < self.span {
            Some(PhysicalAddress(self.origin.0 + offset))
        } else {
            None
        }
    }

    /// Where the window begins.
    #[must_use]
    pub const fn base(&self) -> VirtualAddress {
        self.base
    }

    /// The distance to add, wrapping, to a physical address.
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.base.0.wrapping_sub(self.origin.0)
    }

    /// The physical addresses the window reaches: from the first to the last, half open.
    #[must_use]
    pub const fn reaches(&self) -> (PhysicalAddress, PhysicalAddress) {
        (
            self.origin,
            PhysicalAddress(self.origin.0.saturating_add(self.span)),
        )
    }
}
