//! The rules for changing a live descriptor, break-before-make above all.
//!
//! One pure function, `classify`, implements rule RWHZWS and its relaxations by FEAT_BBM (RPVTFW,
//! RKFLJB). Every operation on live tables asks it. The function looks at one entry; the caller
//! checks that the members of a contiguous group agree.

use super::attributes::Permissions;
use super::descriptor::{Descriptor, Kind};
use super::geometry::Geometry;
use super::page_size::Level;
use super::regime::Regime;
use super::stage2::Stage2Permissions;

/// The level of FEAT_BBM: which changes of size need no break-before-make. `as u32` gives its
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "the architecture has no more")]
pub enum BbmLevel {
    /// Every change of size needs break-before-make.
    Level0,
    /// The contiguous hint may change in place. Blocks need break-before-make or the nT bit.
    Level1,
    /// Sizes may change in place, but a CPU may take a TLB conflict abort.
    Level2,
    /// Sizes may change in place, and no CPU takes a TLB conflict abort.
    Level3,
}

impl BbmLevel {
    /// The level with this number; a number above 3 counts as level 3.
    #[must_use]
    #[inline]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Level0,
            1 => Self::Level1,
            2 => Self::Level2,
            _ => Self::Level3,
        }
    }

    /// The number: 0 to 3.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self as u32
    }
}

/// The steps that a change of one entry requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The entry stays as it is.
    Nothing,
    /// Store the entry. No TLBI follows, because no TLB can hold the old entry: it was invalid
    /// (IWZCBG) or its access flag was 0.
    Store,
    /// Store the entry, then invalidate the TLB before relying on the change.
    StoreThenInvalidate,
    /// Store the entry. The old and new translations agree, so stale ones are harmless until the
    /// next change of the range, whose invalidation must reach them. At levels 1 and 2 a CPU may
    /// take a TLB conflict abort in between.
    StoreResized {
        /// Whether a TLB conflict abort is possible until the invalidation.
        conflict_possible: bool,
    },
    /// Store an invalid entry, issue the TLBI, then store the new entry (RDDMVT). Accesses fault in
    /// between.
    BreakBeforeMake,
}

/// The bits that may change in place on a live leaf of `regime`, followed by a TLBI.
#[inline]
const fn permission_bits(regime: Regime) -> u64 {
    match regime {
        Regime::Stage2 => Stage2Permissions::MASK,
        _ => Permissions::MASK,
    }
}

/// The steps that a change from `old` to `new` at `level` requires on live tables of `geometry`,
/// when all CPUs that use them have at least level `bbm`.
///
/// For a change between a block and a table the caller guarantees that the table's entries
/// translate as the block does, attributes included. If they do not, the caller must break the
/// entry first.
pub(crate) const fn classify(
    geometry: &Geometry,
    level: Level,
    old: Descriptor,
    new: Descriptor,
    bbm: BbmLevel,
) -> Change {
    if old.0 == new.0 {
        return Change::Nothing;
    }
    match (old.kind(geometry, level), new.kind(geometry, level)) {
        (Kind::Invalid | Kind::PresentInvalid, _) => Change::Store,
        (_, Kind::Invalid | Kind::PresentInvalid) => Change::StoreThenInvalidate,
        (Kind::Leaf, Kind::Leaf) => classify_leaves(geometry.regime(), old, new, bbm),
        (Kind::Leaf, Kind::Table) | (Kind::Table, Kind::Leaf) => resized(bbm, BbmLevel::Level2),
        // RWHZWS does not list a change from one table to another, but nothing proves that both
        // translate alike, so the change needs break-before-make.
        (Kind::Table, Kind::Table) => Change::BreakBeforeMake,
    }
}

const fn classify_leaves(
    regime: Regime,
    old: Descriptor,
    new: Descriptor,
    bbm: BbmLevel,
) -> Change {
    let changed = old.0 ^ new.0;
    // No TLB holds an entry with a clear access flag, so setting the flag needs no TLBI. Other bits
    // that change in the same store fall under their own rules.
    if changed == Descriptor::ACCESS_FLAG && old.0 & Descriptor::ACCESS_FLAG == 0 {
        return Change::Store;
    }
    if changed & Descriptor::CONTIGUOUS != 0 {
        // RPVTFW: the relaxation holds only if the same store changes nothing else that needs
        // break-before-make. Permissions must not differ within a group (RJQQTC).
        return if changed == Descriptor::CONTIGUOUS {
            resized(bbm, BbmLevel::Level1)
        } else {
            Change::BreakBeforeMake
        };
    }
    // Bits that may change in place on a live leaf, followed by a TLBI.
    let mut allowed = Descriptor::ACCESS_FLAG | permission_bits(regime);
    if !matches!(regime, Regime::Stage2) {
        // A leaf may become non-global. The opposite needs break-before-make.
        allowed |= new.0 & Descriptor::NOT_GLOBAL;
    }
    if changed & !allowed == 0 {
        Change::StoreThenInvalidate
    } else {
        Change::BreakBeforeMake
    }
}

/// A change of size alone, allowed in place from level `least` on.
#[inline]
const fn resized(bbm: BbmLevel, least: BbmLevel) -> Change {
    if bbm.number() >= least.number() {
        Change::StoreResized {
            conflict_possible: bbm.number() < BbmLevel::Level3.number(),
        }
    } else {
        Change::BreakBeforeMake
    }
}

#[cfg(test)]
mod tests;
