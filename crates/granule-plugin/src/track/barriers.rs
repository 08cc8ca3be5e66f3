//! Which barriers have an effect after others.

use granule_trace::{Barrier, BarrierKind};

/// The bits of barriers that would have an effect after an event.
const DMB: u16 = 1 << 6;
pub(super) const ISB: u16 = 1 << 7;
/// Not a barrier: the entry to a program.
pub(super) const USER: u16 = 1 << 8;
pub(super) const ANY: u16 = u16::MAX;

/// Returns the bit of a barrier, and the bits of all barriers that have no effect right after it.
/// `None` for a barrier that waits for loads only.
pub(super) const fn kind(barrier: Barrier) -> Option<(u16, u16)> {
    let option = barrier.option;
    match barrier.kind {
        BarrierKind::Isb => Some((ISB, ISB)),
        _ if option & 3 < 2 => None,
        BarrierKind::Dmb => Some((DMB, DMB)),
        _ => {
            // Two bits for each domain: stores only, and all accesses.
            let full = (option & 1) as u16;
            let (shift, covers, dmb) = match option >> 2 {
                1 => (0, 0b01, 0),
                2 => (2, 0b0101, DMB),
                // The outer shareable domain and the system.
                _ => (4, 0b1_0101, DMB),
            };
            let covered = if full == 1 {
                covers | covers << 1
            } else {
                covers
            };
            Some((1 << (shift + full), covered | dmb))
        }
    }
}
