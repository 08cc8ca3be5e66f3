//! Barriers, decoded: the CPUs that a barrier covers, and whether it waits for stores only.

use granule_trace::{Barrier, BarrierKind};

/// The CPUs that a barrier covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// The CPU that executes it.
    Local,
    /// All CPUs.
    Inner,
    /// All CPUs, and observers past the caches. The outer shareable domain counts as this one.
    System,
}

/// The domain of a barrier, and whether it waits for stores only. `None` for an option that the
/// model does not support: a barrier that waits for loads only, and a DMB for one CPU.
pub(crate) const fn decode(barrier: Barrier) -> Option<(Domain, bool)> {
    let domain = match (barrier.kind, barrier.option >> 2) {
        (BarrierKind::Isb, _) => return Some((Domain::Local, false)),
        (BarrierKind::Dsb, 0b01) => Domain::Local,
        (BarrierKind::Dsb | BarrierKind::Dmb, 0b10) => Domain::Inner,
        (BarrierKind::Dsb | BarrierKind::Dmb, 0b11 | 0b00) => Domain::System,
        _ => return None,
    };
    match barrier.option & 0b11 {
        0b11 => Some((domain, false)),
        0b10 => Some((domain, true)),
        _ => None,
    }
}
