//! The operations by address and by range, and the one that suffices for what is usually invalidated.

use super::{
    Invalidation, TlbCapabilities, TlbiOp, TlbiScope, address_operand, granule_code, range_granules,
};
use crate::arch::address::VirtualAddress;
use crate::arch::geometry::Geometry;
use crate::arch::page_size::{Level, PageSize};

/// The operations by address that an invalidation needs. It has all that they depend on by value, because a
/// TLBI may change memory as far as the compiler knows, and would make a loop read it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByAddress {
    asid: Option<u16>,
    scope: TlbiScope,
    size: PageSize,
    /// The level hint.
    level: Option<Level>,
}

impl ByAddress {
    #[inline(always)]
    pub(super) fn new(what: &Invalidation, geometry: &Geometry, can: &TlbCapabilities) -> Self {
        Self::of_size(what, geometry, can, geometry.page_size())
    }

    /// As [`new`](Self::new) with the page size of the geometry, which the compiler may know.
    #[inline(always)]
    fn of_size(
        what: &Invalidation,
        geometry: &Geometry,
        can: &TlbCapabilities,
        size: PageSize,
    ) -> Self {
        // Without LPA2 a level hint of 0 with 4K or 1 with 16K is reserved: those levels have no
        // leaves.
        let level = what.level.filter(|&level| {
            can.level_hint && what.scope == TlbiScope::LastLevel && geometry.leaf_allowed(level)
        });
        Self {
            asid: what.asid,
            scope: what.scope,
            size,
            level,
        }
    }

    /// The operation for the entry of one address.
    #[inline(always)]
    pub(super) fn at(&self, address: u64) -> TlbiOp {
        TlbiOp::Address {
            operand: self.operand(address),
            scope: self.scope,
            all_asids: self.asid.is_none(),
        }
    }

    /// The operand of that operation.
    #[inline(always)]
    pub(super) fn operand(&self, address: u64) -> u64 {
        let asid = self.asid.unwrap_or(0);
        address_operand(self.size, VirtualAddress(address), asid, self.level)
    }

    /// The longest operation by range from `at` on that covers no more than this number of granules,
    /// and the granules that it covers: an even number.
    #[inline(always)]
    pub(super) fn range(
        &self,
        geometry: &Geometry,
        at: u64,
        granules: u64,
    ) -> Option<(TlbiOp, u64)> {
        let mut scale = 3;
        while scale > 0 && granules >> (5 * scale + 1) == 0 {
            scale -= 1;
        }
        self.range_of_scale(geometry, at, granules, scale)
    }

    /// As [`range`](Self::range) with this scale, the largest one that is not too large.
    #[inline(always)]
    fn range_of_scale(
        &self,
        geometry: &Geometry,
        at: u64,
        granules: u64,
        scale: u32,
    ) -> Option<(TlbiOp, u64)> {
        // With TCR.DS the base of a range operation counts in 64 KiB for every granule.
        let base_shift = if geometry.lpa2() {
            PageSize::K64.shift()
        } else {
            self.size.shift()
        };
        if at & ((1 << base_shift) - 1) != 0 || granules < 2 {
            return None;
        }
        // A level hint is UNPREDICTABLE if the base is not aligned to an entry of that level.
        let hint = match self.level {
            Some(level) if at & (self.size.entry_bytes(level) - 1) == 0 => {
                level.number().max(0) as u64
            }
            _ => 0,
        };
        // NUM + 1 is at most 32; only the highest scale can reach that.
        let num = (granules >> (5 * scale + 1)).min(32) - 1;
        let operand = (at >> base_shift) & ((1 << 37) - 1)
            | hint << 37
            | num << 39
            | u64::from(scale) << 44
            | granule_code(self.size) << 46
            | u64::from(self.asid.unwrap_or(0)) << 48;
        let op = TlbiOp::Range {
            operand,
            scope: self.scope,
            all_asids: self.asid.is_none(),
        };
        Some((op, range_granules(num, scale)))
    }
}

/// The operation for a whole entry, which begins with the range.
#[inline(always)]
pub(crate) fn of_entry(
    what: &Invalidation,
    geometry: &Geometry,
    can: &TlbCapabilities,
    size: PageSize,
) -> Option<TlbiOp> {
    Some(ByAddress::of_size(what, geometry, can, size).at(what.start.0))
}

/// The operation that is all that a few pages need, if one by range of the least scale removes them:
/// an even number of them.
#[inline(always)]
pub(crate) fn of_few_pages(
    what: &Invalidation,
    geometry: &Geometry,
    can: &TlbCapabilities,
    size: PageSize,
) -> Option<TlbiOp> {
    let pages = what.bytes >> size.shift();
    if !can.range || pages % 2 != 0 || pages >= range_granules(0, 1) {
        return None;
    }
    let by_address = ByAddress::of_size(what, geometry, can, size);
    let range = by_address.range_of_scale(geometry, what.start.0, pages, 0);
    range.map(|(op, _)| op)
}

/// The operation that is all that `what` needs, if one entry translates the whole range: the usual
/// case, and cheap if the compiler knows the range's size.
#[inline(always)]
pub(crate) fn of_one_entry(
    what: &Invalidation,
    geometry: &Geometry,
    can: &TlbCapabilities,
    size: PageSize,
) -> Option<TlbiOp> {
    let before = what.start.0 & (what.stride - 1);
    // No closure: that would be a function of its own, which does not know the size.
    if what.bytes != 0 && before + what.bytes <= what.stride {
        Some(ByAddress::of_size(what, geometry, can, size).at(what.start.0 - before))
    } else {
        None
    }
}
