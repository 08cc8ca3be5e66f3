//! The TLBI instructions that invalidate a range, and their operands.
//!
//! This pure code turns an [`Invalidation`] into [`TlbiOp`]s, each with the exact register operand.
//! `table::flush` issues them with their barriers.
//!
//! The contiguous hint does not enlarge what a TLBI removes (RLQLSD, IJQPNP), so the stride is the
//! size of an entry, never of a group.

mod by_address;

pub(crate) use by_address::{of_entry, of_few_pages, of_one_entry};

use super::address::VirtualAddress;
use super::errata::Errata;
use super::features::CpuFeatures;
use super::geometry::Geometry;
use super::page_size::{Level, PageSize};
use super::regime::Regime;
use by_address::ByAddress;

/// Above this number of single operations a whole invalidation is cheaper. The number is the
/// entries of one table of the smallest page; Linux uses the same limit.
const MOST_SINGLE: u64 = 512;

/// Which cached entries an invalidation must remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum TlbiScope {
    /// Leaves only: no table was unlinked.
    LastLevel,
    /// Leaves and the table entries that lead to them: a table was unlinked.
    AllLevels,
}

/// A range of addresses whose cached translations must be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The first address of a range in one half of the address space. At stage 2 it is an
    /// intermediate physical address, as a number of the same type.
    pub start: VirtualAddress,
    /// The bytes, a multiple of the page size; 0 invalidates nothing.
    pub bytes: u64,
    /// The bytes of the smallest entry that may be cached for an address in the range. Entries
    /// count by themselves, not as groups; a table entry counts with the bytes it translates.
    pub stride: u64,
    /// Leaves only, or tables too.
    pub scope: TlbiScope,
    /// The address space; `None` means all of them (global mappings).
    pub asid: Option<u16>,
    /// A hint: the level of all leaves in the range, if they share one.
    pub level: Option<Level>,
}

/// The TLBI features of the CPUs that use the tables.
///
/// [`BASIC`](Self::BASIC) suits every CPU without errata; [`of`](Self::of) reads a CPU's features
/// and errata. Others begin with one of them, as in `TlbCapabilities { range: true,
/// ..TlbCapabilities::BASIC }`. The geometry of the tables is not
/// said again here, so the two cannot differ:
///
/// ```compile_fail,E0609
/// use granule::arch::Geometry;
/// use granule::arch::tlbi::TlbCapabilities;
///
/// fn another(capabilities: &mut TlbCapabilities, geometry: Geometry) {
///     capabilities.geometry = geometry;
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbCapabilities {
    /// FEAT_TLBIRANGE on every CPU.
    pub range: bool,
    /// FEAT_TTL on every CPU.
    pub level_hint: bool,
    /// Issue each TLBI and its DSB twice
    /// ([`Errata::repeats_tlbi`](super::errata::Errata::repeats_tlbi)).
    pub repeat: bool,
}

impl TlbCapabilities {
    /// TLBIs by single address, without level hint and issued once: what Armv8.0 has.
    pub const BASIC: Self = Self {
        range: false,
        level_hint: false,
        repeat: false,
    };

    /// The capabilities of a system whose CPUs are all like `cpu`.
    ///
    /// A system of unlike CPUs takes the features that all have, and repeats if any must.
    #[must_use]
    #[inline]
    pub fn of(cpu: &CpuFeatures) -> Self {
        Self {
            range: cpu.tlbi_range(),
            level_hint: cpu.tlbi_level_hint(),
            repeat: Errata::of_cpu(cpu.midr).repeats_tlbi(false),
        }
    }
}

/// One TLBI instruction, always broadcast to the inner shareable domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlbiOp {
    /// All of the regime's entries: VMALLE1IS, ALLE2IS, ALLE3IS. At stage 2 those of both stages of
    /// the current VMID: VMALLS12E1IS.
    All,
    /// All entries of EL1&0 of both stages and of every VMID: ALLE1IS, for code that assigns VMIDs
    /// anew. In the other regimes the same as [`All`](Self::All).
    AllVmids,
    /// All non-global entries of one address space: ASIDE1IS.
    Asid {
        /// The register operand.
        operand: u64,
    },
    /// One address: VA(A)(L)E1IS, and its equivalents in the other regimes. At stage 2 an
    /// intermediate physical address of the current VMID: IPAS2(L)E1IS. It leaves the entries that
    /// combine both stages.
    Address {
        /// The register operand.
        operand: u64,
        /// Leaves only, or tables too.
        scope: TlbiScope,
        /// Every address space, whatever the operand's ASID.
        all_asids: bool,
    },
    /// A range of addresses: RVA(A)(L)E1IS, and its equivalents in the other regimes. At stage 2
    /// RIPAS2(L)E1IS, which like the form for one address leaves combined entries.
    Range {
        /// The register operand.
        operand: u64,
        /// Leaves only, or tables too.
        scope: TlbiScope,
        /// Every address space, whatever the operand's ASID.
        all_asids: bool,
    },
}

