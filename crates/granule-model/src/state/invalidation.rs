//! TLBIs: the entries that each operand names, and the stale entries that each TLBI must remove.
//!
//! A TLBI removes an entry only if the architecture requires it. Pure functions: the model does the
//! removal.

use super::stale_range::{StaleKind, StaleRange};
use crate::arch::context::Context;
use crate::arch::descriptor;
use crate::arch::format::Granule;
use crate::arch::regime::Regime;
use crate::arch::tlbi::{Target, Tlbi};
use crate::config::Config;
use crate::violation::Miss;

/// The entries that a TLBI has to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removes {
    /// All of the regime.
    All,
    /// All non-global entries of an ASID, or of a VMID at stage 2.
    Asid(u16),
    /// Entries that translate any address from `first` to `last`.
    Addresses {
        first: u64,
        last: u64,
        last_level: bool,
        /// `None` for every ASID.
        asid: Option<u16>,
        /// The level hint.
        level: Option<i8>,
        /// The granule that entries must have.
        granule: Option<Granule>,
    },
    /// Entries of stage 2 of a VMID that are combined with the guest's own tables.
    Combined(u16),
    /// Nothing has to be removed.
    Nothing,
    /// UNPREDICTABLE, with the reason.
    Unpredictable(&'static str),
}

const fn sign_extend(value: u64, bits: u32) -> u64 {
    ((value << (64 - bits)) as i64 >> (64 - bits)) as u64
}

/// Decodes the operand of a TLBI. `ds` is TCR.DS, which gives the units of a range's base; without
/// FEAT_TTL there are no level hints, and without FEAT_LPA2 some are reserved. `vmid` is the guest of an operation on
/// stage 2, whose operand names none.
pub(crate) fn read(op: Tlbi, ds: bool, config: &Config, vmid: u16) -> Removes {
    let lpa2 = config.lpa2;
    let operand = op.operand;
    let two_halves = op.regime == Regime::El10;
    let stage2 = op.regime == Regime::Stage2;
    let asid = if stage2 { vmid } else { (operand >> 48) as u16 };
    let has_asids = op.regime.has_asids();
    match op.target {
        Target::All => Removes::All,
        Target::Asid => Removes::Asid(asid),
        Target::Addresses {
            range: false,
            last_level,
            all_asids,
        } => {
            // Bits 55:12 of a virtual address, 51:12 of an intermediate physical one.
            let page = operand & ((1 << if stage2 { 40 } else { 44 }) - 1);
            let address = if two_halves {
                sign_extend(page << 12, 56)
            } else {
                page << 12
            };
            let granule = descriptor::granule_code(operand >> 46);
            let level = ((operand >> 44) & 0b11) as i8;
            // Reserved encodings are not a hint.
            let hint = match (granule, level) {
                _ if !config.level_hints => None,
                (None, _) | (Some(Granule::K16 | Granule::K64), 0) => None,
                (Some(Granule::K4), 0) | (Some(Granule::K16), 1) if !lpa2 => None,
                (Some(_), level) => Some(level),
            };
            Removes::Addresses {
                first: address,
                last: address,
                last_level,
                asid: (has_asids && !all_asids).then_some(asid),
                level: hint,
                granule: if hint.is_some() { granule } else { None },
            }
        }
        Target::Addresses {
            range: true,
            last_level,
            all_asids,
        } => {
            let Some(granule) = descriptor::granule_code(operand >> 46) else {
                return Removes::Nothing;
            };
            let unit = if ds { 16 } else { granule.shift() };
            let base = operand & ((1 << 37) - 1);
            let first = if two_halves {
                sign_extend(base, 37) << unit
            } else {
                base << unit
            };
            let num = (operand >> 39) & 0b1_1111;
            let scale = ((operand >> 44) & 0b11) as u32;
            let bytes = ((num + 1) << (5 * scale + 1)) << granule.shift();
            let Some(last) = first.checked_add(bytes - 1) else {
                return Removes::Unpredictable("the range wraps past the top of the addresses");
            };
            let level = match ((operand >> 37) & 0b11) as i8 {
                0 => None,
                1 if granule == Granule::K16 && !lpa2 => None,
                level => Some(level),
            };
            if let Some(level) = level
                && first & ((1 << granule.level_shift(level)) - 1) != 0
            {
                return Removes::Unpredictable(
                    "the base is not aligned to an entry of the level hint's level",
                );
            }
            Removes::Addresses {
                first,
                last,
                last_level,
                asid: (has_asids && !all_asids).then_some(asid),
                level,
                granule: Some(granule),
            }
        }
    }
}

/// Whether a TLBI must remove a stale entry that it matches.
pub(crate) fn must_remove(
    removes: Removes,
    stale: &StaleRange,
    context: &Context,
) -> Result<(), Miss> {
    let regime = context.space.regime();
    let wrong_asid = if regime == Regime::Stage2 {
        Miss::WrongVmid
    } else {
        Miss::WrongAsid
    };
    match removes {
        Removes::All => Ok(()),
        Removes::Combined(vmid) if stale.asid != Some(vmid) => Err(Miss::WrongVmid),
        // A pointer to a table of stage 2 is never combined.
        Removes::Combined(_) if !stale.combined => Err(Miss::Stage2Cached),
        Removes::Combined(_) => Ok(()),
        Removes::Addresses { .. } if stale.combined => Err(Miss::Stage2Only),
        Removes::Asid(asid) => {
            // A tree whose ASID is unknown may have any ASID.
            if stale.asid == Some(asid) && !stale.maybe_global {
                Ok(())
            } else {
                Err(wrong_asid)
            }
        }
        Removes::Addresses {
            last_level,
            asid,
            level,
            granule,
            ..
        } => {
            if granule.is_some_and(|granule| granule != context.format.granule) {
                return Err(Miss::WrongGranule);
            }
            match stale.kind {
                StaleKind::Table if last_level => return Err(Miss::LastLevelOnly),
                // The hint is the level of the leaf, below the tables that lead to it.
                StaleKind::Table if level.is_some_and(|level| stale.level >= level) => {
                    return Err(Miss::WrongLevel);
                }
                StaleKind::Leaf if level.is_some_and(|level| stale.level != level) => {
                    return Err(Miss::WrongLevel);
                }
                _ => {}
            }
            let (Some(asid), true) = (asid, regime.has_asids()) else {
                return Ok(());
            };
            let wrong = match stale.kind {
                // The form for one ASID removes global leaves, but only tables that lead to nothing
                // global.
                StaleKind::Table => stale.maybe_global || stale.asid != Some(asid),
                StaleKind::Leaf => match stale.asid {
                    Some(other) => other != asid,
                    None => stale.value & descriptor::NOT_GLOBAL != 0,
                },
            };
            if wrong { Err(wrong_asid) } else { Ok(()) }
        }
        Removes::Nothing | Removes::Unpredictable(_) => Err(Miss::WrongGranule),
    }
}
