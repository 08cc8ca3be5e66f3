//! The registers of a CPU, by name. This file does not interpret them.

use std::collections::BTreeMap;

/// The registers that are read from a live machine: those from which trees are made, and those that show
/// where a CPU is.
pub(super) const NAMES: [&str; 26] = [
    "sctlr_el1",
    "ttbr0_el1",
    "ttbr1_el1",
    "tcr_el1",
    "tcr2_el1",
    "mair_el1",
    "sctlr_el2",
    "ttbr0_el2",
    "ttbr1_el2",
    "tcr_el2",
    "tcr2_el2",
    "mair_el2",
    "hcr_el2",
    "vttbr_el2",
    "vtcr_el2",
    "sctlr_el3",
    "ttbr0_el3",
    "tcr_el3",
    "mair_el3",
    "id_aa64mmfr0_el1",
    "id_aa64mmfr1_el1",
    "id_aa64mmfr2_el1",
    "vbar_el1",
    "vbar_el2",
    "pc",
    "cpsr",
];

/// The registers of one CPU that a source has, under the names of the Arm ARM in small letters:
/// `ttbr0_el1`, `tcr_el2`, `pc`, `cpsr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers(BTreeMap<String, u64>);

impl Registers {
    /// The value of a register, if the source has it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    pub fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_ascii_lowercase(), value);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
