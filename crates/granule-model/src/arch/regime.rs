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
    /// The second stage of EL1&0: intermediate physical addresses of a guest, by VMID. The trees of
    /// the guest itself belong to [`El10`](Self::El10).
    Stage2,
}

impl Regime {
    /// The number of regimes.
    pub(crate) const COUNT: usize = 4;

    /// Whether entries belong to an address space: an ASID, or at stage 2 a VMID.
    pub(crate) const fn has_asids(self) -> bool {
        matches!(self, Self::El10 | Self::Stage2)
    }

    /// The index of a regime in arrays.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::El10 => 0,
            Self::El2 => 1,
            Self::El3 => 2,
            Self::Stage2 => 3,
        }
    }
}
