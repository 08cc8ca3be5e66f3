//! The registers of a CPU, by name. This file does not know what they mean.

use std::collections::BTreeMap;

/// The registers of one CPU that a source has, under the names of the Arm ARM in small letters:
/// `ttbr0_el1`, `tcr_el2`, `pc`, `cpsr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers(BTreeMap<String, u64>);

impl Registers {
    /// The value of a register, if the source has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Sets a register.
    pub fn set(&mut self, name: &str, value: u64) {
        self.0.insert(name.to_ascii_lowercase(), value);
    }

    /// Whether no register is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