impl TlbiOp {
    /// All non-global entries of the address space, or without one all of the regime.
    #[inline]
    pub(crate) const fn all_of(asid: Option<u16>) -> Self {
        match asid {
            Some(asid) => Self::Asid {
                operand: asid_operand(asid),
            },
            None => Self::All,
        }
    }

    /// The regime's SYS instruction for the operation, and the value of its register. The first
    /// number has op0, op1, CRn, CRm and op2 in 16 bits, as MSR and SYS encode them in bits 20 to
    /// 5.
    ///
    /// A regime with one privilege has no ASIDs, so an operation on one ASID affects every entry.
    #[must_use]
    pub const fn instruction(self, regime: Regime) -> (u16, u64) {
        let op1 = match regime {
            Regime::El1And0 => 0,
            Regime::El2 => 4,
            Regime::El3 => 6,
            Regime::Stage2 => return self.stage2_instruction(),
        };
        let has_asids = regime.has_user();
        let (crm, op2, operand) = match self {
            Self::AllVmids if has_asids => return self.stage2_instruction(),
            Self::All | Self::AllVmids => (3, 0, 0),
            Self::Asid { operand } if has_asids => (3, 2, operand),
            Self::Asid { .. } => (3, 0, 0),
            Self::Address {
                operand,
                scope,
                all_asids,
            } => (3, address_op2(scope, all_asids && has_asids), operand),
            Self::Range {
                operand,
                scope,
                all_asids,
            } => (2, address_op2(scope, all_asids && has_asids), operand),
        };
        (1 << 14 | op1 << 11 | 8 << 7 | crm << 3 | op2, operand)
    }

    /// As [`instruction`](Self::instruction), for stage 2. A guest's tables have no ASIDs there, so
    /// an operation on one ASID affects every entry.
    #[inline]
    const fn stage2_instruction(self) -> (u16, u64) {
        let (crm, op2, operand) = match self {
            Self::All | Self::Asid { .. } => (3, 6, 0),
            Self::AllVmids => (3, 4, 0),
            Self::Address { operand, scope, .. } => (0, address_op2(scope, false), operand),
            // Unlike in the other regimes, both forms have the same CRm; op2 is one more by range.
            Self::Range { operand, scope, .. } => (0, address_op2(scope, false) + 1, operand),
        };
        (1 << 14 | 4 << 11 | 8 << 7 | crm << 3 | op2, operand)
    }
}

/// Chooses the arm of `$issue` for an operation and a regime that are known only at run time: an
/// instruction's encoding must be a constant. An arm gets the operation with operand 0 and the
/// regime as constants, for [`TlbiOp::instruction`], and the operand if the instruction has one.
#[cfg(any(test, target_arch = "aarch64"))]
macro_rules! for_constant_op {
    ($op:expr, $regime:expr, $issue:ident) => {
        match $regime {
            Regime::El1And0 => for_constant_op!(@ $op, Regime::El1And0, $issue),
            Regime::El2 => for_constant_op!(@ $op, Regime::El2, $issue),
            Regime::El3 => for_constant_op!(@ $op, Regime::El3, $issue),
            Regime::Stage2 => for_constant_op!(@ $op, Regime::Stage2, $issue),
        }
    };
    (@ $op:expr, $regime:expr, $issue:ident) => {
        match $op {
            TlbiOp::All => $issue!(TlbiOp::All, $regime),
            TlbiOp::AllVmids => $issue!(TlbiOp::AllVmids, $regime),
            TlbiOp::Asid { operand } => {
                if $regime.has_user() {
                    $issue!(TlbiOp::Asid { operand: 0 }, $regime, operand)
                } else {
                    $issue!(TlbiOp::Asid { operand: 0 }, $regime)
                }
            }
            TlbiOp::Address { operand, scope, all_asids } => {
                for_constant_op!(@by Address, operand, scope, all_asids, $regime, $issue)
            }
            TlbiOp::Range { operand, scope, all_asids } => {
                for_constant_op!(@by Range, operand, scope, all_asids, $regime, $issue)
            }
        }
    };
    (@by $kind:ident, $operand:expr, $scope:expr, $all:expr, $regime:expr, $issue:ident) => {
        match ($scope, $all) {
            (TlbiScope::AllLevels, true) => {
                for_constant_op!(@one $kind, $operand, AllLevels, true, $regime, $issue)
            }
            (TlbiScope::LastLevel, true) => {
                for_constant_op!(@one $kind, $operand, LastLevel, true, $regime, $issue)
            }
            (TlbiScope::AllLevels, false) => {
                for_constant_op!(@one $kind, $operand, AllLevels, false, $regime, $issue)
            }
            (TlbiScope::LastLevel, false) => {
                for_constant_op!(@one $kind, $operand, LastLevel, false, $regime, $issue)
            }
        }
    };
    (@one $kind:ident, $operand:expr, $scope:ident, $all:literal, $regime:expr, $issue:ident) => {
        $issue!(
            TlbiOp::$kind { operand: 0, scope: TlbiScope::$scope, all_asids: $all },
            $regime,
            $operand
        )
    };
}
#[cfg(target_arch = "aarch64")]
pub(crate) use for_constant_op;

