//! TLBI instructions by their names, with the raw operand.
//!
//! What they remove is not decided here; that is the model's.

use core::fmt;

/// A translation regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Regime {
    /// EL1&0, or with HCR_EL2.E2H EL2&0: two halves, ASIDs.
    El10,
    /// EL2 without E2H: one half, no ASIDs.
    El2,
    /// EL3: one half, no ASIDs.
    El3,
}

/// Which CPUs' TLBs a TLBI reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlbiScope {
    /// The CPU that issues it.
    Local,
    /// The inner shareable domain (names ending in `is`).
    InnerShareable,
    /// The outer shareable domain (names ending in `os`), which includes the inner.
    OuterShareable,
}

/// What a TLBI is asked to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// All of the regime.
    All,
    /// All non-global entries of an ASID.
    Asid,
    /// One address.
    Address {
        /// Only the last level: no cached table entries.
        last_level: bool,
        /// Whatever the ASID.
        all_asids: bool,
    },
    /// A range of addresses (FEAT_TLBIRANGE).
    Range {
        /// Only the last level: no cached table entries.
        last_level: bool,
        /// Whatever the ASID.
        all_asids: bool,
    },
}

/// One TLBI instruction with its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tlbi {
    /// The regime it works on.
    pub regime: Regime,
    /// Whose TLBs.
    pub scope: TlbiScope,
    /// What.
    pub target: Target,
    /// The register operand as it was, 0 where the instruction has none.
    pub operand: u64,
}

impl Tlbi {
    /// The instruction with this name, in lower case (`vaae1is`, `rvale1`, `alle2is`, ...).
    ///
    /// ALLE1 and VMALLS12E1 are read as VMALLE1, which they include; they are written back as
    /// such.
    #[must_use]
    pub fn from_name(name: &str, operand: u64) -> Option<Self> {
        let (base, scope) = if let Some(base) = name.strip_suffix("is") {
            (base, TlbiScope::InnerShareable)
        } else if let Some(base) = name.strip_suffix("os") {
            (base, TlbiScope::OuterShareable)
        } else {
            (name, TlbiScope::Local)
        };
        let (base, regime) = if let Some(base) = base.strip_suffix("e1") {
            (base, Regime::El10)
        } else if let Some(base) = base.strip_suffix("e2") {
            (base, Regime::El2)
        } else {
            (base.strip_suffix("e3")?, Regime::El3)
        };
        let one_half = regime != Regime::El10;
        let target = match base {
            "vmall" | "vmalls12" if !one_half => Target::All,
            "all" => Target::All,
            "asid" if !one_half => Target::Asid,
            _ => {
                let (base, range) = match base.strip_prefix('r') {
                    Some(base) => (base, true),
                    None => (base, false),
                };
                let (last_level, all_asids) = match base {
                    "va" => (false, false),
                    "val" => (true, false),
                    "vaa" if !one_half => (false, true),
                    "vaal" if !one_half => (true, true),
                    _ => return None,
                };
                if range {
                    Target::Range {
                        last_level,
                        all_asids,
                    }
                } else {
                    Target::Address {
                        last_level,
                        all_asids,
                    }
                }
            }
        };
        Some(Self {
            regime,
            scope,
            target,
            operand,
        })
    }

    /// Whether the instruction takes a register operand.
    #[must_use]
    pub const fn has_operand(self) -> bool {
        !matches!(self.target, Target::All)
    }

    /// The name, in lower case.
    #[must_use]
    pub fn name(self) -> String {
        let base = match self.target {
            Target::All if self.regime == Regime::El10 => "vmall",
            Target::All => "all",
            Target::Asid => "asid",
            Target::Address {
                last_level,
                all_asids,
            } => Self::by_address(last_level, all_asids),
            Target::Range {
                last_level,
                all_asids,
            } => Self::by_address(last_level, all_asids),
        };
        let range = if matches!(self.target, Target::Range { .. }) {
            "r"
        } else {
            ""
        };
        let level = match self.regime {
            Regime::El10 => "e1",
            Regime::El2 => "e2",
            Regime::El3 => "e3",
        };
        let scope = match self.scope {
            TlbiScope::Local => "",
            TlbiScope::InnerShareable => "is",
            TlbiScope::OuterShareable => "os",
        };
        format!("{range}{base}{level}{scope}")
    }

    const fn by_address(last_level: bool, all_asids: bool) -> &'static str {
        match (last_level, all_asids) {
            (false, false) => "va",
            (true, false) => "val",
            (false, true) => "vaa",
            (true, true) => "vaal",
        }
    }
}

impl fmt::Display for Tlbi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        if self.has_operand() {
            write!(f, " {:#x}", self.operand)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in [
            "vmalle1",
            "vmalle1is",
            "vmalle1os",
            "aside1",
            "aside1is",
            "vae1",
            "vae1is",
            "vaae1is",
            "vale1is",
            "vaale1is",
            "vaale1os",
            "rvae1is",
            "rvaae1is",
            "rvale1is",
            "rvaale1is",
            "alle2",
            "alle2is",
            "vae2is",
            "vale2is",
            "rvae2is",
            "rvale2is",
            "alle3is",
            "vae3is",
            "rvale3is",
        ] {
            let op = Tlbi::from_name(name, 7);
            assert_eq!(op.map(Tlbi::name).as_deref(), Some(name));
        }
        for name in [
            "",
            "vae",
            "vaae2is",
            "aside2is",
            "vmalle2is",
            "rasid",
            "dsb",
        ] {
            assert_eq!(Tlbi::from_name(name, 0), None, "{name}");
        }
        assert_eq!(
            Tlbi::from_name("alle1is", 0),
            Tlbi::from_name("vmalle1is", 0)
        );
    }
}
