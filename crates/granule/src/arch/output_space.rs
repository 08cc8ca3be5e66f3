//! The physical address space of a leaf's output: the bits NS and NSE of stage 1. Nothing of
//! stage 2, whose output space its control registers give.

use super::descriptor::Descriptor;
use super::regime::Regime;

/// The physical address space that a leaf's output is in, as NS and NSE say it. Only firmware and
/// the Secure and Realm states have a choice; every other regime leaves it
/// [`Unmarked`](Self::Unmarked).
///
/// NSE exists in the EL3 regime alone, on CPUs with FEAT_RME. Elsewhere [`Root`](Self::Root)
/// encodes as `Unmarked`, and [`Realm`](Self::Realm) as [`NonSecure`](Self::NonSecure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "two bits say no more")]
pub enum OutputSpace {
    /// NS and NSE clear: Secure at EL3 and in the Secure state, Realm in the Realm state. The
    /// Non-secure state ignores NS, so its outputs are Non-secure.
    #[default]
    Unmarked,
    /// NS set: Non-secure.
    NonSecure,
    /// NSE set: Root, at EL3.
    Root,
    /// NS and NSE set: Realm, at EL3.
    Realm,
}

impl OutputSpace {
    /// The descriptor bits in `regime`.
    #[inline]
    pub(super) const fn bits(self, regime: Regime) -> u64 {
        let (ns, nse) = match self {
            Self::Unmarked => (0, 0),
            Self::NonSecure => (Descriptor::NS, 0),
            Self::Root => (0, Descriptor::NSE),
            Self::Realm => (Descriptor::NS, Descriptor::NSE),
        };
        if matches!(regime, Regime::El3) {
            ns | nse
        } else {
            ns
        }
    }

    /// The space that a leaf descriptor of `regime` names.
    #[inline]
    pub(super) const fn of_leaf(descriptor: Descriptor, regime: Regime) -> Self {
        let nse = matches!(regime, Regime::El3) && descriptor.0 & Descriptor::NSE != 0;
        match (descriptor.0 & Descriptor::NS != 0, nse) {
            (false, false) => Self::Unmarked,
            (true, false) => Self::NonSecure,
            (false, true) => Self::Root,
            (true, true) => Self::Realm,
        }
    }
}