/// op2 of the operations by address and by range: bit 0, bit 1 for all ASIDs, and bit 2 for leaves
/// only.
#[inline]
const fn address_op2(scope: TlbiScope, all_asids: bool) -> u16 {
    1 | (all_asids as u16) << 1 | (matches!(scope, TlbiScope::LastLevel) as u16) << 2
}

/// The granule in the TTL and TG fields: 01 is 4K, 10 is 16K, 11 is 64K.
#[inline]
const fn granule_code(size: PageSize) -> u64 {
    match size {
        PageSize::K4 => 0b01,
        PageSize::K16 => 0b10,
        PageSize::K64 => 0b11,
    }
}

/// The operand of an operation by address.
///
/// Bits 43:0 are address bits 55:12 *for every granule*. Pass a level only if it is the leaf's:
/// with a wrong hint the CPU need not invalidate anything (RSQXYZ).
#[inline]
const fn address_operand(
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
#[inline]
const fn asid_operand(asid: u16) -> u64 {
    (asid as u64) << 48
}

/// The number of granules that a range operation covers: (NUM + 1) * 2^(5 * SCALE + 1).
#[inline]
const fn range_granules(num: u64, scale: u32) -> u64 {
    (num + 1) << (5 * scale + 1)
}

/// Operations by address whose operands differ by a step. Their addresses lie in one half of the
/// address space, so that no step carries out of bits 43:0 of the operand, address bits 55:12.
struct Singles {
    first: u64,
    step: u64,
    count: u64,
}

impl Singles {
    #[inline(always)]
    fn issue(self, scope: TlbiScope, all_asids: bool, issue: &mut impl FnMut(TlbiOp)) {
        for entry in 0..self.count {
            issue(TlbiOp::Address {
                operand: self.first.wrapping_add(entry * self.step),
                scope,
                all_asids,
            });
        }
    }
}

/// Calls `issue` with each instruction that `what` needs in tables of `geometry`, which gives the
/// granule, the level hints and the base of range operations.
///
/// If the range would need too many single operations, one operation invalidates the whole regime
/// or address space. That costs extra TLB misses, but leaves no stale translation.
pub(crate) fn plan(
    what: &Invalidation,
    geometry: &Geometry,
    can: &TlbCapabilities,
    mut issue: impl FnMut(TlbiOp),
) {
    if what.bytes == 0 {
        return;
    }
    let by_address = ByAddress::new(what, geometry, can);
    let page = geometry.page_size().bytes();
    let stride = what.stride.max(page);
    let start = what.start.0;
    let before = start & (stride - 1);
    // One operation for each entry; the first and last entries may extend beyond the range.
    let singles = (before + what.bytes + stride - 1) >> stride.trailing_zeros();
    let by_range = can.range && singles > 1;
    let longest = range_granules(31, 3) * page;
    if (by_range && what.bytes > longest) || (!by_range && singles > MOST_SINGLE) {
        issue(TlbiOp::all_of(what.asid));
        return;
    }
    if !by_range {
        let each = Singles {
            first: by_address.operand(start - before),
            step: stride >> 12,
            count: singles,
        };
        // The usual forms have loops of their own, in which only the operand varies.
        match (what.scope, what.asid) {
            (TlbiScope::LastLevel, Some(_)) => each.issue(TlbiScope::LastLevel, false, &mut issue),
            (TlbiScope::LastLevel, None) => each.issue(TlbiScope::LastLevel, true, &mut issue),
            (scope, asid) => each.issue(scope, asid.is_none(), &mut issue),
        }
        return;
    }
    let (mut at, mut left) = (start, what.bytes >> page.trailing_zeros());
    while left > 0 {
        let range = by_address.range(geometry, at, left);
        let (op, done) = range.unwrap_or_else(|| (by_address.at(at), 1));
        issue(op);
        at = at.wrapping_add(done * page);
        left -= done;
    }
}

#[cfg(test)]
mod tests;
