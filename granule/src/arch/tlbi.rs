//! Which TLBI instructions invalidate a range, and their operands.
//!
//! Pure: it turns an [`Invalidation`] into [`TlbiOp`]s, each with the exact register operand.
//! Issuing them with the barriers they need is `table::flush`'s.
//!
//! The contiguous hint does not enlarge what a TLBI removes (RLQLSD, IJQPNP): the stride is that
//! of the entries, never of the group.

use super::geometry::{Geometry, VirtualAddress};
use super::page_size::{Level, PageSize};
use super::regime::Regime;

/// Past this many single operations a whole invalidation is cheaper: a table's worth of the
/// smallest page, which is also where Linux draws the line.
const MOST_SINGLE: u64 = 512;

/// Which cached entries an invalidation must remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Leaves only: no table was unlinked.
    LastLevel,
    /// Leaves and the table entries that lead to them: a table was unlinked.
    AllLevels,
}

/// A range of addresses whose cached translations must go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The first address.
    pub start: VirtualAddress,
    /// The bytes, a multiple of the page size; 0 for nothing.
    pub bytes: u64,
    /// The size in bytes of the smallest entry (not group, and of a table what it translates)
    /// that may be cached for some address in the range.
    pub stride: u64,
    /// Leaves only, or tables too.
    pub reach: Reach,
    /// The address space, or all of them (global mappings).
    pub asid: Option<u16>,
    /// The level of every leaf in the range, if there is one: a hint.
    pub level: Option<Level>,
}

/// What the CPUs that use the tables can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbCapabilities {
    /// The geometry of the half, for granule, level hints and the base of range operations.
    pub geometry: Geometry,
    /// FEAT_TLBIRANGE on every CPU.
    pub range: bool,
    /// FEAT_TTL on every CPU.
    pub level_hint: bool,
    /// Issue everything twice ([`Errata::repeats_tlbi`](super::errata::Errata::repeats_tlbi)).
    pub repeat: bool,
}

/// One TLBI instruction. All of them are broadcast to the inner shareable domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlbiOp {
    /// All of the regime's entries: VMALLE1IS, ALLE2IS, ALLE3IS.
    All,
    /// All non-global entries of one address space: ASIDE1IS.
    Asid {
        /// The register operand.
        operand: u64,
    },
    /// One address: VA(A)(L)E1IS and the other regimes'.
    Address {
        /// The register operand.
        operand: u64,
        /// Leaves only, or tables too.
        reach: Reach,
        /// Every address space, whatever the operand's ASID.
        all_asids: bool,
    },
    /// A range of addresses: RVA(A)(L)E1IS and the other regimes'.
    Range {
        /// The register operand.
        operand: u64,
        /// Leaves only, or tables too.
        reach: Reach,
        /// Every address space, whatever the operand's ASID.
        all_asids: bool,
    },
}

impl TlbiOp {
    /// The SYS instruction of a regime that does the operation: op0, op1, CRn, CRm and op2 as a
    /// number of 16 bits, as MSR and SYS have them in bits 20 to 5; and the value of its register.
    ///
    /// A regime with one privilege has no ASIDs, so an operation on one of them is on all.
    #[must_use]
    pub const fn instruction(self, regime: Regime) -> (u16, u64) {
        let op1 = match regime {
            Regime::El1And0 => 0,
            Regime::El2 => 4,
            Regime::El3 => 6,
        };
        let has_asids = regime.has_user();
        let (crm, op2, operand) = match self {
            Self::All => (3, 0, 0),
            Self::Asid { operand } if has_asids => (3, 2, operand),
            Self::Asid { .. } => (3, 0, 0),
            Self::Address {
                operand,
                reach,
                all_asids,
            } => (3, address_op2(reach, all_asids && has_asids), operand),
            Self::Range {
                operand,
                reach,
                all_asids,
            } => (2, address_op2(reach, all_asids && has_asids), operand),
        };
        (1 << 14 | op1 << 11 | 8 << 7 | crm << 3 | op2, operand)
    }
}

/// op2 of the forms by address and by range: 1, with a bit for every ASID and one for leaves only.
const fn address_op2(reach: Reach, all_asids: bool) -> u16 {
    1 | (all_asids as u16) << 1 | (matches!(reach, Reach::LastLevel) as u16) << 2
}

