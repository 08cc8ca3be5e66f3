//! Translation regimes.

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

impl Regime {
    /// The index of a regime in arrays.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::El10 => 0,
            Self::El2 => 1,
            Self::El3 => 2,
        }
    }
}
