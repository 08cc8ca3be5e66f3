//! Halves of the address space that the model cannot check, with the reasons.

use crate::arch::context::Space;
use crate::arch::regime::Regime;
use std::fmt;

/// The most halves and reasons that are kept.
pub(super) const MOST_UNCHECKED: usize = 64;

/// A half of the addresses of a regime that goes unchecked, since the registers select what the
/// architecture, or the machine, does not have. Named once for each reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// The first CPU that translates by such registers.
    pub cpu: u32,
    /// The event that wrote them, counted from 0.
    pub event: u64,
    pub(super) space: Space,
    pub(super) reason: String,
}

impl Unchecked {
    /// The half that goes unchecked, in words.
    #[must_use]
    pub const fn half(&self) -> &'static str {
        match (self.space.regime(), self.space.upper()) {
            (Regime::El10, false) => "the lower half of EL1&0",
            (Regime::El10, true) => "the upper half of EL1&0",
            (Regime::El2, _) => "EL2",
            (Regime::El3, _) => "EL3",
            (Regime::Stage2, _) => "stage 2",
        }
    }

    /// The field that makes it so, with the values that were expected.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, cpu, reason) = (self.half(), self.cpu, &self.reason);
        write!(f, "{half} of CPU {cpu}: {reason}")
    }
}
