//! TLBI instructions, decoded: regime, scope and target.
//!
//! [`state::invalidation`](crate::state::invalidation) reads their operands.

use super::regime::Regime;
use granule_trace::System;

/// The CPUs whose TLBs a TLBI reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TlbiScope {
    /// The CPU that issues it.
    Local,
    /// The inner shareable domain (names ending in `is`).
    InnerShareable,
    /// The outer shareable domain (names ending in `os`), which includes the inner.
    OuterShareable,
}

/// The entries that a TLBI removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// All of the regime.
    All,
    /// All non-global entries of an ASID.
    Asid,
    /// One address, or a range of addresses (FEAT_TLBIRANGE).
    Addresses {
        range: bool,
        /// Only the last level: no cached table entries.
        last_level: bool,
        /// Whatever the ASID.
        all_asids: bool,
    },
}

/// One TLBI instruction with its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tlbi {
    /// The regime whose entries it removes.
    pub(crate) regime: Regime,
    /// The CPUs whose TLBs it reaches.
    pub(crate) scope: TlbiScope,
    /// The entries that it removes.
    pub(crate) target: Target,
    /// The raw register operand, 0 where the instruction has none.
    pub(crate) operand: u64,
    /// The entries of stage 2 that an operation on all of EL1&0 removes.
    pub(crate) guests: Option<Guests>,
}

/// The entries of stage 2 that an operation on all of EL1&0 removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Guests {
    /// Those of the current VMID that are combined with the guest's own tables: VMALLE1.
    Combined,
    /// All of the current VMID: VMALLS12E1.
    Vmid,
    /// All: ALLE1.
    All,
}

impl Tlbi {
    /// The TLBI with this encoding; `None` for other instructions.
    ///
    /// The guests' own trees count as those of one guest: ALLE1 and VMALLS12E1 are read as VMALLE1,
    /// which they include, and which of them it is matters for stage 2 alone.
    pub(crate) const fn of(system: System, operand: u64) -> Option<Self> {
        if !system.is_tlbi() {
            return None;
        }
        if matches!(system.crm(), 0 | 4) {
            return Self::by_intermediate_address(system, operand);
        }
        let (scope, range) = match system.crm() {
            7 => (TlbiScope::Local, false),
            3 => (TlbiScope::InnerShareable, false),
            1 => (TlbiScope::OuterShareable, false),
            6 => (TlbiScope::Local, true),
            2 => (TlbiScope::InnerShareable, true),
            5 => (TlbiScope::OuterShareable, true),
            _ => return None,
        };
        let regime = match (system.op1(), system.op2()) {
            (0, _) | (4, 4 | 6) => Regime::El10,
            (4, _) => Regime::El2,
            (6, _) => Regime::El3,
            _ => return None,
        };
        let two_halves = matches!(regime, Regime::El10);
        let guests = match (system.op1(), system.op2(), range) {
            (0, 0, false) => Some(Guests::Combined),
            (4, 4, false) => Some(Guests::All),
            (4, 6, false) => Some(Guests::Vmid),
            _ => None,
        };
        let target = match system.op2() {
            0 | 4 | 6 if !range => Target::All,
            2 if two_halves && !range => Target::Asid,
            op2 @ (1 | 3 | 5 | 7) if two_halves || op2 & 2 == 0 => Target::Addresses {
                range,
                last_level: op2 & 4 != 0,
                all_asids: op2 & 2 != 0,
            },
            _ => return None,
        };
        Some(Self {
            regime,
            scope,
            target,
            operand,
            guests,
        })
    }

    /// An operation on stage 2 by intermediate physical address.
    const fn by_intermediate_address(system: System, operand: u64) -> Option<Self> {
        let (range, last_level, scope) = match (system.op1(), system.crm(), system.op2()) {
            (4, 0, op2 @ (1 | 2 | 5 | 6)) => {
                (op2 & 2 != 0, op2 & 4 != 0, TlbiScope::InnerShareable)
            }
            (4, 4, op2 @ (1 | 2 | 5 | 6)) => (op2 & 2 != 0, op2 & 4 != 0, TlbiScope::Local),
            (4, 4, op2) => (op2 & 3 != 0, op2 & 4 != 0, TlbiScope::OuterShareable),
            _ => return None,
        };
        let target = Target::Addresses {
            range,
            last_level,
            all_asids: false,
        };
        Some(Self {
            regime: Regime::Stage2,
            scope,
            target,
            operand,
            guests: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every TLBI that has a name is decoded, and with the effect that its name implies.
    #[test]
    fn encodings_say_what_names_do() {
        let mut known = 0;
        for &(system, name) in System::NAMED {
            let Some(op) = Tlbi::of(system, 7) else {
                assert!(!system.is_tlbi(), "{name}");
                continue;
            };
            known += 1;
            let (base, scope) = if let Some(base) = name.strip_suffix("is") {
                (base, TlbiScope::InnerShareable)
            } else if let Some(base) = name.strip_suffix("os") {
                (base, TlbiScope::OuterShareable)
            } else {
                (name, TlbiScope::Local)
            };
            let regime = match base.split_at(base.len() - 2).1 {
                "e1" => Regime::El10,
                "e2" => Regime::El2,
                _ => Regime::El3,
            };
            let address = base.split_at(base.len() - 2).0;
            // By intermediate physical address: `s2` is the stage.
            let (regime, address) = match address.replace("ipas2", "va") {
                replaced if replaced != address => (Regime::Stage2, replaced),
                same => (regime, same),
            };
            let address = address.as_str();
            let guests = match (address, regime) {
                ("vmall", Regime::El10) => Some(Guests::Combined),
                ("vmalls12", Regime::El10) => Some(Guests::Vmid),
                ("all", Regime::El10) => Some(Guests::All),
                _ => None,
            };
            assert_eq!(op.guests, guests, "{name}");
            let (range, address) = match address.strip_prefix("rv") {
                Some(_) => (true, address.split_at(1).1),
                None => (false, address),
            };
            let last_level = address.ends_with('l') && address.starts_with("va");
            let all_asids = address.starts_with("vaa");
            let target = match address {
                "vmall" | "vmalls12" | "all" => Target::All,
                "asid" => Target::Asid,
                _ => Target::Addresses {
                    range,
                    last_level,
                    all_asids,
                },
            };
            assert_eq!(
                (op.regime, op.scope, op.target),
                (regime, scope, target),
                "{name}"
            );
            assert_eq!(system.takes_operand(), target != Target::All, "{name}");
        }
        assert_eq!(known, 78);
        assert_eq!(Tlbi::of(System::TCR_EL1, 0), None);
        assert_eq!(Tlbi::of(System::DC_CVAC, 0), None);
    }
}
