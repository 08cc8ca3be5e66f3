//! Which changes of a valid descriptor need break-before-make.
//!
//! One pure function, [`classify`], knows rule RWHZWS and its relaxations by FEAT_BBM (RPVTFW,
//! RKFLJB); every operation on live tables asks it. It looks at one entry: whether the members
//! of a contiguous group agree is the caller's.

use super::attributes::Permissions;
use super::descriptor::{Descriptor, Kind};
use super::geometry::Geometry;
use super::page_size::Level;

/// How far FEAT_BBM lets a size change go without break-before-make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BbmLevel {
    /// Every change of size needs break-before-make.
    Level0,
    /// As level 0, with the nT bit as another way.
    Level1,
    /// Sizes may change in place; a TLB conflict abort may be taken.
    Level2,
    /// Sizes may change in place, and no TLB conflict abort is taken.
    Level3,
}

impl BbmLevel {
    /// The level with this number; numbers above 3 include level 3.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Level0,
            1 => Self::Level1,
            2 => Self::Level2,
            _ => Self::Level3,
        }
    }

    /// The number: 0 to 3.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// What a change of one entry takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Change {
    /// The entry stays as it is.
    Nothing,
    /// Store it; no TLBI: what was there could not be cached (IWZCBG, an access flag of 0).
    Store,
    /// Store it, then invalidate the TLB before relying on it.
    StoreThenInvalidate,
    /// Store it; the old and new translations agree, so stale ones are harmless until the next
    /// change of the range, whose invalidation must reach them. A TLB conflict abort may be
    /// taken in between where the level is 1 or 2.
    StoreResized {
        /// Whether a TLB conflict abort is possible until the invalidation.
        conflict_possible: bool,
    },
    /// Invalid entry, TLBI, then the new one (RDDMVT): every access faults in between.
    BreakBeforeMake,
}

/// Bits that may change in place on a live leaf, followed by a TLBI.
const IN_PLACE: u64 = Permissions::MASK;

/// What changing the entry from `old` to `new` at `level` takes on live tables of `geometry`,
/// when the CPUs that use them have at least `bbm`.
///
/// For a change between a block and a table the caller vouches that the table's entries
/// translate as the block did, attributes included; if not, it must say so by breaking first.
#[must_use]
pub const fn classify(
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
        (Kind::Invalid | Kind::Hidden, _) => Change::Store,
        (_, Kind::Invalid | Kind::Hidden) => Change::StoreThenInvalidate,
        (Kind::Leaf, Kind::Leaf) => classify_leaves(old, new, bbm),
        (Kind::Leaf, Kind::Table) | (Kind::Table, Kind::Leaf) => resized(bbm, BbmLevel::Level2),
        // Another table behind the same entry: nothing in RWHZWS's list as such, but the
        // translations below it differ unless proven equal, so it is treated as one.
        (Kind::Table, Kind::Table) => Change::BreakBeforeMake,
    }
}

const fn classify_leaves(old: Descriptor, new: Descriptor, bbm: BbmLevel) -> Change {
    let changed = old.0 ^ new.0;
    // With the access flag clear nothing was cached, and setting it needs no TLBI. Only that bit:
    // with more in the same store the rules for those hold.
    if changed == Descriptor::ACCESS_FLAG && old.0 & Descriptor::ACCESS_FLAG == 0 {
        return Change::Store;
    }
    if changed & Descriptor::CONTIGUOUS != 0 {
        // RPVTFW: the relaxation holds only if nothing else that needs break-before-make
        // changes in the same store, and permissions must not differ within a group (RJQQTC).
        return if changed == Descriptor::CONTIGUOUS {
            resized(bbm, BbmLevel::Level1)
        } else {
            Change::BreakBeforeMake
        };
    }
    let to_not_global =
        changed & Descriptor::NOT_GLOBAL != 0 && new.0 & Descriptor::NOT_GLOBAL != 0;
    let mut allowed = IN_PLACE | Descriptor::ACCESS_FLAG;
    if to_not_global {
        allowed |= Descriptor::NOT_GLOBAL;
    }
    if changed & !allowed == 0 {
        Change::StoreThenInvalidate
    } else {
        Change::BreakBeforeMake
    }
}

/// A change of size only, allowed in place from `least` on.
const fn resized(bbm: BbmLevel, least: BbmLevel) -> Change {
    if bbm.number() >= least.number() {
        Change::StoreResized {
            conflict_possible: bbm.number() < BbmLevel::Level3.number(),
        }
    } else {
        Change::BreakBeforeMake
    }
}
