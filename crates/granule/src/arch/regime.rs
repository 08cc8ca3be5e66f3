//! Translation regimes: the exception levels that use a set of tables, and the stage.

/// The translation regime of a set of tables; it gives bits 6, 53 and 54 their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Regime {
    /// EL1&0: an operating system; also EL2&0, its equal with FEAT_VHE and HCR_EL2.E2H.
    El1And0,
    /// EL2 alone, without VHE's upper half: one privilege, TTBR0 only.
    El2,
    /// EL3: firmware; one privilege, TTBR0 only.
    El3,
    /// The second stage of EL1&0: the addresses of a virtual machine
    /// ([`Stage2Geometry`](super::stage2::Stage2Geometry)).
    Stage2,
}

impl Regime {
    /// Whether the regime has two privileges, so that EL0's permissions have an effect.
    #[must_use]
    #[inline]
    pub const fn has_user(self) -> bool {
        matches!(self, Self::El1And0)
    }
}