/// TTL's and TG's encoding of the granule: 01 4K, 10 16K, 11 64K.
const fn granule_code(size: PageSize) -> u64 {
    match size {
        PageSize::K4 => 0b01,
        PageSize::K16 => 0b10,
        PageSize::K64 => 0b11,
    }
}

/// The operand of an operation by address.
///
/// Bits 43:0 are address bits 55:12 *whatever the granule*. The level hint is given only when
/// the caller knows the level of the leaf: with a wrong one nothing need be invalidated (RSQXYZ).
#[must_use]
pub const fn address_operand(
    size: PageSize,
    address: VirtualAddress,
    asid: u16,
    level: Option<Level>,
) -> u64 {
    let page = (address.0 >> 12) & 0x0fff_ffff_ffff;
    let hint = match level {
        Some(level) if level.number() >= 0 => granule_code(size) << 2 | level.number() as u64,
        _ => 0,
    };
    page | hint << 44 | (asid as u64) << 48
}

/// The operand of an operation by ASID.
#[must_use]
pub const fn asid_operand(asid: u16) -> u64 {
    (asid as u64) << 48
}

/// The granules that a range operation with these fields covers: (NUM + 1) * 2^(5 * SCALE + 1).
#[must_use]
pub const fn range_granules(num: u64, scale: u32) -> u64 {
    (num + 1) << (5 * scale + 1)
}

/// Calls `issue` with each instruction that `what` takes.
///
/// Everything in the regime (or the address space) goes when single operations would be too
/// many; the caller then pays misses, never a stale translation.
pub fn plan(what: &Invalidation, can: &TlbCapabilities, mut issue: impl FnMut(TlbiOp)) {
    if what.bytes == 0 {
        return;
    }
    let size = can.geometry.page_size();
    let stride = what.stride.max(size.bytes());
    // 4K level 0 and 16K level 1 are reserved as hints where they have no leaves (without LPA2).
    let level = what.level.filter(|&level| {
        can.level_hint && what.reach == Reach::LastLevel && can.geometry.leaf_allowed(level)
    });
    let all_asids = what.asid.is_none();
    let asid = what.asid.unwrap_or(0);
    let single = |address| TlbiOp::Address {
        operand: address_operand(size, VirtualAddress(address), asid, level),
        reach: what.reach,
        all_asids,
    };
    let mut at = what.start.0;
    let end = what.start.0.wrapping_add(what.bytes);
    // One operation in each entry: the first and the last may reach beyond the range.
    let before = at & (stride - 1);
    let singles = (before + what.bytes).div_ceil(stride);
    if singles <= if can.range { 1 } else { MOST_SINGLE } {
        at -= before;
        for _ in 0..singles {
            issue(single(at));
            at = at.wrapping_add(stride);
        }
        return;
    }
    let longest = range_granules(31, 3) << size.shift();
    if !can.range || what.bytes > longest {
        issue(match what.asid {
            Some(asid) => TlbiOp::Asid {
                operand: asid_operand(asid),
            },
            None => TlbiOp::All,
        });
        return;
    }
    // With TCR.DS the base of a range operation counts in 64 KiB whatever the granule.
    let base_shift = if can.geometry.lpa2() {
        PageSize::K64.shift()
    } else {
        size.shift()
    };
    while at & ((1 << base_shift) - 1) != 0 && at != end {
        issue(single(at));
        at = at.wrapping_add(size.bytes());
    }
    // A level hint whose base is not aligned to that level's entry is UNPREDICTABLE.
    let hint_at = |at: u64| match level {
        Some(level) if at.trailing_zeros() >= size.level_shift(level) && level.number() > 0 => {
            level.number() as u64
        }
        _ => 0,
    };
    let mut scale = 3;
    loop {
        let granules = end.wrapping_sub(at) >> size.shift();
        // At most 32: only at the highest scale can there be as many.
        let num = (granules >> (5 * scale + 1)).min(32);
        if num > 0 {
            let base = (at >> base_shift) & ((1 << 37) - 1);
            let operand = base
                | hint_at(at) << 37
                | (num - 1) << 39
                | (scale as u64) << 44
                | granule_code(size) << 46
                | (asid as u64) << 48;
            issue(TlbiOp::Range {
                operand,
                reach: what.reach,
                all_asids,
            });
            at = at.wrapping_add(range_granules(num - 1, scale) << size.shift());
        }
        if scale == 0 {
            break;
        }
        scale -= 1;
    }
    // Range operations cover even numbers of granules only.
    while at != end {
        issue(single(at));
        at = at.wrapping_add(size.bytes());
    }
}
